/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The blocks of a claimed allocation that a caching allocator carves: how they come and go, and
 * which memory goes back. The content of a returned block is dead at once. The block keeps *dead
 * memory*, because queued work may still use that, until the memory is given back.
 *
 * Blocks change under the claim and ms_space_lock, because a pointer scan reads them without a
 * claim (space.h).
 */
#pragma once

#include <stdatomic.h>

#include "runtime/memory/space.h"

/*
 * Makes [begin, end), which meets no block, a block. The first block makes all other bytes dead.
 *
 *     MS_CARVED         the range is a block, counted in MS_COUNT_BLOCKS
 *     MS_CARVED_NOT     the allocation stays whole: it was used as a whole before, or there is no
 *                       host memory for the record
 *     MS_CARVED_FAILED  there is no host memory for the record: the range is no block, and its
 *                       bytes are dead, although the program will use them
 */
enum ms_carved { MS_CARVED, MS_CARVED_NOT, MS_CARVED_FAILED };
enum ms_carved ms_carve_take(struct ms_allocation *allocation, size_t begin, size_t end);

/* Ends the block that begins at `begin`. False: there is no such block. */
bool ms_carve_return(struct ms_allocation *allocation, size_t begin, size_t *end_out);

/*
 * Turns ready blocks (ready.h) that are handed out and meet [begin, end) into ordinary blocks. Call
 * it before any other function here looks at that range. For the whole allocation, it also ends all
 * its ready blocks: call it so before blocks may lose their memory, and before the shim must see
 * each change of a block.
 */
void ms_carve_settle(struct ms_allocation *allocation, size_t begin, size_t end);

/* [begin, end) is unmapped: cuts it out of all blocks and of the dead memory. Ends the process if
 * there is no host memory for the record. */
void ms_carve_cut(struct ms_allocation *allocation, size_t begin, size_t end);

/* How many bytes of [begin, end) have dead memory, at most. */
size_t ms_carve_dead(const struct ms_allocation *allocation, size_t begin, size_t end);

/* True if a caching allocator has taken a block from the allocation. */
bool ms_carve_has_begun(const struct ms_allocation *allocation);

/* The first block that ends behind offset; an allocation that is not carved counts as one block.
 * False if there is none. */
bool ms_carve_next_block(const struct ms_allocation *allocation, size_t offset,
                         struct ms_range *block_out);

/* A call of the program uses [begin, end). */
void ms_carve_add_use(struct ms_allocation *allocation, size_t begin, size_t end);

/* Brings the block at an offset into memory by `bring` if the block is in so many pieces that their
 * record costs more than they are worth. Returns what `bring` returns. */
typedef CUresult ms_carve_bring(struct ms_allocation *allocation, size_t begin, size_t end);
CUresult ms_carve_gather(struct ms_allocation *allocation, size_t offset, ms_carve_bring *bring);

/*
 * Gives the dead memory back, that of returned blocks, unless others may use it, or the program
 * has used bytes outside of all blocks, which nobody can tell from those of returned blocks. With
 * can_replay also the memory of all bytes that a replay can make again, as can_replay says of their
 * content. Returns how many bytes of memory went back. The caller has waited until the device was
 * done with the memory, and nothing has begun to use it since.
 */
typedef bool ms_carve_asks(const struct ms_content *content);
size_t ms_carve_give_back(struct ms_allocation *allocation, ms_carve_asks *can_replay);

/*
 * The bytes gained, over all allocations of a device, by giving only dead memory back: memory
 * that has not come again since, counted once more for each later block that did without it until
 * the block was returned, and the inputs of launches that are recorded there, which would have come
 * into memory; less memory that has come again. ms_carve_note: [begin, end) has memory now (NULL),
 * or the launch is recorded there.
 */
int64_t ms_carve_trim_gain(CUdevice device);
struct ms_recorded_launch;
void ms_carve_note(struct ms_allocation *allocation, size_t begin, size_t end,
                   const struct ms_recorded_launch *recorded);

/* Bytes of returned blocks, of all allocations, that still have memory. */
extern _Atomic uint64_t ms_space_dead;
static inline uint64_t ms_carve_dead_memory(void)
{
    return atomic_load_explicit(&ms_space_dead, memory_order_relaxed);
}
