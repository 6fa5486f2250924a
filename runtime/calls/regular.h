/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Regular allocations: of a size that the program allocates and frees again and again, and that
 * saves no memory when deferred. The driver serves as many of them as the program had at once, and
 * the shim only counts, in a few instructions. Together they never exceed MS_REGULAR_BYTES.
 *
 * The driver would give them memory that the shim has promised to others. So it serves them only
 * while all promises have memory. Before that they are deferred, but do not keep the window open.
 *
 * Every so often the shim defers a regular allocation all the same. If that saves memory, the size
 * is regular no more: a program that begins to load loses at most as much again as it used before.
 */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "runtime/driver/driver.h"
#include "runtime/driver/flags.h"
#include "runtime/memory/space.h"

#define MS_REGULAR_BYTES ((size_t)64 << 20)

/* A size has one place. An address has the choice of a few places; if all are taken, the shim
 * forgets the driver's allocation. */
enum {
    MS_REGULAR_SIZE_BITS = 4,
    MS_REGULAR_SET_BITS = 6,
    MS_REGULAR_WAYS = 4,
    MS_REGULAR_SIZES = 1 << MS_REGULAR_SIZE_BITS,
    MS_REGULAR_PLACES = MS_REGULAR_WAYS << MS_REGULAR_SET_BITS
};

struct ms_regular_size {
    _Atomic size_t bytes;  /* 0: an empty place */
    _Atomic int32_t room;  /* how many more the driver may serve at once */
    _Atomic int32_t turn;  /* how many more the driver serves before one is deferred */
    _Atomic int32_t turns; /* the value that `turn` begins with */
};

struct ms_regular_place {
    _Atomic CUdeviceptr address; /* 0: none; MS_REGULAR_TAKING: it is being written */
    struct ms_regular_size *size;
};
#define MS_REGULAR_TAKING ((CUdeviceptr)1)

/* Changed by any thread, without a lock. */
extern struct ms_regular {
    struct ms_regular_size sizes[MS_REGULAR_SIZES];
    struct ms_regular_place places[MS_REGULAR_PLACES];
} ms_regular;

static inline unsigned ms_regular_hash(uint64_t value, unsigned bits)
{
    return (unsigned)(value * UINT64_C(0x9e3779b97f4a7c15) >> (64 - bits));
}

/* Counts one more allocation of the size, and returns its place; NULL: the driver may not serve
 * it. */
static inline struct ms_regular_size *ms_regular_take(size_t bytes)
{
    struct ms_regular_size *one = &ms_regular.sizes[ms_regular_hash(bytes, MS_REGULAR_SIZE_BITS)];
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

/* Undoes ms_regular_take: the driver did not serve the allocation, or the program freed it. */
static inline void ms_regular_put(struct ms_regular_size *one)
{
    atomic_fetch_add_explicit(&one->room, 1, memory_order_relaxed);
}

/* The driver has served an allocation of the size at this address. */
static inline void ms_regular_serve(struct ms_regular_size *one, CUdeviceptr address)
{
    struct ms_regular_place *const set =
        &ms_regular.places[MS_REGULAR_WAYS * ms_regular_hash(address, MS_REGULAR_SET_BITS)];
    for (unsigned way = 0; way < MS_REGULAR_WAYS; way++) {
        CUdeviceptr none = 0;
        if (atomic_compare_exchange_strong_explicit(&set[way].address, &none, MS_REGULAR_TAKING,
                                                    memory_order_acquire, memory_order_relaxed)) {
            set[way].size = one;
            atomic_store_explicit(&set[way].address, address, memory_order_release);
            return;
        }
    }
    ms_regular_put(one);
}

/* The program frees the address. True if the driver has served it as regular; forgets the address
 * then. Not in a forked child. */
static inline bool ms_regular_free(CUdeviceptr address)
{
    struct ms_regular_place *const set =
        &ms_regular.places[MS_REGULAR_WAYS * ms_regular_hash(address, MS_REGULAR_SET_BITS)];
    for (unsigned way = 0; way < MS_REGULAR_WAYS; way++) {
        CUdeviceptr expected = address;
        if (atomic_load_explicit(&set[way].address, memory_order_acquire) != address ||
            address <= MS_REGULAR_TAKING)
            continue;
        struct ms_regular_size *const one = set[way].size;
        if (atomic_compare_exchange_strong_explicit(&set[way].address, &expected, 0,
                                                    memory_order_relaxed, memory_order_relaxed)) {
            ms_regular_put(one);
            return true;
        }
    }
    return false;
}

/* True if deferring the next allocation of that size is no sign of a program that loads. */
bool ms_regular_expects(size_t bytes);

/* An allocation of that size was deferred (begin), or such an allocation was freed (end).
 * has_saved: it needed less memory than the driver's, or must be counted so for another reason. */
void ms_regular_begin(size_t bytes);
void ms_regular_end(size_t bytes, bool has_saved);

/* A context has ended, and the regular allocations that the driver had served in it. */
void ms_regular_forget(void);
