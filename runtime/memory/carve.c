/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/memory/carve.h"

#include "runtime/base/log.h"
#include "runtime/memory/memory_internal.h"

/* True if it has blocks, or can get its first one. */
static bool can_carve(struct ms_allocation *allocation)
{
    if (!MS_OWN(allocation)->blocks.carved && !ms_lineage_is_unwritten(&allocation->lineage))
        MS_OWN(allocation)->uncarvable = true;
    return !MS_OWN(allocation)->uncarvable;
}

/* What is present there is not left over any more. */
static void use_again(struct ms_allocation *allocation, size_t begin, size_t end)
{
    const size_t left = MS_OWN(allocation)->leftover_bytes;
    const size_t used = left > 0 ? ms_lineage_present_bytes(&allocation->lineage, begin, end) : 0;
    ms_space_set_leftover(allocation, used < left ? left - used : 0);
}

enum ms_carved ms_carve_take(struct ms_allocation *allocation, size_t begin, size_t end)
{
    struct ms_lineage *lineage = &allocation->lineage;
    const bool is_first = !MS_OWN(allocation)->blocks.carved;
    if (!can_carve(allocation) ||
        (is_first && !ms_lineage_set_dead(lineage, 0, allocation->bytes, true)))
        return MS_CARVED_NOT;
    if (!ms_space_add_block(allocation, begin, end)) {
        if (is_first)
            ms_lineage_set_dead(lineage, 0, allocation->bytes, false); /* needs no memory */
        return is_first ? MS_CARVED_NOT : MS_CARVED_FAILED;
    }
    use_again(allocation, begin, end);
    if (ms_lineage_set_dead(lineage, begin, end, false))
        return MS_CARVED;
    ms_space_remove_block(allocation, begin, &end);
    return MS_CARVED_FAILED;
}

bool ms_carve_return(struct ms_allocation *allocation, size_t begin, size_t *end_out)
{
    if (!ms_space_remove_block(allocation, begin, end_out))
        return false;
    if (ms_lineage_forget(&allocation->lineage, begin, *end_out) && !allocation->keeps_dead)
        ms_space_set_leftover(allocation,
                              MS_OWN(allocation)->leftover_bytes +
                                  ms_lineage_present_bytes(&allocation->lineage, begin, *end_out));
    return true;
}

/* What lies outside is still the program's. */
static bool add_rest(struct ms_allocation *allocation, size_t begin, size_t end)
{
    return begin >= end || ms_space_add_block(allocation, begin, end);
}

void ms_carve_cut(struct ms_allocation *allocation, size_t begin, size_t end)
{
    const struct ms_block *block;
    while ((block = ms_space_block_behind(allocation, begin)) != NULL && block->begin < end) {
        size_t block_end;
        const size_t block_begin = block->begin;
        if (!ms_space_remove_block(allocation, block_begin, &block_end) ||
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
           ms_lineage_present_bytes(&allocation->lineage, begin, end) >= granule;
}
