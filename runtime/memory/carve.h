/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The blocks of a claimed allocation that a caching allocator carves: how they come and go, and
 * what is given back of the memory. The content of a block that was returned is dead at once. Its
 * memory is not, as queued work may still use it: it is left over until it is given back.
 *
 * Blocks change under the claim and ms_space_lock, because a scan of pointers looks at them without
 * a claim (space.h).
 */
#pragma once

#include <stdatomic.h>

#include "runtime/memory/space.h"

/*
 * Makes [begin, end), which meets no block, a block. With the first one all else becomes dead.
 *
 *     MS_CARVED         it is one, and is counted (MS_COUNT_BLOCKS)
 *     MS_CARVED_NOT     the allocation was used as a whole before, or there is no memory for the
 *                       record: it stays whole
 *     MS_CARVED_FAILED  there is no memory for the record: it is none, and its bytes are dead,
 *                       although the program will use them
 */
enum ms_carved { MS_CARVED, MS_CARVED_NOT, MS_CARVED_FAILED };
enum ms_carved ms_carve_take(struct ms_allocation *allocation, size_t begin, size_t end);

/* The block that begins there is none any more. False: there is no such block. */
bool ms_carve_return(struct ms_allocation *allocation, size_t begin, size_t *end_out);

/*
 * Blocks that were handed out while they were ready (ready.h), and meet [begin, end), become blocks
 * as all others: before the functions here are asked about what lies there. If that is all of the
 * allocation, none is ready any more: before it gets wrong that they have memory, or that a change
 * of them is not seen.
 */
void ms_carve_settle(struct ms_allocation *allocation, size_t begin, size_t end);

/* [begin, end) is unmapped: what lies there is in no block, and not left over. Ends the process if
 * there is no memory for the record. */
void ms_carve_cut(struct ms_allocation *allocation, size_t begin, size_t end);

/* True if a block there would lie on whole granules that are left over: none of it could be
 * deferred. */
bool ms_carve_meets_leftover(const struct ms_allocation *allocation, size_t begin, size_t end);

/* The first block that ends behind offset; an allocation that is not carved is one. False if there
 * is none. */
bool ms_carve_next_block(const struct ms_allocation *allocation, size_t offset,
                         struct ms_range *block_out);

/* True if something of [begin, end) may be deferred: all of it lies in blocks, the allocation is
 * one block, or the program uses what is in none. */
bool ms_carve_is_block(const struct ms_allocation *allocation, size_t begin, size_t end);

/* A call of the program uses [begin, end). */
void ms_carve_add_use(struct ms_allocation *allocation, size_t begin, size_t end);

/* True if the block at an offset is in so many pieces that their record costs more than they are
 * worth: then gather it, and tell when that is done. */
bool ms_carve_is_scattered(struct ms_allocation *allocation, size_t offset,
                           struct ms_range *block_out);
void ms_carve_gathered(struct ms_allocation *allocation, struct ms_range block);

/*
 * What to give back: the memory of blocks that were returned, except what others may use; or that
 * of all bytes that can be replayed, too. The device must be done with it, and nothing may have
 * begun to use it since it was waited for.
 */
enum ms_give_back { MS_LEFTOVER, MS_RESTORABLE };

/* True if there may be such memory. */
bool ms_carve_may_give_back(const struct ms_allocation *allocation, enum ms_give_back what);

/* Returns how many bytes of memory that freed. */
size_t ms_carve_give_back(struct ms_allocation *allocation, enum ms_give_back what);

/*
 * What it has gained, of all allocations and in bytes, to give back memory as MS_LEFTOVER: memory
 * that has not come again since, and once more what of it each later block did without until it was
 * returned; less memory that came again. That is told: [begin, end) has memory from now on.
 */
int64_t ms_carve_trim_gain(void);
void ms_carve_note_memory(struct ms_allocation *allocation, size_t begin, size_t end);

/* Bytes of returned blocks, of all allocations, that still have memory. */
extern _Atomic uint64_t ms_space_leftover;
static inline uint64_t ms_carve_leftover_bytes(void)
{
    return atomic_load_explicit(&ms_space_leftover, memory_order_relaxed);
}
