/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the shim counts, for the summary line and the dump. Relaxed atomics: a reader may see one
 * counter ahead of another. h2d_bytes counts what the shim itself copies to the device; a
 * program's own copies that are forwarded are not in it.
 */
#ifndef METASHARD_RUNTIME_DIAG_COUNTERS_H
#define METASHARD_RUNTIME_DIAG_COUNTERS_H

#include <stdint.h>

enum ms_counter {
#define MS_COUNTER(id, name) MS_COUNT_##id,
#include "runtime/diag/counters.def"
#undef MS_COUNTER
    MS_COUNTER_COUNT
};

extern const char *const ms_counter_names[MS_COUNTER_COUNT];

void ms_count(enum ms_counter counter, uint64_t amount);
uint64_t ms_counter_get(enum ms_counter counter);

/* Physical device bytes behind deferred allocations. */
void ms_count_backed(int64_t change);
uint64_t ms_backed_bytes(void);
uint64_t ms_backed_bytes_peak(void);

#endif
