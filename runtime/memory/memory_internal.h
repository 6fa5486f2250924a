/* SPDX-License-Identifier: Apache-2.0 */
/* The part of an allocation that only memory/ reads. */
#pragma once

#include "runtime/base/heap.h"
#include "runtime/base/lock.h"
#include "runtime/base/ranges.h"
#include "runtime/base/sorted.h"
#include "runtime/memory/space.h"
#include "runtime/state/state.h"

/* A block: offsets in its allocation, and its record in the state page. */
struct ms_block {
    uint64_t begin, end;
    struct ms_state_place place;
    uint32_t unpublished; /* changes since it was published (publish.c) */
};

/* The blocks of a carved allocation: sorted, without overlap. */
struct ms_blocks {
    bool uses_dead;       /* the program has used bytes outside of all blocks */
    struct ms_sorted all; /* struct ms_block */
};

/* The figures of an allocation that were last published. */
struct ms_published {
    struct ms_state_place place;
    uint64_t deferred_bytes, backed_bytes, live_bytes;
};

/* Bytes that have memory, or may get some. */
static inline size_t ms_mapped_bytes(const struct ms_lineage *lineage)
{
    return lineage->bytes - lineage->kind_bytes[MS_UNMAPPED];
}

struct ms_inside {
    struct ms_allocation facts; /* must be first: MS_OWN casts */

    /* guarded by the claim; only functions of lineage.h and backing.h change these */
    struct ms_lineage lineage;
    struct ms_backing backing;

    /* guarded by the claim */
    bool has_ready; /* some blocks are, or were, ready (ready.h) */
    bool is_whole;  /* written before the first block was taken: stays one block */

    /* A caching allocator takes blocks from the allocation (carve.h). Changed under the claim and
     * ms_space_lock, read under either. The flags stand together because a hole would cost 128
     * bytes: the next size of the heap. */
    bool is_carved;

    /* guarded by ms_space_lock */
    bool counted_deferred;   /* in ms_hot.deferred */
    pthread_t claimed_by;    /* 0: nobody */
    size_t counted_unbacked; /* in the device's unbacked bytes */
    size_t counted_backed;   /* subtracted from ms_space_owed */

    /* changed under the claim and ms_space_lock, read under either */
    struct ms_blocks blocks;

    /* guarded by the claim */
    struct ms_published published;
    size_t dead_memory;        /* bytes of returned blocks that still have memory (ms_space_dead) */
    struct ms_ranges *trimmed; /* owned; ranges whose memory went back as dead (carve.h) and
                                  has not come again; NULL: none */
    size_t least_pieces;       /* ms_carve_gather leaves a block in no more pieces than this */
};

/* The bytes that count in the pool: whole granules; units of 512 bytes if the allocation is smaller
 * than a granule. */
static inline size_t ms_pooled_bytes(const struct ms_allocation *allocation)
{
    enum { UNIT = 512 };
    return allocation->bytes < allocation->granule ? (allocation->bytes + UNIT - 1) / UNIT * UNIT
                                                   : allocation->granule_bytes;
}

static inline void ms_trimmed_forget(struct ms_allocation *allocation)
{
    struct ms_ranges **trimmed = &((struct ms_inside *)allocation)->trimmed;
    if (*trimmed != NULL)
        ms_ranges_cleanup(*trimmed);
    ms_heap_free(*trimmed);
    *trimmed = NULL;
}

/* Guards the index of allocations, and the fields above that name it. Never held across a driver
 * call. */
extern struct ms_lock ms_space_lock;

_Static_assert(offsetof(struct ms_inside, facts) == 0, "MS_OWN wants it");

/* The whole allocation, with the fields that only memory/ reads. */
#define MS_OWN(allocation) ((struct ms_inside *)(allocation))

/* The first block that ends behind offset, or NULL. */
static inline struct ms_block *ms_block_behind(const struct ms_allocation *allocation,
                                               size_t offset)
{
    const struct ms_sorted *blocks = &MS_OWN(allocation)->blocks.all;
    return ms_sorted_item(blocks, ms_sorted_behind(blocks, offset));
}

/* Ends a claim without publishing: counts the allocation as deferred or not. */
void ms_space_unclaim(struct ms_allocation *allocation);

/* True if [begin, end) may be deferred: all of it lies in blocks, the allocation is one block, or
 * the program uses bytes outside of all blocks. */
static inline bool ms_carve_is_block(const struct ms_allocation *allocation, size_t begin,
                                     size_t end)
{
    const struct ms_blocks *blocks = &MS_OWN(allocation)->blocks;
    return !MS_OWN(allocation)->is_carved || blocks->uses_dead ||
           ms_sorted_covers(&blocks->all, begin, end);
}

/* carve.c: adds the block [begin, end); false if out of memory. */
bool ms_carve_add_block(struct ms_allocation *allocation, size_t begin, size_t end);
/* Removes the block that begins at `begin`; false if there is none. */
bool ms_carve_remove_block(struct ms_allocation *allocation, size_t begin, size_t *end_out);
void ms_carve_set_dead(struct ms_allocation *allocation, size_t bytes);
/* How content changes when blocks come and go. */
ms_content_change ms_carve_make_dead, ms_carve_make_undefined, ms_carve_forget;
