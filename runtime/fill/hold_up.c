/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/fill/hold_up.h"

#include <inttypes.h>

#include "runtime/base/clock.h"
#include "runtime/config/config.h"
#include "runtime/driver/flags.h"
#include "runtime/driver/quiesce.h"
#include "runtime/fill/evict.h"
#include "runtime/memory/delayed_free.h"
#include "runtime/memory/examining.h"

/* How long calls are held up before those under way get on, for which they may wait. */
enum { QUIESCE_MS = 10 };

bool ms_hold_up_is_quiet(void)
{
    return !ms_is_capturing() && !ms_has_late_payloads() && ms_evict_reads_are_queued() &&
           ms_examining_end_within(0) == CUDA_SUCCESS;
}

static bool refuse_busy(struct ms_fault *fault)
{
    return ms_fault_set(fault,
                        "the device is still busy with the program's work after %" PRIu64
                        " ms (METASHARD_SUSPEND_MS)",
                        ms_config.suspend_ms);
}

/* No call is held up while the device is waited for: its work may wait for a thread of the program.
 */
bool ms_hold_up_begin(struct ms_fault *fault)
{
    const uint64_t until = ms_clock_ns(CLOCK_MONOTONIC) + ms_config.suspend_ms * MS_NS_PER_MS;
    uint64_t now;
    do { /* at least once */
        now = ms_clock_ns(CLOCK_MONOTONIC);
        if (ms_is_capturing())
            return ms_fault_set(fault, "a stream of the program is being captured");
        if (ms_examining_end_within(now < until ? (until - now) / MS_NS_PER_MS : 0) != CUDA_SUCCESS)
            break;
        if (!ms_quiesce_begin(QUIESCE_MS))
            continue;
        if (ms_hold_up_is_quiet()) {
            ms_delayed_free_run(NULL);
            return true;
        }
        ms_quiesce_end();
    } while (now < until);
    return refuse_busy(fault);
}

void ms_hold_up_end(void)
{
    ms_quiesce_end();
}
