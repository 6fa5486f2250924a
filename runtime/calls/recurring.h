/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Recurring allocations: of a size that the program allocates and frees again and again, and that
 * saves no memory when deferred. The driver serves as many of them as the program had at once, and
 * the shim only counts, in a few instructions. Together they never exceed MS_RECURRING_BYTES.
 *
 * The driver would give them memory that the shim has promised to others. So it serves them only
 * while all promises have memory. Before that they are deferred, but do not keep the window open.
 *
 * Every so often the shim defers a recurring allocation all the same. If that saves memory, the
 * size does not recur any more: a program that begins to load loses at most as much again as it
 * used before.
 */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "runtime/driver/driver.h"
#include "runtime/driver/flags.h"
#include "runtime/memory/space.h"

#define MS_RECURRING_BYTES ((size_t)64 << 20)

/* A size has one place. An address has the choice of a few places; if all are taken, the shim
 * forgets the driver's allocation. */
enum {
    MS_RECURRING_SIZE_BITS = 4,
    MS_RECURRING_SET_BITS = 6,
    MS_RECURRING_WAYS = 4,
    MS_RECURRING_SIZES = 1 << MS_RECURRING_SIZE_BITS,
    MS_RECURRING_PLACES = MS_RECURRING_WAYS << MS_RECURRING_SET_BITS
};

struct ms_recurring_size {
    _Atomic size_t bytes;  /* 0: an empty place */
    _Atomic int32_t room;  /* how many more the driver may serve at once */
    _Atomic int32_t turn;  /* how many more the driver serves before one is deferred */
    _Atomic int32_t turns; /* the value that `turn` begins with */
};

struct ms_recurring_place {
    _Atomic CUdeviceptr address; /* 0: none; MS_RECURRING_TAKING: it is being written */
    struct ms_recurring_size *size;
};
#define MS_RECURRING_TAKING ((CUdeviceptr)1)

/* Changed by any thread, without a lock. */
extern struct ms_recurring {
    struct ms_recurring_size sizes[MS_RECURRING_SIZES];
    struct ms_recurring_place places[MS_RECURRING_PLACES];
} ms_recurring;

static inline unsigned ms_recurring_hash(uint64_t value, unsigned bits)
{
    return (unsigned)(value * UINT64_C(0x9e3779b97f4a7c15) >> (64 - bits));
}

/* Counts one more allocation of the size, and returns its place; NULL: the driver may not serve
 * it. */
static inline struct ms_recurring_size *ms_recurring_take(size_t bytes)
{
    struct ms_recurring_size *one =
        &ms_recurring.sizes[ms_recurring_hash(bytes, MS_RECURRING_SIZE_BITS)];
    if (atomic_load_explicit(&one->room, memory_order_relaxed) <= 0 ||
        atomic_load_explicit(&one->bytes, memory_order_relaxed) != bytes || !ms_is_started() ||
        ms_defers_any() || ms_space_owes_memory() ||
        atomic_fetch_sub_explicit(&one->turn, 1, memory_order_relaxed) <= 0)
        return NULL;
    if (atomic_fetch_sub_explicit(&one->room, 1, memory_order_relaxed) > 0)
        return one;
    atomic_fetch_add_explicit(&one->room, 1, memory_order_relaxed);
    return NULL;
}

/* Undoes ms_recurring_take: the driver did not serve the allocation, or the program freed it. */
static inline void ms_recurring_put(struct ms_recurring_size *one)
{
    atomic_fetch_add_explicit(&one->room, 1, memory_order_relaxed);
}

/* The driver has served an allocation of the size at this address. */
static inline void ms_recurring_serve(struct ms_recurring_size *one, CUdeviceptr address)
{
    struct ms_recurring_place *const set =
        &ms_recurring.places[MS_RECURRING_WAYS * ms_recurring_hash(address, MS_RECURRING_SET_BITS)];
    for (unsigned way = 0; way < MS_RECURRING_WAYS; way++) {
        CUdeviceptr none = 0;
        if (atomic_compare_exchange_strong_explicit(&set[way].address, &none, MS_RECURRING_TAKING,
                                                    memory_order_acquire, memory_order_relaxed)) {
            set[way].size = one;
            atomic_store_explicit(&set[way].address, address, memory_order_release);
            return;
        }
    }
    ms_recurring_put(one);
}

/* The program frees the address. True if the driver has served it as recurring; forgets the address
 * then. Not in a forked child. */
static inline bool ms_recurring_free(CUdeviceptr address)
{
    struct ms_recurring_place *const set =
        &ms_recurring.places[MS_RECURRING_WAYS * ms_recurring_hash(address, MS_RECURRING_SET_BITS)];
    for (unsigned way = 0; way < MS_RECURRING_WAYS; way++) {
        CUdeviceptr expected = address;
        if (atomic_load_explicit(&set[way].address, memory_order_acquire) != address ||
            address <= MS_RECURRING_TAKING)
            continue;
        struct ms_recurring_size *const one = set[way].size;
        if (atomic_compare_exchange_strong_explicit(&set[way].address, &expected, 0,
                                                    memory_order_relaxed, memory_order_relaxed)) {
            ms_recurring_put(one);
            return true;
        }
    }
    return false;
}

/* True if deferring the next allocation of that size is no sign of a program that loads. */
bool ms_recurring_expects(size_t bytes);

/* An allocation of that size was deferred (begin), or such an allocation was freed (end).
 * has_saved: it needed less memory than the driver's, or must be counted so for another reason. */
void ms_recurring_begin(size_t bytes);
void ms_recurring_end(size_t bytes, bool has_saved);

/* A context has ended, and the recurring allocations that the driver had served in it. */
void ms_recurring_forget(void);
