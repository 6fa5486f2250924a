/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/fill/access.h"

#include "runtime/driver/flags.h"
#include "runtime/fill/evict.h"
#include "runtime/fill/reuse.h"
#include "runtime/fill/scratch.h"
#include "runtime/fill/suspend.h"
#include "runtime/memory/allocation.h"
#include "runtime/memory/carve.h"
#include "runtime/memory/publish.h"
#include "runtime/shard/placement_query.h"
#include "runtime/shard/shard.h"
#include "runtime/state/counters.h"
#include "runtime/state/why.h"

/* Claims and visits each allocation that meets [at, end), with its part of that range. */
typedef CUresult visitor(struct ms_allocation *allocation, struct ms_range part, void *argument);
static CUresult visit_parts(CUdeviceptr at, CUdeviceptr end, visitor *visit, void *argument)
{
    CUresult result = CUDA_SUCCESS;
    while (result == CUDA_SUCCESS && at < end) {
        MS_CLAIMED struct ms_allocation *allocation = ms_space_claim_next(at);
        if (allocation == NULL || allocation->address >= end)
            break;
        const CUdeviceptr allocation_end = allocation->address + allocation->bytes;
        const struct ms_range part = {allocation->address > at ? 0 : ms_offset(allocation, at),
                                      allocation_end < end ? allocation->bytes
                                                           : ms_offset(allocation, end)};
        at = allocation_end;
        result = visit(allocation, part, argument);
    }
    return result;
}

static CUresult use_part(struct ms_allocation *allocation, struct ms_range part, void *argument)
{
    const struct ms_use *use = argument;
    const CUstream stream = use->stream != NULL ? use->stream : CU_STREAM_LEGACY;
    if (ms_needs[use->need].extents == MS_EXTENTS_ALL)
        ms_carve_add_use(allocation, part.begin, part.end);
    const enum ms_need need = ms_evict_need_in(allocation, use->need, stream);
    ms_reuse_originals(allocation, part.begin, part.end, need);
    return ms_materialise(allocation, part.begin, part.end, need);
}

static CUresult use_once(struct ms_use use)
{
    const CUdeviceptr end =
        use.bytes <= UINT64_MAX - use.begin ? use.begin + use.bytes : UINT64_MAX;
    return visit_parts(use.begin, end, use_part, &use);
}

static CUresult use_all_once(const struct ms_use *uses, size_t count)
{
    CUresult result = CUDA_SUCCESS;
    for (size_t i = 0; i < count && result == CUDA_SUCCESS; i++)
        result = use_once(uses[i]);
    return result;
}

/* The reason of the first use counts for the whole call. */
static enum ms_reason reason_of(const struct ms_use *uses)
{
    return uses->why != MS_REASON_CALL ? uses->why : ms_needs[uses->need].why;
}

/* A kernel may write every byte that it reaches. */
static void make_dependents(const struct ms_use *uses, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (uses[i].need == MS_NEED_REACH)
            ms_reuse_make_dependents(uses[i].begin, uses[i].bytes);
    }
}

static bool may_hold(const struct ms_use *uses, size_t count)
{
    size_t i = 0;
    while (i < count && ms_needs[uses[i].need].becomes != MS_BECOMES_CACHED)
        i++;
    return i < count;
}

/* Holds cached bytes for the call, but lets them go while this thread itself makes memory free. */
CUresult ms_access_uses(const struct ms_use *uses, size_t count)
{
    const bool holds = may_hold(uses, count);
    MS_WHY const struct ms_why why = ms_why_begin(reason_of(uses));
    int attempts = 0, refusals = 0;
    CUresult result;
    make_dependents(uses, count);
    ms_scratch_may_refuse(true);
    do {
        if (holds)
            ms_evict_hold();
        result = use_all_once(uses, count);
        if (holds && result != CUDA_SUCCESS)
            ms_evict_let_go();
    } while (ms_evict_for_scratch(result, &refusals) ||
             ms_evict_try_bytes_again(result, &attempts));
    ms_scratch_may_refuse(false);
    return result;
}

static CUresult find_remote(struct ms_allocation *allocation, struct ms_range part, void *argument)
{
    bool *found = argument;
    if (!*found) {
        ms_placement_query(allocation, part.begin, part.end);
        *found =
            ms_lineage_any(ms_allocation_lineage(allocation), part.begin, part.end, MS_OF_OTHERS);
    }
    return CUDA_SUCCESS;
}

/* True if some byte of the range is remote. */
static bool meets_remote(CUdeviceptr at, CUdeviceptr end)
{
    bool found = false;
    visit_parts(at, end, find_remote, &found);
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

static CUresult fill_later(struct ms_allocation *allocation, struct ms_range part, void *unused)
{
    (void)unused;
    ms_materialise_granules_later(allocation, part.begin, part.end);
    return CUDA_SUCCESS;
}

void ms_access_granules_later(CUdeviceptr address, size_t bytes)
{
    visit_parts(address, address + bytes, fill_later, NULL);
}

CUresult ms_access_all(enum ms_reason why)
{
    ms_counter_add(MS_COUNT_SEALS, 1);
    ms_examining_missed();
    const CUresult result = ms_suspend_take_back();
    if (result != CUDA_SUCCESS)
        return result;
    return ms_access_uses(
        &(struct ms_use){.need = MS_NEED_REACH_LIVE, .bytes = SIZE_MAX, .why = why}, 1);
}

CUresult ms_access_export(CUdeviceptr address, size_t bytes, bool *one_handle_out)
{
    const CUdeviceptr end = address + bytes;
    struct ms_allocation_facts facts;
    CUresult result = CUDA_SUCCESS;
    *one_handle_out = true;
    while (result == CUDA_SUCCESS && address < end && ms_space_first_behind(address, &facts) &&
           facts.address < end) {
        address = facts.address + facts.bytes;
        result = ms_access(facts.address, facts.bytes, MS_NEED_PIN);
        MS_CLAIMED struct ms_allocation *allocation = ms_space_claim_same(facts.address, facts.id);
        if (allocation == NULL)
            continue;
        *one_handle_out &= ms_backing_is_one_chunk(ms_allocation_backing(allocation), 0,
                                                   allocation->granule_bytes);
        ms_publish_event(MS_EVENT_PIN, allocation, 0, allocation->bytes,
                         "an allocation that is exported");
    }
    return result;
}
