/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/memory/give_back.h"

#include "runtime/memory/memory_internal.h"
#include "runtime/memory/recorded_launch.h"

bool ms_give_back_applies(const struct ms_allocation *allocation, enum ms_give_back what)
{
    if (what == MS_LEFTOVER)
        return MS_OWN(allocation)->leftover_bytes > 0;
    return allocation->backing.backed_bytes > 0 &&
           (allocation->lineage.resident_bytes < allocation->lineage.bytes ||
            (MS_OWN(allocation)->blocks.carved && !allocation->keeps_dead));
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
    ms_space_set_leftover(allocation, 0);
    if (!blocks->carved || allocation->keeps_dead)
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

size_t ms_give_back(struct ms_allocation *allocation, enum ms_give_back what)
{
    give_up_dead(allocation);
    if (what == MS_RESTORABLE) {
        keep_what_is_lost(allocation);
        ms_lineage_drop_caches(&allocation->lineage);
    }
    return uncover(allocation);
}
