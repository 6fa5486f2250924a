/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/calls/pooled.h"

#include <stdatomic.h>
#include <stdint.h>

#include "runtime/state/window.h"

/* Bytes of allocations from pools. A race between threads moves a limit a little. */
static _Atomic uint64_t live_bytes;
static _Atomic uint64_t most_bytes;    /* that were live in this window */
static _Atomic uint64_t lasting_bytes; /* live, and not transient */
static _Atomic uint64_t settled_bytes; /* lasting when the window had ended; 0: not known */

bool ms_pooled_is_wanted(void)
{
    enum { FREED_PART = 8 }; /* with less the program has freed its model, as in overcommit.c */
    if (!ms_window_is_settled()) {
        atomic_store_explicit(&settled_bytes, 0, memory_order_relaxed);
        return true;
    }
    const uint64_t lasting = atomic_load_explicit(&lasting_bytes, memory_order_relaxed);
    const uint64_t settled = atomic_load_explicit(&settled_bytes, memory_order_relaxed);
    if (settled == 0)
        atomic_store_explicit(&settled_bytes, lasting, memory_order_relaxed);
    if (lasting >= settled / FREED_PART)
        return false;
    atomic_store(&most_bytes, atomic_load(&live_bytes));
    return true;
}

bool ms_pooled_is_transient(size_t bytes)
{
    return atomic_load(&live_bytes) + bytes <= atomic_load(&most_bytes);
}

void ms_pooled_begin(size_t bytes, bool is_transient)
{
    const uint64_t live = atomic_fetch_add(&live_bytes, bytes) + bytes;
    if (live > atomic_load(&most_bytes))
        atomic_store(&most_bytes, live);
    if (!is_transient)
        atomic_fetch_add(&lasting_bytes, bytes);
}

void ms_pooled_end(size_t bytes, bool is_transient)
{
    atomic_fetch_sub(&live_bytes, bytes);
    if (!is_transient)
        atomic_fetch_sub(&lasting_bytes, bytes);
}
