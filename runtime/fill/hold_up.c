/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/fill/hold_up.h"

#include <inttypes.h>

#include "runtime/base/clock.h"
#include "runtime/config/config.h"
#include "runtime/driver/flags.h"
#include "runtime/fill/evict.h"
#include "runtime/fill/delayed_free.h"
#include "runtime/order/examining.h"

/* How long calls are held up at first, and at most, before they may go on: calls under way, and the
 * work of the device, may wait for them. */
enum { FIRST_MS = 10, MOST_MS = 10000 };

static bool is_quiet_within(uint64_t ms)
{
    return !ms_is_capturing() && ms_examining_end_within(ms) && !ms_has_late_payloads() &&
           ms_evict_reads_are_queued();
}

/* With patience: a busy machine takes longer than a few queries to end an event, also where nothing
 * is queued before it. */
bool ms_hold_up_is_quiet(void)
{
    return is_quiet_within(FIRST_MS);
}

/*
 * Waits for the device before it holds any call up, because the device's work may wait for a thread
 * of the program. Holds the program up longer each time, because a program may queue work faster
 * than the device does it.
 */
bool ms_hold_up_begin(struct ms_fault *fault)
{
    const uint64_t until = ms_clock_ns(CLOCK_MONOTONIC) + ms_config.suspend_ms * MS_NS_PER_MS;
    uint64_t now, patience_ms = FIRST_MS;
    do { /* at least once */
        now = ms_clock_ns(CLOCK_MONOTONIC);
        if (ms_is_capturing())
            return ms_fault_set(fault, "a stream of the program is being captured");
        if (!ms_examining_end_within(now < until ? (until - now) / MS_NS_PER_MS : 0))
            break;
        if (ms_quiesce_begin(patience_ms)) {
            if (is_quiet_within(patience_ms)) {
                ms_delayed_free_run(NULL);
                return true;
            }
            ms_quiesce_end();
        }
        patience_ms = 2 * patience_ms < MOST_MS ? 2 * patience_ms : MOST_MS;
    } while (now < until);
    return ms_fault_set(
        fault,
        "the device is still busy with the program's work, or a call of the program has "
        "not returned, after %" PRIu64 " ms (METASHARD_SUSPEND_MS)",
        ms_config.suspend_ms);
}
