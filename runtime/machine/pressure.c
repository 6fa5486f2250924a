/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/machine/pressure.h"

#include <sched.h>
#include <stdatomic.h>
#include <stddef.h>

#include "runtime/base/log.h"
#include "runtime/diag/counters.h"
#include "runtime/hot.h"
#include "runtime/machine/note.h"
#include "runtime/machine/space.h"
#include "runtime/machine/step.h"

enum { MAX_CANDIDATES = 256, PATIENCE = 10000 };

/* Reads that were prepared and have perhaps not reached the driver yet. */
static _Atomic uint32_t reads_in_call;

void ms_read_begin(void)
{
    atomic_fetch_add(&reads_in_call, 1);
}

void ms_read_end(void)
{
    atomic_fetch_sub(&reads_in_call, 1);
}

struct candidate {
    CUdeviceptr address;
    uint64_t id, reads, changes;
    CUcontext context;
};

static bool has_something(const struct ms_allocation *allocation)
{
    return allocation->backing.backed_bytes > 0 &&
           (allocation->lineage.resident_bytes < allocation->lineage.bytes ||
            (allocation->blocks.carved && !allocation->keeps_dead));
}

/* From *at on, which is moved behind them. */
static size_t find_candidates(struct candidate *candidates, CUdeviceptr *at)
{
    size_t count = 0;
    struct ms_block_facts facts;
    while (count < MAX_CANDIDATES && ms_space_first_behind(*at, &facts)) {
        *at = facts.address + facts.bytes;
        struct ms_allocation *allocation = ms_space_try_claim(facts.address);
        if (allocation == NULL)
            continue;
        if (has_something(allocation))
            candidates[count++] = (struct candidate){.address = allocation->address,
                                                     .id = allocation->id,
                                                     .reads = allocation->reads,
                                                     .changes = allocation->changes,
                                                     .context = allocation->context};
        ms_space_release(allocation);
    }
    return count;
}

/* Reads that were prepared before now are queued when this returns true. */
static bool reads_are_queued(void)
{
    for (int i = 0; i < PATIENCE; i++) {
        if (atomic_load(&reads_in_call) == 0)
            return true;
        sched_yield();
    }
    return false;
}

static bool wait_for(CUcontext context)
{
    struct ms_driver_scope scope;
    if (ms_driver_enter(context, &scope) != CUDA_SUCCESS)
        return false;
    const CUresult result = ms_driver.ctx_synchronize();
    ms_driver_leave(&scope);
    return result == CUDA_SUCCESS;
}

static bool wait_for_contexts(const struct candidate *candidates, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        const bool done = i > 0 && candidates[i].context == candidates[i - 1].context;
        if (!done && !wait_for(candidates[i].context))
            return false;
    }
    return true;
}

/* A file that has changed can no longer restore what was read from it. */
static void keep_what_is_lost(struct ms_allocation *allocation)
{
    static const struct ms_content resident = {.kind = MS_RESIDENT};
    for (size_t at = 0; at < allocation->bytes;) {
        const struct ms_extent extent = ms_lineage_at(&allocation->lineage, at);
        at = extent.end;
        if (extent.content.cached && !ms_content_is_current(&extent.content))
            ms_lineage_set(&allocation->lineage, extent.begin, extent.end, &resident);
    }
}

/* The memory of blocks that were returned. */
static void give_up_dead(struct ms_allocation *allocation)
{
    static const struct ms_content dead = {.kind = MS_DEAD};
    const struct ms_blocks *blocks = &allocation->blocks;
    if (!blocks->carved || allocation->keeps_dead)
        return;
    for (size_t i = 0; i <= blocks->count; i++) {
        const size_t end = i < blocks->count ? blocks->ranges[i].begin : allocation->bytes;
        size_t at = i > 0 ? blocks->ranges[i - 1].end : 0;
        while (at < end) {
            const struct ms_extent extent = ms_lineage_at(&allocation->lineage, at);
            const size_t stop = extent.end < end ? extent.end : end;
            if (extent.content.kind == MS_RESIDENT)
                ms_lineage_set(&allocation->lineage, at, stop, &dead);
            at = stop;
        }
    }
}

/* The runs in which nothing is resident. The device has been waited for since the last change of its blocks,
 * and since what is cached was read last. */
static size_t evict(struct ms_allocation *allocation)
{
    size_t freed = 0;
    give_up_dead(allocation);
    keep_what_is_lost(allocation);
    ms_lineage_drop_caches(&allocation->lineage);
    size_t begin = 0;
    for (size_t i = 0; i < allocation->lineage.count; i++) {
        const struct ms_extent *extent = &allocation->lineage.extents[i];
        if (extent->content.kind != MS_RESIDENT)
            continue;
        freed += ms_backing_uncover(&allocation->backing, begin, extent->begin);
        begin = extent->end;
    }
    /* The last granule reaches behind the end of the allocation. */
    return freed + ms_backing_uncover(&allocation->backing, begin, allocation->backing.bytes);
}

static size_t evict_noted(struct ms_allocation *allocation, ms_evictor *evict_)
{
    const size_t freed = evict_(allocation);
    if (freed > 0)
        ms_note_event(MS_EVENT_EVICT, allocation, 0, freed, NULL);
    return freed;
}

/* The device is waited for before `evict` sees an allocation, and nothing has changed in it since. */
static size_t evict_some(CUdeviceptr *at, ms_evictor *evict_)
{
    struct candidate candidates[MAX_CANDIDATES];
    const size_t count = find_candidates(candidates, at);
    size_t freed = 0;
    if (count == 0 || !reads_are_queued() || !wait_for_contexts(candidates, count))
        return 0;
    for (size_t i = 0; i < count; i++) {
        struct ms_allocation *allocation = ms_space_try_claim(candidates[i].address);
        if (allocation != NULL && allocation->id == candidates[i].id &&
            allocation->reads == candidates[i].reads &&
            allocation->changes == candidates[i].changes)
            freed += evict_noted(allocation, evict_);
        ms_space_release(allocation);
    }
    ms_count(MS_COUNT_EVICTED_BYTES, freed);
    return freed;
}

size_t ms_pressure_evict(ms_evictor *evict_)
{
    size_t freed = 0;
    struct ms_block_facts facts;
    if (atomic_load_explicit(&ms_hot.captures, memory_order_relaxed) != 0)
        return 0;
    for (CUdeviceptr at = 0; ms_space_first_behind(at, &facts);)
        freed += evict_some(&at, evict_);
    return freed;
}

static bool relieve(void)
{
    const uint64_t began = ms_state_now();
    const size_t freed = ms_pressure_evict(evict);
    ms_state_event_for(MS_EVENT_PRESSURE, MS_REASON_PRESSURE, 0, 0, freed, began, NULL);
    if (freed > 0)
        ms_log(MS_DEBUG, "device memory is out: %zu bytes that can be restored were given back",
               freed);
    return freed > 0;
}

bool ms_try_again(CUresult result, int *attempts)
{
    enum { MAX_ATTEMPTS = 3 };
    if (result != CUDA_ERROR_OUT_OF_MEMORY || !ms_owns_any())
        return false;
    if (++*attempts < MAX_ATTEMPTS && relieve())
        return true;
    ms_state_event_for(MS_EVENT_FAIL, MS_REASON_NO_MEMORY, 0, 0, 0, 0, NULL);
    return false;
}
