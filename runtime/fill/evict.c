/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/fill/evict.h"

#include <sched.h>
#include <stdatomic.h>

#include "runtime/base/clock.h"
#include "runtime/base/log.h"
#include "runtime/config/config.h"
#include "runtime/driver/flags.h"
#include "runtime/fill/compare.h"
#include "runtime/fill/overcommit.h"
#include "runtime/fill/shadow.h"
#include "runtime/memory/space.h"
#include "runtime/memory/delayed_free.h"
#include "runtime/memory/order.h"
#include "runtime/memory/publish.h"
#include "runtime/memory/recorded_launch.h"
#include "runtime/state/caller.h"
#include "runtime/state/counters.h"

enum { MAX_CANDIDATES = 256, PATIENCE = 10000 };

/* Reads that were prepared and may not have reached the driver yet. */
static _Atomic uint32_t reads_in_call;

void ms_read_begin(void)
{
    atomic_fetch_add(&reads_in_call, 1);
}

void ms_read_end(void)
{
    atomic_fetch_sub(&reads_in_call, 1);
}

enum ms_need ms_need_in(const struct ms_allocation *allocation, enum ms_need need, CUstream stream)
{
    const enum ms_need elsewhere = ms_needs[need].elsewhere;
    return elsewhere == need || ms_stream_context(stream) == allocation->context ? need : elsewhere;
}

struct candidate {
    CUdeviceptr address;
    uint64_t id;
    uint32_t reads, changes;
    CUcontext context;
};

/* One way to free memory: of which allocations, after which wait, and how. */
struct way {
    bool (*applies)(const struct ms_allocation *allocation);
    bool (*wait_for)(CUcontext context);
    ms_evictor *evict;
    void *argument; /* for evict */
};

bool ms_evict_applies(const struct ms_allocation *allocation)
{
    return allocation->backing.backed_bytes > 0 &&
           (allocation->lineage.resident_bytes < allocation->lineage.bytes ||
            (allocation->blocks.carved && !allocation->keeps_dead));
}

static bool has_leftover(const struct ms_allocation *allocation)
{
    return allocation->leftover_bytes > 0;
}

static struct candidate candidate_of(const struct ms_allocation *allocation)
{
    return (struct candidate){.address = allocation->address,
                              .id = allocation->id,
                              .reads = allocation->reads,
                              .changes = allocation->changes,
                              .context = allocation->context};
}

/* From *at on, which is moved behind them. */
static size_t find_candidates(const struct way *way, struct candidate *candidates, CUdeviceptr *at)
{
    size_t count = 0;
    struct ms_allocation_facts facts;
    while (count < MAX_CANDIDATES && ms_space_first_behind(*at, &facts)) {
        *at = facts.address + facts.bytes;
        struct ms_allocation *allocation = ms_space_try_claim(facts.address);
        if (allocation == NULL)
            continue;
        if (way->applies(allocation))
            candidates[count++] = candidate_of(allocation);
        ms_space_release(allocation);
    }
    return count;
}

/* True once all reads that were prepared before now are queued. */
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
    return ms_context_wait(context) == CUDA_SUCCESS;
}

static bool wait_for_contexts(const struct way *way, const struct candidate *candidates,
                              size_t count)
{
    for (size_t i = 0; i < count; i++) {
        const bool done = i > 0 && candidates[i].context == candidates[i - 1].context;
        if (!done && !way->wait_for(candidates[i].context))
            return false;
    }
    return true;
}

/* A file that has changed can no longer restore what was read from it. */
static void keep_what_is_lost(struct ms_allocation *allocation)
{
    static const struct ms_content resident = {.kind = MS_RESIDENT};
    struct ms_extent extent;
    for (size_t at = 0; ms_lineage_next(&allocation->lineage, &at, allocation->bytes, &extent);) {
        if (extent.content.cached && !ms_content_is_current(&extent.content))
            ms_lineage_set(&allocation->lineage, extent.begin, extent.end, &resident);
    }
}

/* The first part of a resident range, unless others may use its memory. Returns its end. */
static size_t give_up_resident(struct ms_allocation *allocation, size_t begin, size_t end)
{
    static const struct ms_content dead = {.kind = MS_DEAD};
    size_t stop;
    const bool is_pinned = ms_backing_is_pinned(&allocation->backing, begin, &stop);
    if (stop > end)
        stop = end;
    if (!is_pinned)
        ms_lineage_set(&allocation->lineage, begin, stop, &dead);
    return stop;
}

/* The memory of blocks that were returned. */
static void give_up_dead(struct ms_allocation *allocation)
{
    const struct ms_blocks *blocks = &allocation->blocks;
    ms_space_set_leftover(allocation, 0);
    if (!blocks->carved || allocation->keeps_dead)
        return;
    size_t at = 0;
    struct ms_position next = {0, 0};
    for (const struct ms_block *block; at < allocation->bytes;
         at = block != NULL ? block->end : allocation->bytes) {
        block = ms_sorted_item(&blocks->all, next);
        next = ms_sorted_next(&blocks->all, next);
        const size_t end = block != NULL ? block->begin : allocation->bytes;
        while (at < end) {
            const struct ms_extent extent = ms_lineage_at(&allocation->lineage, at);
            size_t stop = extent.end < end ? extent.end : end;
            if (extent.content.kind == MS_RESIDENT)
                stop = give_up_resident(allocation, at, stop);
            at = stop;
        }
    }
}

/* The runs in which nothing is present. */
static size_t uncover(struct ms_allocation *allocation)
{
    size_t freed = 0, begin = 0;
    struct ms_walk walk = ms_walk_all(&allocation->lineage);
    for (const struct ms_extent *extent; (extent = ms_walk_next(&walk)) != NULL;) {
        if (!ms_content_is_present(&extent->content))
            continue;
        freed += ms_backing_uncover(&allocation->backing, begin, extent->begin);
        begin = extent->end;
    }
    /* The last granule reaches behind the end of the allocation. */
    return freed + ms_backing_uncover(&allocation->backing, begin, allocation->backing.bytes);
}

/* The device has been waited for since the last change of its blocks, and since what is cached was
 * read last. */
static size_t evict(struct ms_allocation *allocation, void *argument)
{
    (void)argument;
    give_up_dead(allocation);
    keep_what_is_lost(allocation);
    ms_compare(allocation, 0, allocation->bytes, MS_COMPARE_CACHED);
    ms_lineage_drop_caches(&allocation->lineage);
    return uncover(allocation);
}

static size_t evict_leftover(struct ms_allocation *allocation, void *argument)
{
    (void)argument;
    give_up_dead(allocation);
    return uncover(allocation);
}

static size_t evict_published(struct ms_allocation *allocation, const struct way *way)
{
    const size_t freed = way->evict(allocation, way->argument);
    if (freed > 0)
        ms_publish_event(MS_EVENT_EVICT, allocation, 0, freed, NULL);
    return freed;
}

/* The device is waited for before `evict` sees an allocation, and nothing has changed in it
 * since. */
static size_t evict_candidates(const struct way *way, const struct candidate *candidates,
                               size_t count)
{
    size_t freed = 0;
    if (count == 0 || !reads_are_queued() || !wait_for_contexts(way, candidates, count))
        return 0;
    for (size_t i = 0; i < count; i++) {
        struct ms_allocation *allocation = ms_space_try_claim(candidates[i].address);
        if (allocation != NULL && allocation->id == candidates[i].id &&
            allocation->reads == candidates[i].reads &&
            allocation->changes == candidates[i].changes)
            freed += evict_published(allocation, way);
        ms_space_release(allocation);
    }
    ms_counter_add(MS_COUNT_EVICTED_BYTES, freed);
    return freed;
}

static size_t evict_all(const struct way *way)
{
    size_t freed = 0;
    struct ms_allocation_facts facts;
    if (ms_is_capturing())
        return 0;
    for (CUdeviceptr at = 0; ms_space_first_behind(at, &facts);) {
        struct candidate candidates[MAX_CANDIDATES];
        const size_t count = find_candidates(way, candidates, &at);
        freed += evict_candidates(way, candidates, count);
    }
    return freed;
}

size_t ms_evict_all(bool (*applies)(const struct ms_allocation *allocation), ms_evictor *evict_,
                    void *argument)
{
    const struct way way = {applies, wait_for, evict_, argument};
    return evict_all(&way);
}

static _Atomic uint64_t trimmed_bytes; /* ever */
static const struct way trimming = {has_leftover, ms_context_is_idle, evict_leftover, NULL};

/*
 * While a model is made, freeing returned blocks saves much memory. A program that trains would do
 * so for ever, and never settle. So this ends once a few times the program's memory has been freed.
 */
static bool may_trim(void)
{
    enum { TIMES = 4 };
    uint64_t bytes = 0;
    for (CUdevice device = 0; device < MS_MAX_DEVICES; device++)
        bytes += ms_space_live_bytes(device);
    return atomic_load(&trimmed_bytes) < TIMES * bytes;
}

void ms_evict_leftover(void)
{
    /* If the last try freed nothing, the next one waits until there is more. */
    static _Atomic uint64_t enough;
    const uint64_t before = ms_space_leftover_bytes();
    if (before <= ms_config.leftover_bytes || before <= atomic_load(&enough) || !may_trim())
        return;
    atomic_fetch_add(&trimmed_bytes, evict_all(&trimming));
    const uint64_t after = ms_space_leftover_bytes();
    atomic_store(&enough, after < before ? 0 : after + ms_config.leftover_bytes);
}

void ms_evict_leftover_of(CUdeviceptr address)
{
    struct ms_allocation *allocation = may_trim() ? ms_space_try_claim(address) : NULL;
    if (allocation == NULL)
        return;
    const struct candidate candidate = candidate_of(allocation);
    ms_space_release(allocation);
    atomic_fetch_add(&trimmed_bytes, evict_candidates(&trimming, &candidate, 1));
}

static bool drop_sinks(void)
{
    bool any = false;
    for (CUdevice device = 0; device < MS_MAX_DEVICES; device++)
        any = ms_backing_drop_sink(device) || any;
    return any;
}

static bool relieve(void)
{
    const uint64_t began = ms_state_now();
    const bool is_unburied = ms_free_delayed(NULL);
    const bool is_dropped = drop_sinks();
    const size_t freed = ms_evict_all(ms_evict_applies, evict, NULL) + ms_shadow_give_up();
    ms_state_event_for(MS_EVENT_PRESSURE, MS_REASON_PRESSURE, 0, 0, freed, began, NULL);
    if (freed > 0)
        ms_log(MS_DEBUG, "out of device memory: %zu bytes that can be restored were freed", freed);
    return freed > 0 || is_unburied || is_dropped;
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

/* A program that polls fails in the same call over and over. */
static bool is_news(void)
{
    enum { QUIET_SECONDS = 10 };
    static const char *_Atomic last_caller;
    static _Atomic uint64_t last_ns;
    const uint64_t now = ms_clock_ns(CLOCK_MONOTONIC_COARSE);
    const uint64_t since = now - atomic_exchange(&last_ns, now);
    return atomic_exchange(&last_caller, ms_caller) != ms_caller ||
           since > (uint64_t)QUIET_SECONDS * MS_NS_PER_S;
}

bool ms_try_bytes_again(CUresult result, int *attempts)
{
    if (ms_try_again(result, attempts))
        return true;
    if (result != CUDA_ERROR_OUT_OF_MEMORY)
        return false;
    ms_overcommit_set_failed();
    if (is_news())
        ms_log(MS_ERROR, "%s fails: there is no memory for the bytes that it needs",
               ms_caller != NULL ? ms_caller : "a call");
    return false;
}
