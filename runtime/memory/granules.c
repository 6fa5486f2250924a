/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/memory/granules.h"

#include "runtime/base/log.h"

CUresult ms_granules_cover(struct ms_allocation *allocation, size_t begin, size_t end)
{
    const CUresult result = ms_backing_cover(&allocation->backing, begin, end);
    if (result == CUDA_ERROR_OUT_OF_MEMORY)
        ms_log(MS_INFO,
               "out of device memory while backing bytes %zu to %zu of the allocation of "
               "%zu bytes at 0x%llx",
               begin, end, allocation->bytes, allocation->address);
    return result;
}

size_t ms_granules_uncover(struct ms_allocation *allocation, size_t begin, size_t end)
{
    return ms_backing_uncover(&allocation->backing, begin, end);
}

bool ms_granules_next(const struct ms_allocation *allocation, struct ms_range *range)
{
    return ms_backing_next(&allocation->backing, range);
}

bool ms_granules_are_one(const struct ms_allocation *allocation, size_t begin, size_t end)
{
    return ms_backing_lies_in_one_chunk(&allocation->backing, begin, end);
}

size_t ms_granules_backed_bytes(const struct ms_allocation *allocation)
{
    return allocation->backing.backed_bytes;
}

CUresult ms_granules_sink(struct ms_allocation *allocation, size_t begin, size_t end)
{
    return ms_backing_sink_map(&allocation->backing, begin, end);
}

void ms_granules_unsink(struct ms_allocation *allocation, size_t begin, size_t end)
{
    ms_backing_sink_unmap(&allocation->backing, begin, end);
}

CUresult ms_granules_wait(struct ms_allocation *allocation, size_t begin, size_t end)
{
    return ms_backing_sink_wait(&allocation->backing, begin, end);
}
