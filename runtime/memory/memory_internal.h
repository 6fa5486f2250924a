/* SPDX-License-Identifier: Apache-2.0 */
/* What only memory/ knows of an allocation. */
#pragma once

#include "runtime/base/heap.h"
#include "runtime/base/lock.h"
#include "runtime/base/ranges.h"
#include "runtime/memory/space.h"

/* The blocks of a carved allocation: sorted, without overlap. */
struct ms_blocks {
    bool strayed;         /* the program has used bytes outside of all blocks */
    struct ms_sorted all; /* struct ms_block */
};

/* The position of the first block that ends behind offset. */
static inline struct ms_position ms_blocks_find(const struct ms_blocks *blocks, size_t offset)
{
    const struct ms_position at = ms_sorted_find(&blocks->all, offset);
    const struct ms_block *block = ms_sorted_item(&blocks->all, at);
    return block != NULL && block->end <= offset ? ms_sorted_next(&blocks->all, at) : at;
}

/* True if all of [begin, end) lies in blocks. */
static inline bool ms_blocks_hold(const struct ms_blocks *blocks, size_t begin, size_t end)
{
    struct ms_position at = ms_blocks_find(blocks, begin);
    for (; begin < end; at = ms_sorted_next(&blocks->all, at)) {
        const struct ms_block *block = ms_sorted_item(&blocks->all, at);
        if (block == NULL || block->begin > begin)
            return false;
        begin = block->end;
    }
    return true;
}

/* What was last published of an allocation. */
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
    struct ms_allocation facts; /* first: a pointer to them is one to all of it */

    /* guarded by ms_space_lock */
    bool claimed;
    bool counted_deferred;   /* in ms_hot.deferred */
    size_t counted_unbacked; /* in the device's unbacked bytes */
    size_t counted_backed;   /* in what is owed (ms_space_owes_memory) */

    /* changed under the claim and ms_space_lock, read under either */
    struct ms_blocks blocks;

    /* guarded by the claim */
    struct ms_published published;
    size_t leftover_bytes; /* bytes of returned blocks that still have memory (ms_space_leftover) */
    struct ms_ranges *trimmed; /* owned; without memory since that was given back as MS_LEFTOVER
                                  (carve.h); NULL: nothing is */
    size_t least_pieces; /* a block in fewer pieces is left as it is (ms_carve_is_scattered) */
    bool has_ready;      /* or had: some of its blocks are ready (ready.h) */
    bool uncarvable;     /* was written before its first block was taken: it stays one block */

    struct ms_allocation *next_delayed; /* delayed_free.h */
    CUevent freed;                      /* after the program's uses; or NULL */
    CUcontext freed_in; /* whose work may use it, if not its own context's; or NULL */
};

static inline void ms_trimmed_forget(struct ms_allocation *allocation)
{
    struct ms_ranges **trimmed = &((struct ms_inside *)allocation)->trimmed;
    if (*trimmed != NULL)
        ms_ranges_cleanup(*trimmed);
    ms_heap_free(*trimmed);
    *trimmed = NULL;
}

/* Guards the index of allocations, and what is said here. It is never held across a driver call. */
extern struct ms_lock ms_space_lock;

_Static_assert(offsetof(struct ms_inside, facts) == 0, "MS_OWN wants it");

/* All of an allocation. */
#define MS_OWN(allocation) ((struct ms_inside *)(allocation))

/* The first block that ends behind offset, or NULL. */
static inline struct ms_block *ms_block_behind(const struct ms_allocation *allocation,
                                               size_t offset)
{
    const struct ms_blocks *blocks = &MS_OWN(allocation)->blocks;
    return ms_sorted_item(&blocks->all, ms_blocks_find(blocks, offset));
}

/* Ends a claim without publishing: counts the allocation as deferred or not. */
void ms_space_unclaim(struct ms_allocation *allocation);

/* carve.c: adds the block [begin, end), or removes the one that begins there. False if out of
 * memory, or if there is no such block. And what becomes of content. */
bool ms_carve_add_block(struct ms_allocation *allocation, size_t begin, size_t end);
bool ms_carve_remove_block(struct ms_allocation *allocation, size_t begin, size_t *end_out);
void ms_carve_set_leftover(struct ms_allocation *allocation, size_t bytes);
ms_content_change ms_carve_make_dead, ms_carve_make_undefined, ms_carve_forget;

/* mappings.c: adds one, or changes the one that begins there, false if out of memory; removes. */
bool ms_mappings_put(struct ms_allocation *allocation, const struct ms_program_mapping *mapping);
void ms_mappings_drop(struct ms_allocation *allocation, size_t begin);
