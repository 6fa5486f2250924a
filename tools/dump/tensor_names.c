/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Names of tensors, for blocks without a name: the headers of the checkpoints that they come from
 * have them, as long as these exist unchanged.
 */
#include <stdlib.h>

#include "runtime/checkpoint/checkpoint.h"
#include "tools/dump/dump.h"

static int by_offset(const void *a, const void *b)
{
    const struct ms_tensor *left = *(const struct ms_tensor *const *)a;
    const struct ms_tensor *right = *(const struct ms_tensor *const *)b;
    return left->offset < right->offset ? -1 : left->offset > right->offset;
}

/* The tensors of a checkpoint by their offsets in the file; free(). */
static const struct ms_tensor **order(const struct ms_checkpoint *checkpoint)
{
    const size_t count = ms_checkpoint_count(checkpoint);
    const struct ms_tensor *tensors = ms_checkpoint_tensors(checkpoint);
    const struct ms_tensor **ordered = calloc(count + 1, sizeof(*ordered));
    for (size_t i = 0; i < count && ordered != NULL; i++)
        ordered[i] = &tensors[i];
    if (ordered != NULL)
        qsort(ordered, count, sizeof(*ordered), by_offset);
    return ordered;
}

/* The last tensor that begins at or before the offset, if it reaches the offset. */
static const struct ms_tensor *find(const struct ms_tensor *const *tensors, size_t count,
                                    uint64_t offset)
{
    size_t low = 0, high = count;
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        if (tensors[middle]->offset <= offset)
            low = middle + 1;
        else
            high = middle;
    }
    if (low == 0 || offset - tensors[low - 1]->offset >= tensors[low - 1]->bytes)
        return NULL;
    return tensors[low - 1];
}

static void name_block(struct ms_state_block *block, const struct ms_tensor *const *tensors,
                       size_t count)
{
    const struct ms_tensor *tensor = find(tensors, count, block->file_offset);
    if (tensor == NULL)
        return;
    const uint64_t left = tensor->bytes - (block->file_offset - tensor->offset);
    snprintf(block->name, sizeof(block->name), "%s%s", tensor->name,
             block->kind_bytes[MS_BYTES_FILE] > left ? " and others" : "");
    ms_state_clean_text(block->name, sizeof(block->name));
}

static void name_blocks_of(struct ms_snapshot *snapshot, size_t file)
{
    struct ms_checkpoint *checkpoint;
    struct ms_fault fault;
    if (!ms_checkpoint_open(snapshot->files[file].path, &checkpoint, &fault))
        return; /* it is gone, or no checkpoint */
    const struct ms_tensor **tensors = order(checkpoint);
    for (size_t i = 0; i < snapshot->block_count && tensors != NULL; i++) {
        struct ms_state_block *block = &snapshot->blocks[i];
        if (block->file == file + 1 && block->name[0] == '\0')
            name_block(block, tensors, ms_checkpoint_count(checkpoint));
    }
    free(tensors);
    ms_checkpoint_close(checkpoint);
}

void name_blocks(struct ms_snapshot *snapshot)
{
    for (size_t i = 0; i < snapshot->file_count; i++) {
        bool is_wanted = false;
        for (size_t k = 0; k < snapshot->block_count && !is_wanted; k++)
            is_wanted = snapshot->blocks[k].file == i + 1 && snapshot->blocks[k].name[0] == '\0';
        if (is_wanted && snapshot->files[i].path[0] == '/')
            name_blocks_of(snapshot, i);
    }
}
