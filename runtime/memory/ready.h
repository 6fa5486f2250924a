/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ready blocks: a caching allocator took the block back, all of it has memory, and nothing of its
 * allocation is deferred. Handing such a block out and taking it back changes nothing that a launch
 * could meet, so the shim only notes both here, in a few instructions: a program that trains does
 * little else.
 *
 * A caller that needs the true blocks calls ms_carve_settle first. An allocation loses its ready
 * blocks when something of it is deferred again, its dead memory is about to go back, or its
 * mappings change. From then on each report reaches carve.h.
 */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "runtime/driver/flags.h"
#include "runtime/memory/space.h"
#include "runtime/state/counters.h"

/* An address has the choice of MS_READY_WAYS places. Its block is not noted if all of them hold
 * blocks that are handed out. */
enum {
    MS_READY_WAYS = 4,
    MS_READY_SET_BITS = 10,
    MS_READY_PLACES = MS_READY_WAYS << MS_READY_SET_BITS
};

struct ms_ready {
    CUdeviceptr address; /* 0: an empty place */
    uint64_t room;       /* bytes from the address on that have memory */
    uint64_t bytes;      /* handed out; 0: the block is not handed out */
    uint32_t granule;
    uint16_t before, next; /* list of the blocks that are handed out, in order; 0: none */
};

/* Only a thread that has set is_busy changes this. A report waits for nobody. */
extern struct ms_ready_blocks {
    _Atomic bool is_busy, is_any; /* is_any: some block is, or was, ready */
    struct ms_ready
        all[1 + MS_READY_PLACES]; /* the first is no place: it begins and ends the list */
} ms_ready;

/* The first of the places that an address may have. */
static inline struct ms_ready *ms_ready_set(CUdeviceptr address)
{
    const uint64_t hash = address * UINT64_C(0x9e3779b97f4a7c15);
    return &ms_ready.all[1 + MS_READY_WAYS * (hash >> (64 - MS_READY_SET_BITS))];
}

/* The place of the address, or NULL. Most addresses have the first place of their set. */
static inline struct ms_ready *ms_ready_find(CUdeviceptr address)
{
    struct ms_ready *one = ms_ready_set(address);
    if (one->address == address)
        return one;
    for (const struct ms_ready *end = one++ + MS_READY_WAYS; one < end; one++) {
        if (one->address == address)
            return one;
    }
    return NULL;
}

/* Counts a block that is handed out. Needs no atomic addition: only a thread that has set is_busy
 * changes the figure. */
static inline void ms_ready_count(void)
{
    _Atomic uint64_t *const figure =
        atomic_load_explicit(&ms_counter_figures, memory_order_acquire) + MS_COUNT_BLOCKS;
    atomic_store_explicit(figure, atomic_load_explicit(figure, memory_order_relaxed) + 1,
                          memory_order_relaxed);
}

static inline void ms_ready_hand_out(struct ms_ready *one, uint64_t bytes)
{
    const uint16_t at = (uint16_t)(one - ms_ready.all), last = ms_ready.all[0].before;
    one->bytes = bytes;
    one->next = 0;
    one->before = last;
    ms_ready.all[last].next = at;
    ms_ready.all[0].before = at;
}

static inline void ms_ready_take_back(struct ms_ready *one)
{
    ms_ready.all[one->before].next = one->next;
    ms_ready.all[one->next].before = one->before;
    one->bytes = 0;
}

/*
 * Hands out the ready block at the address, with so many bytes; or, if bytes is not above 0, takes
 * it back. False: nothing was done. No block is ready while a stream is captured, or where memory
 * should go back rather than be handed out again.
 */
static inline __attribute__((always_inline)) bool ms_ready_report(CUdeviceptr address,
                                                                  int64_t bytes)
{
    bool is_noted = false;
    if (!atomic_load_explicit(&ms_ready.is_any, memory_order_relaxed) || ms_is_capturing() ||
        atomic_exchange_explicit(&ms_ready.is_busy, true, memory_order_acquire))
        return false;
    struct ms_ready *const one = ms_ready_find(address);
    if (one != NULL && one->bytes > 0) {
        is_noted = bytes <= 0;
        if (is_noted)
            ms_ready_take_back(one);
    } else if (one != NULL && bytes > 0 && (uint64_t)bytes <= one->room &&
               ((uint64_t)bytes < one->granule || ms_keeps_memory())) {
        ms_ready_hand_out(one, (uint64_t)bytes);
        ms_ready_count();
        is_noted = true;
    }
    atomic_store_explicit(&ms_ready.is_busy, false, memory_order_release);
    return is_noted;
}
