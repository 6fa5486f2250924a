/* SPDX-License-Identifier: Apache-2.0 */
/* What only memory/ knows of an allocation. */
#pragma once

#include "runtime/memory/space.h"

/* The blocks of a carved allocation: sorted, without overlap. */
struct ms_blocks {
    bool carved;          /* else the allocation is one block */
    bool strayed;         /* the program has used bytes outside of all blocks */
    struct ms_sorted all; /* struct ms_block */
};

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

    /* guarded by space.lock */
    bool claimed;
    bool counted_deferred;   /* in ms_hot.deferred */
    size_t counted_unbacked; /* in the device's unbacked bytes */

    /* changed under the claim and space.lock, read under either */
    struct ms_blocks blocks;

    /* guarded by the claim */
    struct ms_published published;
    size_t leftover_bytes; /* bytes of returned blocks that still have memory */
    size_t least_pieces;   /* a block in fewer pieces is left as it is (ms_bytes_are_scattered) */
    bool uncarvable;       /* was written before its first block was taken: it stays one block */

    struct ms_allocation *next_delayed; /* delayed_free.h */
    CUevent freed;                      /* after the program's uses; or NULL */
    CUcontext freed_in; /* whose work may use it, if not its own context's; or NULL */
};

_Static_assert(offsetof(struct ms_inside, facts) == 0, "MS_OWN wants it");

/* All of an allocation. */
#define MS_OWN(allocation) ((struct ms_inside *)(allocation))
