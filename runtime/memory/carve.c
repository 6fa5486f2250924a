/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/memory/carve.h"

#include <stdatomic.h>

#include "runtime/base/log.h"
#include "runtime/memory/memory_internal.h"
#include "runtime/memory/recorded_launch.h"

/* --- blocks */

bool ms_carve_next_block(const struct ms_allocation *allocation, size_t offset,
                         struct ms_range *block_out)
{
    const bool carved = allocation->is_carved;
    const struct ms_block *block = carved ? ms_block_behind(allocation, offset) : NULL;
    *block_out = block != NULL ? (struct ms_range){block->begin, block->end}
                               : (struct ms_range){0, allocation->bytes};
    return carved ? block != NULL : offset < allocation->bytes;
}

bool ms_carve_is_block(const struct ms_allocation *allocation, size_t begin, size_t end)
{
    const struct ms_blocks *blocks = &MS_OWN(allocation)->blocks;
    return !allocation->is_carved || blocks->strayed || ms_blocks_hold(blocks, begin, end);
}

void ms_carve_add_use(struct ms_allocation *allocation, size_t begin, size_t end)
{
    struct ms_blocks *blocks = &MS_OWN(allocation)->blocks;
    if (!allocation->is_carved || blocks->strayed)
        return;
    const struct ms_block *block = ms_block_behind(allocation, begin);
    if (block != NULL && block->begin <= begin && end <= block->end)
        return;
    ms_lock_take(&ms_space_lock);
    blocks->strayed = true;
    ms_lock_drop(&ms_space_lock);
}

bool ms_carve_add_block(struct ms_allocation *allocation, size_t begin, size_t end)
{
    struct ms_blocks *blocks = &MS_OWN(allocation)->blocks;
    const struct ms_block block = {.begin = begin, .end = end};
    ms_lock_take(&ms_space_lock);
    blocks->all.item_bytes = sizeof(block);
    const bool is_added = ms_sorted_insert(&blocks->all, ms_blocks_find(blocks, begin), &block, 1);
    allocation->is_carved |= is_added;
    ms_lock_drop(&ms_space_lock);
    return is_added;
}

bool ms_carve_remove_block(struct ms_allocation *allocation, size_t begin, size_t *end_out)
{
    struct ms_blocks *blocks = &MS_OWN(allocation)->blocks;
    ms_lock_take(&ms_space_lock);
    const struct ms_position at = ms_blocks_find(blocks, begin);
    struct ms_block *block = ms_sorted_item(&blocks->all, at);
    const bool found = block != NULL && block->begin == begin;
    if (found) {
        *end_out = block->end;
        ms_state_remove(&block->place);
        ms_sorted_remove(&blocks->all, at, 1);
    }
    ms_lock_drop(&ms_space_lock);
    return found;
}

/* --- what becomes of their content */

void ms_carve_make_dead(struct ms_content *content)
{
    if (ms_content_is_nothing(content) && content->kind != MS_UNMAPPED)
        *content = (struct ms_content){.kind = MS_DEAD};
}

void ms_carve_make_undefined(struct ms_content *content)
{
    if (ms_content_is_nothing(content) && content->kind != MS_UNMAPPED)
        *content = (struct ms_content){.kind = MS_UNDEFINED};
}

/* Present bytes become resident, mapped ones dead. */
void ms_carve_forget(struct ms_content *content)
{
    if (content->kind != MS_UNMAPPED)
        *content =
            (struct ms_content){.kind = ms_content_is_present(content) ? MS_RESIDENT : MS_DEAD};
}

static bool change(struct ms_allocation *allocation, size_t begin, size_t end,
                   ms_content_change *how)
{
    const struct ms_range range = {begin, end};
    return ms_lineage_change(&allocation->lineage, &range, 1, how);
}

static size_t present_bytes(const struct ms_allocation *allocation, size_t begin, size_t end)
{
    size_t bytes = 0;
    struct ms_extent extent;
    while (ms_lineage_next(&allocation->lineage, &begin, end, &extent))
        bytes += ms_content_is_present(&extent.content) ? extent.end - extent.begin : 0;
    return bytes;
}

void ms_carve_set_leftover(struct ms_allocation *allocation, size_t bytes)
{
    atomic_fetch_add(&ms_space_leftover, bytes - MS_OWN(allocation)->leftover_bytes);
    MS_OWN(allocation)->leftover_bytes = bytes;
}

static bool was_written(const struct ms_lineage *lineage)
{
    return lineage->deferred_bytes + lineage->resident_bytes + lineage->dead_bytes > 0;
}

/* True if it has blocks, or can get its first one. */
static bool can_carve(struct ms_allocation *allocation)
{
    if (!allocation->is_carved && was_written(&allocation->lineage))
        MS_OWN(allocation)->uncarvable = true;
    return !MS_OWN(allocation)->uncarvable;
}

/* What is present there is not left over any more. */
static void use_again(struct ms_allocation *allocation, size_t begin, size_t end)
{
    const size_t left = MS_OWN(allocation)->leftover_bytes;
    const size_t used = left > 0 ? present_bytes(allocation, begin, end) : 0;
    ms_carve_set_leftover(allocation, used < left ? left - used : 0);
}

enum ms_carved ms_carve_take(struct ms_allocation *allocation, size_t begin, size_t end)
{
    const bool is_first = !allocation->is_carved;
    if (!can_carve(allocation) ||
        (is_first && !change(allocation, 0, allocation->bytes, ms_carve_make_dead)))
        return MS_CARVED_NOT;
    if (!ms_carve_add_block(allocation, begin, end)) {
        if (is_first)
            change(allocation, 0, allocation->bytes, ms_carve_make_undefined); /* needs no memory */
        return is_first ? MS_CARVED_NOT : MS_CARVED_FAILED;
    }
    use_again(allocation, begin, end);
    if (change(allocation, begin, end, ms_carve_make_undefined))
        return MS_CARVED;
    ms_carve_remove_block(allocation, begin, &end);
    return MS_CARVED_FAILED;
}

bool ms_carve_return(struct ms_allocation *allocation, size_t begin, size_t *end_out)
{
    if (!ms_carve_remove_block(allocation, begin, end_out))
        return false;
    if (change(allocation, begin, *end_out, ms_carve_forget) && !allocation->keeps_dead)
        ms_carve_set_leftover(allocation, MS_OWN(allocation)->leftover_bytes +
                                              present_bytes(allocation, begin, *end_out));
    return true;
}

/* What lies outside is still the program's. */
static bool add_rest(struct ms_allocation *allocation, size_t begin, size_t end)
{
    return begin >= end || ms_carve_add_block(allocation, begin, end);
}

void ms_carve_cut(struct ms_allocation *allocation, size_t begin, size_t end)
{
    const struct ms_block *block;
    while ((block = ms_block_behind(allocation, begin)) != NULL && block->begin < end) {
        size_t block_end;
        const size_t block_begin = block->begin;
        if (!ms_carve_remove_block(allocation, block_begin, &block_end) ||
            !add_rest(allocation, block_begin, begin) || !add_rest(allocation, end, block_end))
            ms_fatal("there is no memory for the record of a block at 0x%llx",
                     allocation->address + block_begin);
    }
    use_again(allocation, begin, end);
}

bool ms_carve_meets_leftover(const struct ms_allocation *allocation, size_t begin, size_t end)
{
    const size_t granule = allocation->granule;
    return MS_OWN(allocation)->leftover_bytes >= granule && end - begin >= granule &&
           present_bytes(allocation, begin, end) >= granule;
}

/* --- blocks in many pieces */

static struct ms_range block_at(const struct ms_allocation *allocation, size_t offset)
{
    const struct ms_block *block = ms_block_behind(allocation, offset);
    if (block == NULL || block->begin > offset)
        return (struct ms_range){0, allocation->bytes};
    return (struct ms_range){block->begin, block->end};
}

/*
 * Some 50 bytes each. In a large block more is allowed: one that is copied row by row has a piece
 * for each row. What is left to other ranks stays in pieces, so the next look is at twice as many.
 */
bool ms_carve_is_scattered(const struct ms_allocation *allocation, size_t offset,
                           struct ms_range *block_out)
{
    enum { LEAST_PIECES = 1 << 17, BYTES_FOR_ONE = 512 << 10 };
    if (allocation->lineage.extents.count <= LEAST_PIECES)
        return false;
    const struct ms_range block = *block_out = block_at(allocation, offset);
    const size_t pieces = ms_lineage_pieces(&allocation->lineage, block.begin, block.end);
    return pieces > LEAST_PIECES && pieces > MS_OWN(allocation)->least_pieces &&
           pieces > (block.end - block.begin) / BYTES_FOR_ONE;
}

void ms_carve_gathered(struct ms_allocation *allocation, struct ms_range block)
{
    MS_OWN(allocation)->least_pieces =
        2 * ms_lineage_pieces(&allocation->lineage, block.begin, block.end);
}

/* --- giving back */

uint64_t ms_carve_leftover_bytes(void)
{
    return atomic_load_explicit(&ms_space_leftover, memory_order_relaxed);
}

bool ms_carve_may_give_back(const struct ms_allocation *allocation, enum ms_give_back what)
{
    if (what == MS_LEFTOVER)
        return MS_OWN(allocation)->leftover_bytes > 0;
    return allocation->backing.backed_bytes > 0 &&
           (allocation->lineage.resident_bytes < allocation->lineage.bytes ||
            (allocation->is_carved && !allocation->keeps_dead));
}

/* A file that has changed can no longer restore what was read from it. */
static void keep_what_is_lost(struct ms_allocation *allocation)
{
    static const struct ms_content resident = {.kind = MS_RESIDENT};
    struct ms_extent extent;
    for (size_t at = 0; ms_lineage_next(&allocation->lineage, &at, allocation->bytes, &extent);) {
        if (extent.content.cached && !ms_recorded_launch_is_current(&extent.content))
            ms_lineage_set(&allocation->lineage, extent.begin, extent.end, &resident);
    }
}

/* The first part of a resident range, unless others may use its memory. Returns its end. */
static size_t give_up_resident(struct ms_allocation *allocation, size_t begin, size_t end)
{
    static const struct ms_content dead = {.kind = MS_DEAD};
    const struct ms_backing *backing = &allocation->backing;
    const struct ms_chunk *chunk = &backing->chunks[ms_backing_chunk_behind(backing, begin)];
    const size_t stop = chunk->end < end ? chunk->end : end;
    if (!chunk->is_pinned)
        ms_lineage_set(&allocation->lineage, begin, stop, &dead);
    return stop;
}

static void give_up_dead(struct ms_allocation *allocation)
{
    const struct ms_blocks *blocks = &MS_OWN(allocation)->blocks;
    ms_carve_set_leftover(allocation, 0);
    if (!allocation->is_carved || allocation->keeps_dead)
        return;
    size_t at = 0;
    struct ms_position next = {0, 0};
    for (const struct ms_block *block; at < allocation->bytes;
         at = block != NULL ? block->end : allocation->bytes) {
        block = ms_sorted_item(&blocks->all, next);
        next = ms_sorted_next(&blocks->all, next);
        const size_t end = block != NULL ? block->begin : allocation->bytes;
        while (at < end) {
            const struct ms_extent extent = ms_lineage_at(&allocation->lineage, at);
            size_t stop = extent.end < end ? extent.end : end;
            if (extent.content.kind == MS_RESIDENT)
                stop = give_up_resident(allocation, at, stop);
            at = stop;
        }
    }
}

/* The runs in which nothing is present. */
static size_t uncover(struct ms_allocation *allocation)
{
    size_t freed = 0, begin = 0;
    struct ms_walk walk = ms_lineage_walk_all(&allocation->lineage);
    for (const struct ms_extent *extent; (extent = ms_lineage_walk_next(&walk)) != NULL;) {
        if (!ms_content_is_present(&extent->content))
            continue;
        freed += ms_backing_uncover(&allocation->backing, begin, extent->begin, false);
        begin = extent->end;
    }
    /* The last granule reaches behind the end of the allocation. */
    return freed +
           ms_backing_uncover(&allocation->backing, begin, allocation->backing.bytes, false);
}

static void set_missing(struct ms_content *content)
{
    content->cached = false;
}

size_t ms_carve_give_back(struct ms_allocation *allocation, enum ms_give_back what)
{
    give_up_dead(allocation);
    if (what == MS_RESTORABLE) {
        keep_what_is_lost(allocation);
        if (allocation->lineage.cached_bytes > 0) /* whole extents change: no memory is needed */
            change(allocation, 0, allocation->bytes, set_missing);
    }
    return uncover(allocation);
}
