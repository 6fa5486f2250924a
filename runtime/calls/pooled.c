/* SPDX-License-Identifier: Apache-2.0 */

#include "runtime/calls/pooled.h"

#include <stdatomic.h>
#include <stdint.h>

#include "runtime/state/window.h"

/* Bytes of allocations from pools. A race between threads moves a limit a little. */
static _Atomic uint64_t live_bytes;
static _Atomic uint64_t most_bytes;    /* that were live in this window */
static _Atomic uint64_t freed_bytes;   /* in this window, of those with memory */
static _Atomic uint64_t lasting_bytes; /* live, and not transient */
static _Atomic uint64_t settled_bytes; /* lasting when the window had ended; 0: not known */

bool ms_pooled_is_wanted(void)
{
    enum { FREED_PART = 8 }; /* with less the program has freed its model, as in overcommit.c */
    if (!ms_window_now().has_moved_on) {
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
    atomic_store(&freed_bytes, 0);
    return true;
}

bool ms_pooled_is_transient(size_t bytes)
{
    enum { TIMES = 4 }; /* as many as for leftovers in evict.c */
    const uint64_t most = atomic_load(&most_bytes);
    return atomic_load(&live_bytes) + bytes <= most && atomic_load(&freed_bytes) >= TIMES * most;
}

void ms_pooled_begin(size_t bytes, bool is_transient)
{
    const uint64_t live = atomic_fetch_add(&live_bytes, bytes) + bytes;
    if (live > atomic_load(&most_bytes))
        atomic_store(&most_bytes, live);
    if (!is_transient)
        atomic_fetch_add(&lasting_bytes, bytes);
}

/* What never had memory is what a program loads from; but in a loop that only sets it, it counts in
 * the end. */
void ms_pooled_end(size_t bytes, size_t backed_bytes, bool is_transient)
{
    enum { UNUSED_PART = 64 };
    atomic_fetch_sub(&live_bytes, bytes);
    atomic_fetch_add(&freed_bytes, backed_bytes + (bytes - backed_bytes) / UNUSED_PART);
    if (!is_transient)
        atomic_fetch_sub(&lasting_bytes, bytes);
}
