/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/state/counters.h"

#include <stddef.h>

#include "runtime/driver/flags.h"

const char ms_counter_names[MS_FIGURE_COUNT][MS_COUNTER_NAME_BYTES] = {
#define MS_COUNTER(id, name) #name,
#include "runtime/state/counters.def"
#undef MS_COUNTER
    [MS_GAUGE_BACKED] = "backed_bytes",
    [MS_GAUGE_BACKED_PEAK] = "backed_bytes_peak",
    [MS_GAUGE_LIVE] = "live_bytes",
    [MS_GAUGE_LIVE_PEAK] = "live_bytes_peak",
    [MS_GAUGE_DEFERRED] = "deferred_bytes",
    [MS_GAUGE_SNAPSHOT] = "snapshot_bytes",
    [MS_GAUGE_BLOCKS] = "blocks_live",
    [MS_GAUGE_BLOCKS_OUT] = "blocks_left_out",
    [MS_GAUGE_LOADED_PEAK] = "loaded_backed_bytes_peak",
    [MS_GAUGE_LOADED_LIVE_PEAK] = "loaded_live_bytes_peak",
    [MS_GAUGE_LOADED_NS] = "loaded_ns",
    [MS_GAUGE_CHANGED_NS] = "changed_ns",
};

static _Atomic uint64_t own[MS_FIGURE_COUNT];
_Atomic(_Atomic uint64_t *) ms_counter_figures = own; /* or shared ones */

static _Atomic uint64_t *figures(void)
{
    _Atomic uint64_t *values = atomic_load_explicit(&ms_counter_figures, memory_order_acquire);
    return ms_is_recorded() ? values : own;
}

/* May miss what another thread counts just now: at most a lookup, as nothing is deferred yet. */
void ms_counters_share(_Atomic uint64_t *values)
{
    for (int i = 0; i < MS_FIGURE_COUNT; i++)
        atomic_store(&values[i], atomic_load(&own[i]));
    atomic_store_explicit(&ms_counter_figures, values, memory_order_release);
}

void ms_counter_add(enum ms_counter counter, uint64_t amount)
{
    atomic_fetch_add_explicit(&figures()[counter], amount, memory_order_relaxed);
}

uint64_t ms_counter_get(unsigned figure)
{
    return atomic_load_explicit(&figures()[figure], memory_order_relaxed);
}

void ms_counter_move(enum ms_gauge gauge, int64_t change)
{
    _Atomic uint64_t *value = &figures()[gauge], *peak_value = value + 1;
    if (gauge != MS_GAUGE_BACKED && gauge != MS_GAUGE_LIVE) {
        atomic_fetch_add_explicit(value, (uint64_t)change, memory_order_relaxed);
        return;
    }
    const uint64_t now = atomic_fetch_add(value, (uint64_t)change) + (uint64_t)change;
    uint64_t peak = atomic_load(peak_value);
    while (now > peak && !atomic_compare_exchange_weak(peak_value, &peak, now))
        ;
}
