/* SPDX-License-Identifier: Apache-2.0 */
/* Brings what a call needs into memory, before the call is forwarded. */
#include "runtime/fill/access.h"

#include "runtime/base/range.h"
#include "runtime/driver/flags.h"
#include "runtime/fill/evict.h"
#include "runtime/memory/carve.h"
#include "runtime/memory/examining.h"
#include "runtime/memory/allocation.h"
#include "runtime/memory/order.h"
#include "runtime/memory/publish.h"
#include "runtime/shard/placement_query.h"
#include "runtime/shard/shard.h"
#include "runtime/state/counters.h"

/* Claims the first allocation that meets [*at, end), of which *part_out lies there, and moves *at
 * behind it. NULL: there is none. */
static struct ms_allocation *claim_part(CUdeviceptr *at, CUdeviceptr end, struct ms_range *part_out)
{
    struct ms_allocation *allocation = *at < end ? ms_space_claim_next(*at) : NULL;
    if (allocation == NULL || allocation->address >= end) {
        ms_space_release(allocation);
        return NULL;
    }
    const CUdeviceptr allocation_end = allocation->address + allocation->bytes;
    part_out->begin = allocation->address > *at ? 0 : ms_offset(allocation, *at);
    part_out->end = allocation_end < end ? allocation->bytes : ms_offset(allocation, end);
    *at = allocation_end;
    return allocation;
}

static CUresult access_once(CUdeviceptr at, CUdeviceptr end, enum ms_need need, CUstream stream)
{
    struct ms_range part;
    CUresult result = CUDA_SUCCESS;
    for (struct ms_allocation *allocation;
         result == CUDA_SUCCESS && (allocation = claim_part(&at, end, &part)) != NULL;) {
        if (ms_needs[need].extents == MS_EXTENTS_ALL)
            ms_carve_add_use(allocation, part.begin, part.end);
        result = ms_materialise(allocation, part.begin, part.end,
                                ms_evict_need_in(allocation, need, stream));
        ms_space_release(allocation);
    }
    return result;
}

/* Holds cached bytes for the call, but not while this thread itself waits for memory. */
static CUresult access_in(CUdeviceptr address, size_t bytes, enum ms_need need, CUstream stream)
{
    const CUdeviceptr end = bytes <= UINT64_MAX - address ? address + bytes : UINT64_MAX;
    const bool holds = ms_needs[need].becomes == MS_BECOMES_CACHED;
    int attempts = 0;
    CUresult result;
    do {
        if (holds)
            ms_evict_hold();
        result = access_once(address, end, need, stream);
        if (holds && result != CUDA_SUCCESS)
            ms_evict_let_go();
    } while (ms_evict_try_bytes_again(result, &attempts));
    return result;
}

/* The streams of a communicator belong to the current context. */
CUresult ms_access(CUdeviceptr address, size_t bytes, enum ms_need need)
{
    return access_in(address, bytes, need, CU_STREAM_LEGACY);
}

CUresult ms_access_read(CUdeviceptr address, size_t bytes, CUstream stream)
{
    return access_in(address, bytes, MS_NEED_READ, stream);
}

/* True if some byte of the range is remote. */
static bool meets_remote(CUdeviceptr at, CUdeviceptr end)
{
    bool found = false;
    struct ms_range part;
    for (struct ms_allocation *allocation;
         !found && (allocation = claim_part(&at, end, &part)) != NULL;) {
        ms_placement_query(allocation, part.begin, part.end);
        found = ms_lineage_any(&allocation->lineage, part.begin, part.end, MS_OF_OTHERS);
        ms_space_release(allocation);
    }
    return found;
}

CUresult ms_access_rows(const struct ms_rows *rows)
{
    const size_t bytes =
        (rows->depth - 1) * rows->slice + (rows->height - 1) * rows->pitch + rows->width;
    if (!ms_shard_is_active() || !meets_remote(rows->begin, rows->begin + bytes))
        return ms_access(rows->begin, bytes, MS_NEED_READ_WRITE);
    CUresult result = CUDA_SUCCESS;
    for (size_t z = 0; z < rows->depth; z++) {
        for (size_t y = 0; y < rows->height && result == CUDA_SUCCESS; y++)
            result = ms_access(rows->begin + z * rows->slice + y * rows->pitch, rows->width,
                               MS_NEED_READ_WRITE);
    }
    return result;
}

void ms_access_granules_later(CUdeviceptr address, size_t bytes)
{
    struct ms_range part;
    const CUdeviceptr end = address + bytes;
    for (struct ms_allocation *allocation;
         (allocation = claim_part(&address, end, &part)) != NULL;) {
        ms_materialise_granules_later(allocation, part.begin, part.end);
        ms_space_release(allocation);
    }
}

CUresult ms_access_all(void)
{
    ms_counter_add(MS_COUNT_SEALS, 1);
    ms_examining_missed();
    const struct ms_why why = ms_publish_why_begin(MS_REASON_SEALED);
    const CUresult result = ms_access(0, SIZE_MAX, MS_NEED_REACH_LIVE);
    ms_publish_why_end(why);
    return result;
}

static CUresult export_allocation(CUdeviceptr address, bool *one_handle_out)
{
    struct ms_allocation *allocation = ms_space_claim(address);
    *one_handle_out = true;
    if (allocation == NULL)
        return CUDA_SUCCESS;
    const CUresult result = ms_materialise(allocation, 0, allocation->bytes, MS_NEED_PIN);
    *one_handle_out = ms_backing_is_one_chunk(&allocation->backing, 0, allocation->granule_bytes);
    ms_publish_event(MS_EVENT_PIN, allocation, 0, allocation->bytes,
                     "an allocation that is exported");
    ms_space_release(allocation);
    return result;
}

CUresult ms_access_export(CUdeviceptr address, bool *one_handle_out)
{
    int attempts = 0;
    CUresult result;
    const struct ms_why why = ms_publish_why_begin(MS_REASON_EXPORT);
    do
        result = export_allocation(address, one_handle_out);
    while (ms_evict_try_bytes_again(result, &attempts));
    ms_publish_why_end(why);
    return result;
}
