/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/diag/counters.h"

#include <stdatomic.h>

const char *const ms_counter_names[MS_COUNTER_COUNT] = {
#define MS_COUNTER(id, name) #name,
#include "runtime/diag/counters.def"
#undef MS_COUNTER
};

static _Atomic uint64_t counters[MS_COUNTER_COUNT];
static _Atomic uint64_t backed;
static _Atomic uint64_t backed_peak;

void ms_count(enum ms_counter counter, uint64_t amount)
{
    atomic_fetch_add_explicit(&counters[counter], amount, memory_order_relaxed);
}

uint64_t ms_counter_get(enum ms_counter counter)
{
    return atomic_load_explicit(&counters[counter], memory_order_relaxed);
}

void ms_count_backed(int64_t change)
{
    const uint64_t now = atomic_fetch_add(&backed, (uint64_t)change) + (uint64_t)change;
    uint64_t peak = atomic_load(&backed_peak);
    while (now > peak && !atomic_compare_exchange_weak(&backed_peak, &peak, now))
        ;
}

uint64_t ms_backed_bytes(void)
{
    return atomic_load(&backed);
}

uint64_t ms_backed_bytes_peak(void)
{
    return atomic_load(&backed_peak);
}
