/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/collective/window.h"

static CUresult create(struct ms_window *window, CUcontext context, CUdevice device, size_t bytes)
{
    CUresult result = ms_backing_reserve(&window->backing, device, bytes);
    if (result != CUDA_SUCCESS)
        return result;
    result = ms_backing_cover(&window->backing, 0, bytes);
    if (result == CUDA_SUCCESS)
        result = ms_driver.event_create(&window->used, CU_EVENT_DISABLE_TIMING);
    if (result != CUDA_SUCCESS) {
        ms_backing_release(&window->backing);
        return result;
    }
    window->context = context;
    return CUDA_SUCCESS;
}

CUresult ms_window_open(struct ms_window *window, CUcontext context, CUdevice device, size_t bytes,
                        CUstream stream)
{
    struct ms_driver_scope scope;
    CUresult result = ms_driver_enter(context, &scope);
    if (result != CUDA_SUCCESS)
        return result;
    if (window->used != NULL && window->backing.bytes < bytes)
        ms_window_close(window);
    if (window->used == NULL)
        result = create(window, context, device, bytes);
    else if (window->context != context)
        result = CUDA_ERROR_INVALID_CONTEXT;
    else if (window->stream != stream)
        result = ms_driver.event_synchronize(window->used);
    window->stream = stream;
    ms_driver_leave(&scope);
    return result;
}

/* How many ranges from `first` on are as long as that one, and as far from each other as the first two. */
static size_t count_alike(const struct ms_ranges *ranges, size_t first)
{
    const struct ms_range *list = &ranges->list[first];
    size_t count = 1;
    while (first + count < ranges->count &&
           list[count].end - list[count].begin == list[0].end - list[0].begin &&
           list[count].begin - list[count - 1].begin == list[1].begin - list[0].begin)
        count++;
    return count;
}

static CUresult copy_rows(CUdeviceptr to, CUdeviceptr from, size_t width, size_t pitch, size_t rows,
                          CUstream stream)
{
    const CUDA_MEMCPY2D copy = {.srcMemoryType = CU_MEMORYTYPE_DEVICE,
                                .srcDevice = from,
                                .srcPitch = pitch,
                                .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                                .dstDevice = to,
                                .dstPitch = width,
                                .WidthInBytes = width,
                                .Height = rows};
    return rows == 1 ? ms_driver.memcpy_dtod_async(to, from, width, stream)
                     : ms_driver.memcpy_2d_async(&copy, stream);
}

CUresult ms_window_pack(const struct ms_window *window, size_t at, CUdeviceptr from,
                        const struct ms_ranges *ranges, size_t offset, size_t bytes)
{
    CUdeviceptr to = window->backing.address + at;
    CUresult result = CUDA_SUCCESS;
    for (size_t i = 0; i < ranges->count && bytes > 0 && result == CUDA_SUCCESS;) {
        const struct ms_range range = ranges->list[i];
        size_t width = range.end - range.begin, rows = 1;
        if (offset >= width) {
            offset -= width;
            i++;
            continue;
        }
        if (offset == 0 && width <= bytes) {
            rows = count_alike(ranges, i);
            rows = rows * width <= bytes ? rows : bytes / width;
        } else {
            width = width - offset < bytes ? width - offset : bytes;
        }
        const size_t pitch = rows > 1 ? ranges->list[i + 1].begin - range.begin : 0;
        if (pitch > INT32_MAX)
            rows = 1;
        result = copy_rows(to, from + range.begin + offset, width, pitch, rows, window->stream);
        to += rows * width;
        bytes -= rows * width;
        i += rows;
        offset = 0;
    }
    return result;
}

CUresult ms_window_queued(struct ms_window *window)
{
    struct ms_driver_scope scope;
    CUresult result = ms_driver_enter(window->context, &scope);
    if (result != CUDA_SUCCESS)
        return result;
    result = ms_driver.event_record(window->used, window->stream);
    ms_driver_leave(&scope);
    return result;
}

void ms_window_close(struct ms_window *window)
{
    struct ms_driver_scope scope;
    if (window->used == NULL)
        return;
    if (ms_driver_enter(window->context, &scope) == CUDA_SUCCESS) {
        ms_driver.event_synchronize(window->used);
        ms_driver.event_destroy(window->used);
        ms_driver_leave(&scope);
    }
    ms_backing_release(&window->backing);
    *window = (struct ms_window){0};
}
