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
#include "runtime/fill/replay.h"
#include "runtime/fill/scratch.h"
#include "runtime/fill/shadow.h"
#include "runtime/memory/allocation.h"
#include "runtime/memory/carve.h"
#include "runtime/fill/delayed_free.h"
#include "runtime/memory/publish.h"
#include "runtime/memory/recorded_launch.h"
#include "runtime/state/caller.h"
#include "runtime/state/counters.h"

enum { MAX_CANDIDATES = 256, PATIENCE = 10000 };

/* Counts reads that are prepared and may not have reached the driver yet. */
static _Atomic uint32_t reads_in_call;

void ms_evict_hold(void)
{
    atomic_fetch_add(&reads_in_call, 1);
}

void ms_evict_let_go(void)
{
    atomic_fetch_sub(&reads_in_call, 1);
}

struct candidate {
    CUdeviceptr address;
    uint64_t id;
    uint32_t touches;
    CUcontext context;
};

/* One way to free memory: for which allocations, after which wait, and how. */
struct way {
    bool (*applies)(const struct ms_allocation *allocation);
    bool (*wait_for)(CUcontext context);
    ms_evictor *evict;
    void *argument; /* for evict */
};

static bool can_restore(const struct ms_allocation *allocation)
{
    const struct ms_lineage *lineage = ms_allocation_lineage(allocation);
    return ms_backing_bytes(ms_allocation_backing(allocation)) > 0 &&
           (lineage->resident_bytes < lineage->bytes ||
            (ms_carve_has_begun(allocation) && !allocation->notes.keeps_dead));
}

static bool has_dead(const struct ms_allocation *allocation)
{
    return ms_carve_dead(allocation, 0, allocation->bytes) > 0;
}

/* Ends the allocation's ready blocks, so that each later change of a block is a touch. */
static struct candidate candidate_of(struct ms_allocation *allocation)
{
    ms_carve_settle(allocation, 0, allocation->bytes);
    return (struct candidate){.address = allocation->address,
                              .id = allocation->id,
                              .touches = allocation->notes.touches,
                              .context = allocation->context};
}

/* Lists candidates from *at on, and moves *at behind the last. */
static size_t find_candidates(const struct way *way, struct candidate *candidates, CUdeviceptr *at)
{
    size_t count = 0;
    struct ms_allocation_facts facts;
    while (count < MAX_CANDIDATES && ms_space_first_behind(*at, &facts)) {
        *at = facts.address + facts.bytes;
        MS_CLAIMED struct ms_allocation *allocation = ms_space_try_claim(facts.address);
        if (allocation != NULL && way->applies(allocation))
            candidates[count++] = candidate_of(allocation);
    }
    return count;
}

bool ms_evict_reads_are_queued(void)
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
    return ms_order_context_wait(context) == CUDA_SUCCESS;
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

bool ms_evict_is_pinned(const struct ms_backing *backing, size_t offset, size_t *end)
{
    const struct ms_chunk *chunk = ms_backing_chunk(backing, offset);
    const bool is_in = chunk != NULL && chunk->begin <= offset;
    const size_t stop = chunk == NULL ? *end : is_in ? chunk->end : chunk->begin;
    *end = stop < *end ? stop : *end;
    return is_in && chunk->is_pinned;
}

static size_t evict(struct ms_allocation *allocation, void *argument)
{
    (void)argument;
    ms_compare(allocation, 0, allocation->bytes, MS_COMPARE_CACHED);
    return ms_carve_give_back(allocation, ms_replay_is_current);
}

static size_t evict_dead(struct ms_allocation *allocation, void *argument)
{
    (void)argument;
    return ms_carve_give_back(allocation, NULL);
}

/* Waits for the device, then evicts each allocation that nothing has begun to use since, and whose
 * blocks have not changed. */
static size_t evict_candidates(const struct way *way, const struct candidate *candidates,
                               size_t count)
{
    size_t freed = 0;
    if (count == 0 || !ms_evict_reads_are_queued() || !wait_for_contexts(way, candidates, count))
        return 0;
    for (size_t i = 0; i < count; i++) {
        MS_CLAIMED struct ms_allocation *allocation = ms_space_try_claim(candidates[i].address);
        if (allocation == NULL || allocation->id != candidates[i].id ||
            allocation->notes.touches != candidates[i].touches)
            continue;
        const size_t bytes = way->evict(allocation, way->argument);
        if (bytes > 0)
            ms_publish_event(MS_EVENT_EVICT, allocation, 0, bytes, NULL);
        freed += bytes;
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
    const struct way way = {applies != NULL ? applies : can_restore, wait_for, evict_, argument};
    return evict_all(&way);
}

static _Atomic uint64_t trimmed_bytes; /* in the life of the process */

static bool is_idle(CUcontext context)
{
    return ms_order_context_poll(context) == CUDA_SUCCESS;
}

static const struct way trimming = {has_dead, is_idle, evict_dead, NULL};

/*
 * Freeing returned blocks saves much memory while a program makes its model. A program that trains
 * wants all of that memory again, in the next launches. So trimming ends once it has cost more than
 * an eighth of the program's memory (ms_space_sums). It also ends once it has freed TIMES the
 * program's memory, because the program would never settle otherwise.
 */
static bool may_trim(void)
{
    enum { TIMES = 4, PART = 8 };
    uint64_t live = 0;
    int64_t gain = 0;
    for (CUdevice device = 0; device < MS_MAX_DEVICES; device++) {
        const struct ms_space_sums sums = ms_space_sums(device);
        live += sums.live;
        gain += sums.trim_gain;
    }
    const bool may =
        atomic_load(&trimmed_bytes) < TIMES * live && gain + (int64_t)(live / PART) >= 0;
    if (!may)
        ms_keep_memory();
    return may;
}

static void trim_all(void)
{
    /* After a try that freed nothing, trims only when there is more dead memory. */
    static _Atomic uint64_t enough;
    const uint64_t before = ms_carve_dead_memory();
    if (before <= ms_config.dead_bytes || before <= atomic_load(&enough) || !may_trim())
        return;
    atomic_fetch_add(&trimmed_bytes, evict_all(&trimming));
    const uint64_t after = ms_carve_dead_memory();
    atomic_store(&enough, after < before ? 0 : after + ms_config.dead_bytes);
}

static bool find_candidate(CUdeviceptr address, struct candidate *candidate_out)
{
    MS_CLAIMED struct ms_allocation *allocation = ms_space_try_claim(address);
    if (allocation != NULL)
        *candidate_out = candidate_of(allocation);
    return allocation != NULL;
}

void ms_evict_dead(CUdeviceptr address)
{
    struct candidate candidate;
    if (address == 0)
        trim_all();
    else if (may_trim() && find_candidate(address, &candidate))
        atomic_fetch_add(&trimmed_bytes, evict_candidates(&trimming, &candidate, 1));
}

/* Scratch memory goes first, because the sink is mapped in it. */
bool ms_evict_drop_sinks(void)
{
    bool any = ms_scratch_drop();
    for (CUdevice device = 0; device < MS_MAX_DEVICES; device++)
        any = ms_backing_drop_sink(device) || any;
    return any;
}

static bool relieve(void)
{
    const uint64_t began = ms_state_now();
    const bool is_unburied = ms_delayed_free_run(NULL);
    const bool is_dropped = ms_evict_drop_sinks();
    const size_t freed = ms_evict_all(NULL, evict, NULL) + ms_shadow_give_up();
    ms_state_event(&(struct ms_event){
        .kind = MS_EVENT_PRESSURE, .reason = MS_REASON_PRESSURE, .bytes = freed, .began = began});
    if (freed > 0)
        ms_log(MS_DEBUG, "out of device memory: %zu bytes that can be restored were freed", freed);
    return freed > 0 || is_unburied || is_dropped;
}

bool ms_evict_try_again(CUresult result, int *attempts)
{
    enum { MAX_ATTEMPTS = 3 };
    if (result != CUDA_ERROR_OUT_OF_MEMORY || !ms_owns_any())
        return false;
    if (++*attempts < MAX_ATTEMPTS && relieve())
        return true;
    ms_state_event(&(struct ms_event){.kind = MS_EVENT_FAIL, .reason = MS_REASON_NO_MEMORY});
    return false;
}

/* True if bytes of files or snapshots are sent to make some of the allocation again. */
static bool has_sources(const struct ms_allocation *allocation)
{
    struct ms_extent extent;
    bool has = ms_allocation_lineage(allocation)->kind_bytes[MS_SOURCE] > 0;
    for (size_t at = 0; !has && ms_lineage_next(ms_allocation_lineage(allocation), &at,
                                                allocation->bytes, &extent);)
        has = extent.content.kind == MS_LAUNCHED && extent.content.recorded->has_sources;
    return has;
}

/* Leaves allocations for which bytes would be sent again. */
static bool can_make_again(const struct ms_allocation *allocation)
{
    return can_restore(allocation) && !has_sources(allocation);
}

static size_t evict_enough(struct ms_allocation *allocation, void *argument)
{
    struct ms_scratch_refusal *refusal = argument;
    if (refusal->bytes == 0 || allocation->device != refusal->device)
        return 0;
    const size_t freed = evict(allocation, NULL);
    refusal->bytes -= freed < refusal->bytes ? freed : refusal->bytes;
    return freed;
}

bool ms_evict_for_scratch(CUresult result, int *attempts)
{
    enum { MAX_ATTEMPTS = 3 };
    struct ms_scratch_refusal refusal = ms_scratch_take_refusal();
    if (refusal.bytes == 0 || result != CUDA_ERROR_OUT_OF_MEMORY)
        return false;
    const bool any = evict_all(&(struct way){can_make_again, is_idle, evict_enough, &refusal}) > 0;
    ms_scratch_may_refuse(any && ++*attempts < MAX_ATTEMPTS);
    return true;
}

/* Says a failure once: a program that polls fails in the same call over and over. */
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

bool ms_evict_try_bytes_again(CUresult result, int *attempts)
{
    if (ms_evict_try_again(result, attempts))
        return true;
    if (result != CUDA_ERROR_OUT_OF_MEMORY)
        return false;
    ms_overcommit_note(MS_OVERCOMMIT_FAILED, 0, 0);
    if (is_news())
        ms_log(MS_ERROR, "%s fails: there is no memory for the bytes that it needs",
               ms_caller != NULL ? ms_caller : "a call");
    return false;
}
