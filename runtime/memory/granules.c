/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/memory/granules.h"

#include "runtime/base/log.h"
#include "runtime/memory/memory_internal.h"

CUresult ms_granules_cover(struct ms_allocation *allocation, size_t begin, size_t end)
{
    const CUresult result = ms_backing_cover(&MS_OWN(allocation)->backing, begin, end);
    if (result == CUDA_ERROR_OUT_OF_MEMORY)
        ms_log(MS_INFO,
               "out of device memory while backing bytes %zu to %zu of the allocation of "
               "%zu bytes at 0x%llx",
               begin, end, allocation->bytes, allocation->address);
    return result;
}

size_t ms_granules_uncover(struct ms_allocation *allocation, size_t begin, size_t end)
{
    return ms_backing_uncover(&MS_OWN(allocation)->backing, begin, end);
}

bool ms_granules_next(const struct ms_allocation *allocation, struct ms_range *range)
{
    return ms_backing_next(&MS_OWN(allocation)->backing, range);
}

bool ms_granules_are_one(const struct ms_allocation *allocation, size_t begin, size_t end)
{
    return ms_backing_lies_in_one_chunk(&MS_OWN(allocation)->backing, begin, end);
}

size_t ms_granules_backed_bytes(const struct ms_allocation *allocation)
{
    return MS_OWN(allocation)->backing.backed_bytes;
}

CUresult ms_granules_sink(struct ms_allocation *allocation, size_t begin, size_t end)
{
    return ms_backing_sink_map(&MS_OWN(allocation)->backing, begin, end);
}

void ms_granules_unsink(struct ms_allocation *allocation, size_t begin, size_t end)
{
    ms_backing_sink_unmap(&MS_OWN(allocation)->backing, begin, end);
}

CUresult ms_granules_wait(struct ms_allocation *allocation, size_t begin, size_t end)
{
    return ms_backing_sink_wait(&MS_OWN(allocation)->backing, begin, end);
}

CUresult ms_granules_lend(struct ms_allocation *allocation, const struct ms_ranges *ranges,
                          const struct ms_backing *lender, struct ms_sink_mapping **lent_out)
{
    struct ms_backing *backing = &MS_OWN(allocation)->backing;
    return lender != NULL ? ms_backing_lend_map_for(backing, lender, ranges->list,
                                                    allocation->context, lent_out)
                          : ms_backing_sink_map_for(backing, ranges->list, ranges->count,
                                                    allocation->context, lent_out);
}

void ms_granules_lent(struct ms_allocation *allocation, const struct ms_sink_mapping *lent,
                      CUevent event)
{
    struct ms_backing *backing = &MS_OWN(allocation)->backing;
    if (event != NULL)
        ms_backing_sink_attach_event(backing, lent, event);
    else
        ms_backing_sink_cancel(backing, lent);
}

CUresult ms_granules_set_peer(struct ms_allocation *allocation, CUdevice peer, bool enabled)
{
    return ms_backing_apply_access(&MS_OWN(allocation)->backing, peer, enabled);
}
