/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/simcuda/driver/copy.h"
#include "tools/simcuda/driver/state.h"

#include <string.h>

struct fill_work {
    struct sim_work work;
    struct sim_box box;
    size_t width, height; /* width in bytes */
    uint32_t value;
    unsigned unit;
    CUdevice device;
    bool is_host_memory; /* pinned, registered or managed */
};

/* Copies what it has filled, because a loop over units is slow under a sanitizer. */
static void fill_row(char *row, size_t bytes, uint32_t value, unsigned unit)
{
    enum { MOST_AT_ONCE = 64 << 10 };
    const uint16_t half = (uint16_t)value;
    bytes -= bytes % unit;
    if (unit == 1 || bytes == 0) {
        memset(row, (int)value, bytes);
        return;
    }
    memcpy(row, unit == 2 ? (const void *)&half : &value, unit);
    for (size_t done = unit; done < bytes;) {
        const size_t most = done < MOST_AT_ONCE ? done : MOST_AT_ONCE;
        const size_t count = most < bytes - done ? most : bytes - done;
        memcpy(row + done, row, count);
        done += count;
    }
}

static void run(struct sim_work *work)
{
    const struct fill_work *fill = (struct fill_work *)work;
    if (!sim_box_touch(&fill->box, fill->width, fill->height, 1, fill->device, true, work->name))
        return;
    const bool is_large = fill->width * fill->height > SIM_DRY_WITHIN_BYTES;
    const bool skips = sim_leaves_out() && is_large && !fill->is_host_memory;
    for (size_t y = 0; !skips && y < fill->height; y++)
        fill_row((char *)fill->box.address + y * fill->box.pitch,
                 sim_is_broken(SIM_BROKEN_SET)
                     ? sim_bytes_of_one_handle(fill->box.address, fill->width)
                     : fill->width,
                 fill->value, fill->unit);
    pthread_mutex_lock(&sim_lock);
    sim_stats.memset_bytes += fill->width * fill->height;
    pthread_mutex_unlock(&sim_lock);
}

/* All of it, and what lies between the rows, has to be memory that the device may write. */
static CUresult check_range(struct fill_work *fill)
{
    size_t bytes;
    if (!sim_box_span(&fill->box, fill->width, fill->height, 1, &bytes))
        return CUDA_ERROR_INVALID_VALUE;
    fill->work.touches[0] = (struct sim_range){fill->box.address, bytes};
    fill->work.touches_count = 1;
    pthread_mutex_lock(&sim_lock);
    const struct sim_memory *memory = sim_memory_find_locked(fill->box.address);
    fill->is_host_memory =
        memory != NULL &&
        (memory->kind == SIM_HOST || memory->kind == SIM_REGISTERED || memory->kind == SIM_MANAGED);
    const bool fits =
        memory != NULL && sim_may_take_locked(memory, fill->device, &fill->work.touches[0], true);
    pthread_mutex_unlock(&sim_lock);
    return fits ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* Memsets that are not named async make the host wait where it has the memory itself (CUDA driver
 * API, API synchronization behavior); no others do. */
static CUresult fill(CUdeviceptr address, size_t pitch, uint32_t value, unsigned unit, size_t width,
                     size_t height, bool is_async, CUstream stream, bool per_thread)
{
    struct CUctx_st *context;
    struct CUstream_st *found;
    size_t row_bytes;
    CUresult result = sim_context_get(&context);
    if (result != CUDA_SUCCESS)
        return result;
    if (address % unit != 0 || __builtin_mul_overflow(width, unit, &row_bytes) ||
        (height > 1 && (pitch < row_bytes || pitch % unit != 0)))
        return CUDA_ERROR_INVALID_VALUE;
    if (width == 0 || height == 0)
        return CUDA_SUCCESS;
    struct fill_work *work = sim_zalloc(sizeof(*work));
    work->work.run = run;
    work->work.name = is_async ? "cuMemsetAsync" : "cuMemset";
    work->box = (struct sim_box){CU_MEMORYTYPE_DEVICE, address, pitch, 0};
    work->width = row_bytes;
    work->height = height;
    work->value = value;
    work->unit = unit;
    work->device = context->device;
    result = check_range(work);
    if (result == CUDA_SUCCESS && !is_async) {
        pthread_mutex_lock(&sim_lock);
        result = sim_stream_find_locked(stream, per_thread, &found);
        if (result == CUDA_SUCCESS)
            result = sim_capture_refuse_stream_locked(found);
        pthread_mutex_unlock(&sim_lock);
    }
    const bool waits = !is_async && work->is_host_memory;
    if (result != CUDA_SUCCESS) {
        sim_work_discard(&work->work);
        return result;
    }
    result = sim_stream_submit(stream, per_thread, &work->work);
    return result == CUDA_SUCCESS && waits ? sim_stream_wait(stream, per_thread) : result;
}

/* The eight entry points of one unit: row or rows, with a stream or not, and the twins. */
#define FILLS(bits, type)                                                                   \
    SIM_TWINS(cuMemsetD##bits##_v2, _ptds, (CUdeviceptr to, type value, size_t count),      \
              fill(to, 0, value, sizeof(type), count, 1, false, NULL, per_thread))          \
    SIM_TWINS(cuMemsetD##bits##Async, _ptsz,                                                \
              (CUdeviceptr to, type value, size_t count, CUstream stream),                  \
              fill(to, 0, value, sizeof(type), count, 1, true, stream, per_thread))         \
    SIM_TWINS(cuMemsetD2D##bits##_v2, _ptds,                                                \
              (CUdeviceptr to, size_t pitch, type value, size_t width, size_t height),      \
              fill(to, pitch, value, sizeof(type), width, height, false, NULL, per_thread)) \
    SIM_TWINS(cuMemsetD2D##bits##Async, _ptsz,                                              \
              (CUdeviceptr to, size_t pitch, type value, size_t width, size_t height,       \
               CUstream stream),                                                            \
              fill(to, pitch, value, sizeof(type), width, height, true, stream, per_thread))
FILLS(8, unsigned char)
FILLS(16, unsigned short)
FILLS(32, unsigned int)
