/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/driver/quiesce.h"

#include <stdatomic.h>
#include <time.h>

#include "runtime/base/clock.h"
#include "runtime/base/lock.h"

_Thread_local bool ms_quiesce_is_counted = false;

enum { UNKNOWN_MS = 10, UNCOUNTED_MS = 100 };

/* Held while calls are held up: held-up calls wait by taking the lock. */
static struct ms_lock door = MS_LOCK_INIT(quiesce);

/* Set in the thread that holds calls up: in its calls the driver may call the shim's entries. */
static _Thread_local bool is_exempt __attribute__((tls_model("initial-exec")));

static _Atomic bool is_closed;
static _Atomic bool has_uncounted; /* calls that began before counting may be under way */
static _Atomic uint32_t calls;

void ms_quiesce_start(void)
{
    atomic_fetch_or(&ms_hot.deferred, MS_HOT_COUNTED);
}

/* A call is counted before it reads is_closed, and is_closed is set before `calls` is read, so one
 * of the two sees the other. */
void ms_quiesce_enter(void)
{
    if (is_exempt)
        return;
    while (atomic_fetch_add(&calls, 1), atomic_load(&is_closed)) {
        atomic_fetch_sub(&calls, 1);
        ms_lock_take(&door);
        ms_lock_drop(&door);
    }
    ms_quiesce_is_counted = true;
}

void ms_quiesce_leave(void)
{
    ms_quiesce_is_counted = false;
    atomic_fetch_sub(&calls, 1);
}

static bool wait_for_calls(uint64_t ms)
{
    static const struct timespec moment = {.tv_nsec = 50 * 1000};
    const uint64_t until = ms_clock_ns(CLOCK_MONOTONIC) + ms * MS_NS_PER_MS;
    while (atomic_load(&calls) != 0 && ms_clock_ns(CLOCK_MONOTONIC) < until)
        nanosleep(&moment, NULL);
    return atomic_load(&calls) == 0;
}

/* Gives uncounted calls time to reach the driver; or, after a failure, gives held-up calls time to
 * go on, because calls under way may wait for them. */
static void wait_a_moment(long ms)
{
    const struct timespec moment = {.tv_nsec = ms * MS_NS_PER_MS};
    nanosleep(&moment, NULL);
}

MS_LOCK_ATTRIBUTE(no_thread_safety_analysis)
bool ms_quiesce_begin(uint64_t ms)
{
    if (ms_quiesce_is_counted)
        ms_quiesce_leave();
    ms_lock_take(&door);
    is_exempt = true;
    if (!ms_counts_calls())
        atomic_store(&has_uncounted, true);
    ms_quiesce_start();
    atomic_store(&is_closed, true);
    const bool is_quiet = wait_for_calls(ms);
    if (is_quiet) {
        wait_a_moment(atomic_exchange(&has_uncounted, false) ? UNCOUNTED_MS : UNKNOWN_MS);
    } else {
        ms_quiesce_end();
        wait_a_moment(1);
    }
    return is_quiet;
}

MS_LOCK_ATTRIBUTE(no_thread_safety_analysis)
void ms_quiesce_end(void)
{
    atomic_store(&is_closed, false);
    is_exempt = false;
    ms_lock_drop(&door);
}
