/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/fill/settle.h"

#include <stdbool.h>
#include <stdint.h>

#include "runtime/base/log.h"
#include "runtime/driver/flags.h"
#include "runtime/fill/access.h"
#include "runtime/fill/overcommit.h"
#include "runtime/fill/prefetch.h"
#include "runtime/fill/scratch.h"
#include "runtime/memory/publish.h"
#include "runtime/shard/shard.h"
#include "runtime/state/counters.h"
#include "runtime/state/why.h"
#include "runtime/state/window.h"

/* Goes on after a failure, so that an allocation whose bytes are lost does not keep the others
 * deferred. Stops where memory is short: allocations would only take it from each other. */
static bool materialise_all(void)
{
    bool all = true;
    CUdeviceptr at = 0;
    CUresult result = CUDA_SUCCESS;
    struct ms_allocation_facts facts;
    while (result != CUDA_ERROR_OUT_OF_MEMORY && ms_space_first_behind(at, &facts)) {
        at = facts.address + facts.bytes;
        result = ms_access(facts.address, facts.bytes, MS_NEED_KEEP);
        all = result == CUDA_SUCCESS && all;
    }
    return all;
}

static uint64_t count_deferred(void)
{
    uint64_t count = 0;
    struct ms_allocation *allocation = NULL;
    while ((allocation = ms_space_walk(allocation)) != NULL)
        count +=
            ms_lineage_any(ms_allocation_lineage(allocation), 0, allocation->bytes, MS_WANTING);
    return count;
}

/* False: something stays deferred. */
static bool fill(const char *why)
{
    MS_WHY const struct ms_why reason = ms_why_begin(MS_REASON_SETTLE);
    const bool passed = ms_prefetch_run(why);
    const bool is_good = materialise_all() && passed && !ms_defers_any();
    ms_scratch_drop();
    return is_good;
}

/* Fills, counts and publishes. False: something stays deferred. */
static bool settle(const char *why)
{
    const uint64_t allocations = count_deferred();
    const uint64_t began = ms_state_now(), before = ms_counter_get(MS_COUNT_MATERIALISED_BYTES);
    const bool is_good = fill(why);
    const uint64_t left = count_deferred();
    ms_counter_add(MS_COUNT_SETTLED_ALLOCATIONS, allocations > left ? allocations - left : 0);
    ms_state_event(&(struct ms_event){.kind = MS_EVENT_SETTLE,
                                      .reason = MS_REASON_SETTLE,
                                      .bytes = ms_counter_get(MS_COUNT_MATERIALISED_BYTES) - before,
                                      .began = began,
                                      .text = why});
    return is_good;
}

void ms_settle_now(const char *why)
{
    if (!ms_defers_any())
        return;
    ms_log(MS_DEBUG, "settling: %s", why);
    ms_counter_add(MS_COUNT_SETTLES, 1);
    ms_window_end(false);
    ms_overcommit_note(MS_OVERCOMMIT_SETTLED, 0, 0);
    if (settle(why))
        return;
    /* Remote bytes stay deferred. */
    ms_window_end(true);
    if (!ms_shard_is_active())
        ms_log(MS_INFO, "not everything could be materialised while settling; it stays deferred");
}
