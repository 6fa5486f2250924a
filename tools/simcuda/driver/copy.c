/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/simcuda/driver/copy.h"

#include "tools/simcuda/driver/state.h"

#include <stdlib.h>
#include <string.h>

/* Larger pageable sources are not staged: the call waits for the stream instead. */
#define STAGING_MAX_BYTES ((size_t)64 << 20)

/* The kind of memory that an address lies in. */
struct place {
    bool is_device;
    bool is_pageable;
};
struct copy_work {
    struct sim_work work;
    struct sim_copy copy;
    struct place to, from;
    void *staging;
};

bool sim_box_span(const struct sim_box *box, size_t width, size_t height, size_t depth,
                  size_t *bytes_out)
{
    size_t slices;
    size_t rows;
    size_t bytes;
    *bytes_out = 0;
    if (width == 0 || height == 0 || depth == 0)
        return true;
    if (__builtin_mul_overflow(depth - 1, box->slice, &slices) ||
        __builtin_mul_overflow(height - 1, box->pitch, &rows) ||
        __builtin_add_overflow(slices, rows, &bytes) ||
        __builtin_add_overflow(bytes, width, &bytes) || bytes > UINT64_MAX - box->address)
        return false;
    *bytes_out = bytes;
    return true;
}

bool sim_may_take_locked(const struct sim_memory *memory, CUdevice device,
                         const struct sim_range *range, bool write)
{
    const size_t left = memory->region.bytes - (range->begin - memory->region.begin);
    return range->bytes <= left && !memory->freeing &&
           (memory->kind == SIM_GRAPHED ||
            sim_can_touch_locked(device, range->begin, range->bytes, write));
}

bool sim_box_touch(const struct sim_box *box, size_t width, size_t height, size_t depth,
                   CUdevice device, bool write, const char *name)
{
    size_t bytes;
    sim_box_span(box, width, height, depth, &bytes);
    pthread_mutex_lock(&sim_lock);
    const bool can = sim_can_touch_locked(device, box->address, bytes, write);
    if (!can)
        sim_fault_locked(box->address, bytes, name);
    pthread_mutex_unlock(&sim_lock);
    return can;
}

/* --- running */

/* A device writes an aligned word at once: a stream that waits for its value may look at it
 * meanwhile. */
static bool move_word(const struct sim_copy *copy)
{
    uint32_t word;
    if (copy->width != sizeof(word) || copy->height != 1 || copy->depth != 1 ||
        copy->to.address % sizeof(word) != 0)
        return false;
    memcpy(&word, (const char *)copy->from.address, sizeof(word));
    __atomic_store_n((uint32_t *)copy->to.address, word, __ATOMIC_RELEASE);
    return true;
}

/* SIMCUDA_BREAK: a copy ends with the handle in which it begins. */
static void end_with_handle(struct sim_copy *copy)
{
    const struct sim_box *to = &copy->to, *from = &copy->from;
    const bool is_flat = copy->height == 1 && copy->depth == 1;
    if (is_flat && sim_is_broken(SIM_BROKEN_COPY)) {
        copy->width = sim_bytes_of_one_handle(from->address,
                                              sim_bytes_of_one_handle(to->address, copy->width));
    } else if (copy->height > 1 && sim_is_broken(SIM_BROKEN_COPY_2D)) {
        const size_t rows = copy->height;
        const size_t to_rows = sim_bytes_of_one_handle(to->address, rows * to->pitch) / to->pitch;
        const size_t from_rows =
            sim_bytes_of_one_handle(from->address, rows * from->pitch) / from->pitch;
        copy->height = to_rows < from_rows ? to_rows : from_rows;
    }
}

static void move(const struct sim_copy *asked)
{
    struct sim_copy now = *asked;
    const struct sim_copy *copy = &now;
    const struct sim_box *to = &copy->to;
    const struct sim_box *from = &copy->from;
    if (sim_config.broken != 0)
        end_with_handle(&now);
    if (move_word(copy))
        return;
    for (size_t z = 0; z < copy->depth; z++) {
        for (size_t y = 0; y < copy->height; y++)
            memmove((char *)to->address + z * to->slice + y * to->pitch,
                    (const char *)from->address + z * from->slice + y * from->pitch, copy->width);
    }
}

static void count_bytes(const struct copy_work *job)
{
    const uint64_t bytes = job->copy.width * job->copy.height * job->copy.depth;
    pthread_mutex_lock(&sim_lock);
    if (job->to.is_device && job->from.is_device) {
        sim_stats.d2d_bytes += bytes;
    } else if (job->to.is_device) {
        sim_stats.h2d_bytes += bytes;
    } else if (job->from.is_device) {
        sim_stats.d2h_bytes += bytes;
        sim_stats.unknown_reads += sim_is_dry();
    }
    pthread_mutex_unlock(&sim_lock);
}

static bool can_touch(const struct copy_work *job, const struct sim_box *box,
                      const struct place *place, bool write)
{
    return !place->is_device || sim_box_touch(box, job->copy.width, job->copy.height,
                                              job->copy.depth, -1, write, job->copy.name);
}

/* A dry run leaves out copies within devices, and other copies of more than a message. */
static bool skips(const struct copy_work *job)
{
    const bool is_within = job->to.is_device && job->from.is_device;
    const size_t bytes = job->copy.width * job->copy.height * job->copy.depth;
    return sim_leaves_out() && (job->to.is_device || job->from.is_device) &&
           bytes > (is_within ? SIM_DRY_WITHIN_BYTES : SIM_DRY_BYTES);
}

static void run(struct sim_work *work)
{
    const struct copy_work *job = (struct copy_work *)work;
    if (!can_touch(job, &job->copy.from, &job->from, false) ||
        !can_touch(job, &job->copy.to, &job->to, true))
        return;
    if (!skips(job))
        move(&job->copy);
    count_bytes(job);
}

static void destroy(struct sim_work *work)
{
    struct copy_work *job = (struct copy_work *)work;
    free(job->staging);
    free(job);
}

/* --- checking and queueing */

/* The host may own an address at which no memory of the device is. */
static bool is_of_host_locked(const struct sim_box *box, const struct sim_memory *memory)
{
    return memory == NULL || (box->type == CU_MEMORYTYPE_UNIFIED && memory->kind == SIM_RESERVED &&
                              !sim_can_touch_locked(-1, box->address, 1, false));
}

/* Any device: copies between devices go through the driver, not through peer access. */
static CUresult find_place_locked(const struct sim_copy *copy, const struct sim_box *box,
                                  bool write, struct place *place_out, struct sim_range *range_out)
{
    size_t bytes;
    *place_out = (struct place){0};
    if (!sim_box_span(box, copy->width, copy->height, copy->depth, &bytes))
        return CUDA_ERROR_INVALID_VALUE;
    *range_out = (struct sim_range){box->address, bytes};
    const struct sim_memory *memory = sim_memory_find_locked(box->address);
    if (is_of_host_locked(box, memory)) {
        if (box->type == CU_MEMORYTYPE_DEVICE || box->address == 0)
            return CUDA_ERROR_INVALID_VALUE;
        *range_out = (struct sim_range){0};
        place_out->is_pageable = true;
        return CUDA_SUCCESS;
    }
    const bool is_host = memory->kind == SIM_HOST || memory->kind == SIM_REGISTERED;
    const bool is_seen_by_host = is_host || memory->kind == SIM_MANAGED;
    if ((box->type == CU_MEMORYTYPE_HOST && !is_seen_by_host) ||
        !sim_may_take_locked(memory, -1, range_out, write))
        return CUDA_ERROR_INVALID_VALUE;
    place_out->is_device = !is_host;
    return CUDA_SUCCESS;
}

/* Reads a pageable source now, into memory of our own. */
static void stage(struct copy_work *job)
{
    struct sim_copy *copy = &job->copy;
    struct sim_copy read = *copy;
    job->staging = malloc(copy->width * copy->height * copy->depth);
    if (job->staging == NULL)
        return;
    read.to = (struct sim_box){
        .address = (uint64_t)job->staging,
        .pitch = copy->width,
        .slice = copy->width * copy->height,
    };
    move(&read);
    copy->from = read.to;
}

CUresult sim_copy_submit(const struct sim_copy *copy, CUstream stream, bool per_thread)
{
    struct CUstream_st *found;
    struct copy_work *job = sim_zalloc(sizeof(*job));
    job->work = (struct sim_work){.run = run, .destroy = destroy, .name = copy->name};
    job->work.touches_count = 2;
    job->copy = *copy;

    pthread_mutex_lock(&sim_lock);
    CUresult result = sim_stream_find_locked(stream, per_thread, &found);
    if (result == CUDA_SUCCESS)
        result = find_place_locked(copy, &copy->to, true, &job->to, &job->work.touches[0]);
    if (result == CUDA_SUCCESS)
        result = find_place_locked(copy, &copy->from, false, &job->from, &job->work.touches[1]);
    const bool is_capturing = result == CUDA_SUCCESS && found->capture != NULL;
    if (result == CUDA_SUCCESS && !copy->is_async)
        result = sim_capture_refuse_stream_locked(found);
    pthread_mutex_unlock(&sim_lock);

    const bool is_empty = copy->width == 0 || copy->height == 0 || copy->depth == 0;
    if (result != CUDA_SUCCESS || is_empty) {
        destroy(&job->work);
        return result;
    }
    const bool is_between_devices = job->to.is_device && job->from.is_device;
    bool waits = !copy->is_async ? !is_between_devices : job->to.is_pageable;
    if (!waits && job->from.is_pageable && !is_capturing && !copy->reads_in_order &&
        !sim_config.reads_late) {
        if (copy->width * copy->height * copy->depth <= STAGING_MAX_BYTES && !skips(job))
            stage(job);
        waits = job->staging == NULL && !skips(job);
    }
    result = sim_stream_submit(stream, per_thread, &job->work);
    return result != CUDA_SUCCESS || !waits || is_capturing ? result
                                                            : sim_stream_wait(stream, per_thread);
}

CUresult sim_copy_flat(const char *name, CUmemorytype to_type, uint64_t to, CUmemorytype from_type,
                       uint64_t from, size_t bytes, bool is_async, CUstream stream, bool per_thread)
{
    if (bytes == 0) {
        CUdevice device;
        return sim_current_device(&device);
    }
    const struct sim_copy copy = {
        .name = name,
        .to = {.type = to_type, .address = to},
        .from = {.type = from_type, .address = from},
        .width = bytes,
        .height = 1,
        .depth = 1,
        .is_async = is_async,
    };
    return sim_copy_submit(&copy, stream, per_thread);
}
