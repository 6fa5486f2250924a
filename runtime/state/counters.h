/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Figures of the shim, for the summary line and the state page. They are relaxed atomics: a reader
 * may see one figure ahead of another. h2d_bytes counts the copies to the device that the shim
 * itself makes, without the program's copies that it forwards.
 *
 * Figures are the counters, which only grow, followed by the gauges.
 */
#pragma once

#include <stdatomic.h>
#include <stdint.h>

enum ms_counter {
#define MS_COUNTER(id, name) MS_COUNT_##id,
#include "runtime/state/counters.def"
#undef MS_COUNTER
    MS_COUNTER_COUNT
};

enum ms_gauge {
    MS_GAUGE_BACKED = MS_COUNTER_COUNT, /* physical device bytes behind deferred allocations */
    MS_GAUGE_BACKED_PEAK,
    MS_GAUGE_LIVE, /* requested, and not freed yet */
    MS_GAUGE_LIVE_PEAK,
    MS_GAUGE_DEFERRED,         /* live bytes that are not in device memory */
    MS_GAUGE_SNAPSHOT,         /* host bytes that snapshots occupy */
    MS_GAUGE_BLOCKS,           /* live allocations and their parts */
    MS_GAUGE_BLOCKS_OUT,       /* blocks without a record in the state page */
    MS_GAUGE_LOADED_PEAK,      /* MS_GAUGE_BACKED_PEAK after loading; state.c sets it */
    MS_GAUGE_LOADED_LIVE_PEAK, /* MS_GAUGE_LIVE_PEAK after loading */
    MS_GAUGE_LOADED_NS,        /* when loading ended, since the page was made */
    MS_GAUGE_CHANGED_NS, /* when a block changed last, since the page was made; state.c sets it */
    MS_FIGURE_COUNT
};

enum { MS_COUNTER_NAME_BYTES = 32 };
extern const char ms_counter_names[MS_FIGURE_COUNT][MS_COUNTER_NAME_BYTES];

void ms_counter_add(enum ms_counter counter, uint64_t amount);

/* The figures, for code that must cost next to nothing. Not in a forked child. */
extern _Atomic(_Atomic uint64_t *) ms_counter_figures;

/* Changes a gauge. A gauge's peak, which is the figure behind it, follows. */
void ms_counter_move(enum ms_gauge gauge, int64_t change);

uint64_t ms_counter_get(unsigned figure); /* a counter or a gauge */

/* Moves the figures to `values`, MS_FIGURE_COUNT zeros that are never freed, while ms_hot.recorded
 * is set. It is not set in a forked child, where the values belong to the parent. */
void ms_counters_share(_Atomic uint64_t *values);
