/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Blocks that are tensors of the plan though nothing names them, in programs that copy from no
 * checkpoint. A declared tensor is the one block of its size, if no other tensor and no other block
 * has that size. If the program names nothing, the entries without a name identify blocks by size
 * and order.
 */
#include <stdlib.h>

#include "runtime/base/array.h"
#include "runtime/base/heap.h"
#include "runtime/memory/bytes.h"
#include "runtime/shard/checkpoint_files.h"
#include "runtime/shard/named_tensors.h"
#include "runtime/shard/shard_internal.h"

struct list {
    struct ms_unnamed_block *blocks;
    size_t count, capacity;
};

static bool add_block(struct list *list, const struct ms_allocation *allocation, size_t begin,
                      size_t end)
{
    if (!MS_ARRAY_GROW(list->blocks, list->count, list->capacity))
        return false;
    list->blocks[list->count++] =
        (struct ms_unnamed_block){.allocation_id = allocation->id, .begin = begin, .end = end};
    return true;
}

/* True if a file identifies bytes of the range: then it is no candidate. */
static bool is_given(const struct ms_allocation *allocation, size_t begin, size_t end)
{
    bool found = false;
    struct ms_extent extent;
    while (!found && ms_bytes_next(allocation, &begin, end, &extent))
        found = extent.content.kind == MS_SOURCE && ms_source_is_file(extent.content.source);
    return found;
}

static bool add_blocks(struct list *list, const struct ms_allocation *allocation)
{
    bool is_good = true;
    struct ms_range block;
    for (size_t at = 0; is_good && ms_space_next_block(allocation, at, &block); at = block.end)
        is_good = is_given(allocation, block.begin, block.end) ||
                  add_block(list, allocation, block.begin, block.end);
    return is_good;
}

/* Orders allocations by age, and blocks of one allocation by address. */
static int by_age(const void *a, const void *b)
{
    const struct ms_unnamed_block *left = a, *right = b;
    if (left->allocation_id != right->allocation_id)
        return left->allocation_id < right->allocation_id ? -1 : 1;
    return left->begin < right->begin ? -1 : left->begin > right->begin;
}

static bool collect(struct list *list)
{
    bool is_good = true;
    struct ms_allocation *allocation = NULL;
    while (is_good && (allocation = ms_claim_after(allocation)) != NULL)
        is_good = add_blocks(list, allocation);
    ms_claim_release(allocation);
    if (list->count > 0)
        qsort(list->blocks, list->count, sizeof(*list->blocks), by_age);
    return is_good;
}

/* --- declared tensors, by their size alone */

/* Counts the blocks of the size that have no name; *block_out is the last of them. */
MS_HOLDS(ms_shard.lock)
static size_t count_blocks_locked(const struct list *list, uint64_t bytes,
                                  const struct ms_unnamed_block **block_out)
{
    size_t count = 0;
    for (size_t i = 0; i < list->count; i++) {
        const struct ms_unnamed_block *block = &list->blocks[i];
        if (block->end - block->begin != bytes ||
            ms_named_tensors_hold(block->allocation_id, block->begin, block->end))
            continue;
        count++;
        *block_out = block;
    }
    return count;
}

/* Counts the declared tensors of the size that have no place. */
MS_HOLDS(ms_shard.lock)
static size_t count_declared_locked(const size_t *unplaced, size_t count, uint64_t bytes)
{
    size_t found = 0;
    struct ms_tensor tensor;
    for (size_t i = 0; i < count; i++)
        found += ms_plan_entry_tensor(ms_shard.plan, unplaced[i], &tensor) && tensor.bytes == bytes;
    return found;
}

MS_HOLDS(ms_shard.lock)
static void match_declared_locked(const struct list *list, const size_t *unplaced, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        struct ms_tensor tensor;
        if (!ms_plan_entry_tensor(ms_shard.plan, unplaced[i], &tensor))
            continue;
        const struct ms_unnamed_block *block = NULL;
        const size_t blocks = count_blocks_locked(list, tensor.bytes, &block);
        if (blocks == 1 && count_declared_locked(unplaced, count, tensor.bytes) == 1)
            ms_shard_name_locked(block->allocation_id, block->begin, block->end, tensor.name,
                                 &tensor, true);
        else if (blocks > 0)
            ms_shard.ambiguous[ms_shard.ambiguous_count++] = unplaced[i];
    }
}

/* Lists the entries whose declared tensor has no place: it stands in the layout as declared. */
MS_HOLDS(ms_shard.lock) static size_t list_unplaced_locked(size_t *unplaced)
{
    size_t count = 0, declared = 0;
    for (size_t i = 0; i < ms_plan_count(ms_shard.plan); i++) {
        struct ms_tensor tensor;
        if (!ms_plan_entry_declares(ms_shard.plan, i) ||
            !ms_plan_entry_tensor(ms_shard.plan, i, &tensor))
            continue;
        if (ms_layout_is_declaration(ms_shard.sheet.layout, declared++) && tensor.bytes > 0)
            unplaced[count++] = i;
    }
    return count;
}

/* --- entries without a name */

/* Finds the first entry without a name that matches the block, and any dtype and shape it has. */
bool ms_unnamed_block_select_locked(struct ms_unnamed_block *block, size_t order)
{
    const uint64_t bytes = block->end - block->begin;
    block->tensor = (struct ms_tensor){.dtype = MS_DTYPE_U8, .dims = 1, .shape = {bytes}};
    ms_tensor_measure(&block->tensor);
    for (size_t i = 0; i < ms_plan_count(ms_shard.plan); i++) {
        if (!ms_layout_entry_meets(ms_shard.plan, i, &block->tensor, order))
            continue;
        struct ms_tensor like;
        if (ms_plan_entry_tensor(ms_shard.plan, i, &like) && like.bytes == bytes)
            block->tensor = like;
        block->tensor.name = NULL; /* the entry has none either */
        return true;
    }
    return false;
}

MS_HOLDS(ms_shard.lock) static bool has_unnamed_locked(void)
{
    for (size_t i = 0; i < ms_plan_count(ms_shard.plan); i++) {
        if (ms_plan_entry_name(ms_shard.plan, i) == NULL)
            return true;
    }
    return false;
}

/* The shard takes over the list. */
MS_HOLDS(ms_shard.lock) static void match_unnamed_locked(struct list *list)
{
    ms_heap_free(ms_shard.unnamed);
    ms_shard.unnamed = list->blocks;
    ms_shard.unnamed_count = list->count;
    *list = (struct list){0};
    for (size_t i = 0; i < ms_shard.unnamed_count; i++) {
        struct ms_unnamed_block *block = &ms_shard.unnamed[i];
        block->is_selected = ms_unnamed_block_select_locked(block, i);
    }
    ms_shard_make_unnamed_sheet_locked();
}

/* --- */

MS_HOLDS(ms_shard.lock) static void match_locked(struct list *list)
{
    size_t *unplaced = ms_heap_alloc((ms_plan_count(ms_shard.plan) + 1) * sizeof(*unplaced));
    ms_heap_free(ms_shard.ambiguous);
    ms_shard.ambiguous_count = 0;
    ms_shard.ambiguous = ms_heap_alloc((ms_plan_count(ms_shard.plan) + 1) * sizeof(*unplaced));
    if (unplaced != NULL && ms_shard.ambiguous != NULL && ms_checkpoint_files_count() == 0)
        match_declared_locked(list, unplaced, list_unplaced_locked(unplaced));
    ms_heap_free(unplaced);
    if (ms_checkpoint_files_count() == 0 && ms_named_tensors_count() == 0 && has_unnamed_locked())
        match_unnamed_locked(list);
}

void ms_unnamed_blocks_match(void)
{
    struct list list = {0};
    const bool is_good = collect(&list);
    ms_lock_take(&ms_shard.lock);
    if (is_good && ms_shard.plan != NULL && ms_shard_has_sheet_locked())
        match_locked(&list);
    ms_lock_drop(&ms_shard.lock);
    ms_heap_free(list.blocks);
}
