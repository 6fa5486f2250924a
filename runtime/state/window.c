/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/state/window.h"

#include <stdatomic.h>
#include <stdint.h>

#include "runtime/base/clock.h"
#include "runtime/config/config.h"
#include "runtime/driver/flags.h"

/* Fewer launches than this do not show that the program has moved on, however long they take. */
enum { MIN_LAUNCHES = 64 };

static _Atomic uint64_t last_event_ms;
static _Atomic uint32_t launches_since;
static _Atomic bool in_vain;      /* settling left something; see ms_window_end */
static _Atomic bool is_settled;   /* settled, and no allocation was deferred since */
static _Atomic bool has_moved_on; /* settled because the program moved on, and for no other cause */

struct ms_window ms_window_now(void)
{
    return (struct ms_window){atomic_load_explicit(&is_settled, memory_order_relaxed),
                              atomic_load_explicit(&has_moved_on, memory_order_relaxed)};
}

void ms_window_open(void)
{
    atomic_store_explicit(&ms_hot.keeps_memory, 0, memory_order_relaxed);
    atomic_store_explicit(&has_moved_on, false, memory_order_relaxed);
    atomic_store_explicit(&is_settled, false, memory_order_relaxed);
    ms_window_extend();
}

static uint64_t now_ms(void)
{
    return ms_clock_ns(CLOCK_MONOTONIC_COARSE) / MS_NS_PER_MS;
}

static void start_waiting(void)
{
    atomic_store_explicit(&last_event_ms, now_ms(), memory_order_relaxed);
    atomic_store_explicit(&launches_since, 0, memory_order_relaxed);
}

void ms_window_extend(void)
{
    start_waiting();
    atomic_store_explicit(&in_vain, false, memory_order_relaxed);
}

bool ms_window_is_due(void)
{
    const uint32_t launches =
        atomic_fetch_add_explicit(&launches_since, 1, memory_order_relaxed) + 1;
    if (ms_config.settle_ms == 0 || launches < MIN_LAUNCHES ||
        atomic_load_explicit(&in_vain, memory_order_relaxed))
        return false;
    const uint64_t last = atomic_load_explicit(&last_event_ms, memory_order_relaxed);
    if (now_ms() - last < ms_config.settle_ms)
        return false;
    start_waiting(); /* so that other threads do not come here too */
    atomic_store_explicit(&has_moved_on, true, memory_order_relaxed);
    ms_window_end(false);
    return true;
}

void ms_window_end(bool is_in_vain)
{
    if (is_in_vain)
        atomic_store_explicit(&in_vain, true, memory_order_relaxed);
    atomic_store(&is_settled, true);
    ms_keep_memory();
}
