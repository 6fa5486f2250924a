/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Names of tensors, for blocks without a name: the headers of the checkpoints that they come from
 * have them, as long as these exist unchanged.
 */
#include <stdlib.h>

#include "runtime/checkpoint/checkpoint.h"
#include "tools/dump/dump.h"

/* The tensors of a checkpoint by their offsets in the file; free(). */
struct tensors {
    struct place {
        uint64_t offset;
        size_t index;
    } * places;
    size_t count;
    const struct ms_checkpoint *checkpoint;
};

static int by_offset(const void *a, const void *b)
{
    const struct place *left = a, *right = b;
    return left->offset < right->offset ? -1 : left->offset > right->offset;
}

static struct tensors order(const struct ms_checkpoint *checkpoint)
{
    const size_t count = ms_checkpoint_count(checkpoint);
    struct tensors tensors = {calloc(count + 1, sizeof(struct place)), count, checkpoint};
    for (size_t i = 0; i < count && tensors.places != NULL; i++)
        tensors.places[i] = (struct place){ms_checkpoint_tensor(checkpoint, i).offset, i};
    if (tensors.places != NULL)
        qsort(tensors.places, count, sizeof(struct place), by_offset);
    return tensors;
}

/* The last tensor that begins at or before the offset, if it reaches the offset. */
static bool find(const struct tensors *tensors, uint64_t offset, struct ms_tensor *tensor_out)
{
    size_t low = 0, high = tensors->count;
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        if (tensors->places[middle].offset <= offset)
            low = middle + 1;
        else
            high = middle;
    }
    if (low == 0)
        return false;
    *tensor_out = ms_checkpoint_tensor(tensors->checkpoint, tensors->places[low - 1].index);
    return offset - tensor_out->offset < tensor_out->bytes;
}

static void name_block(struct ms_state_block *block, const struct tensors *tensors)
{
    struct ms_tensor tensor;
    if (!find(tensors, block->file_offset, &tensor))
        return;
    const uint64_t left = tensor.bytes - (block->file_offset - tensor.offset);
    snprintf(block->name, sizeof(block->name), "%s%s", tensor.name,
             block->kind_bytes[MS_BYTES_FILE] > left ? " and others" : "");
    ms_state_clean_text(block->name, sizeof(block->name));
}

static void name_blocks_of(struct ms_snapshot *snapshot, size_t file)
{
    struct ms_checkpoint *checkpoint;
    struct ms_fault fault;
    if (!ms_checkpoint_open(snapshot->files[file].path, &checkpoint, &fault))
        return; /* it is gone, or no checkpoint */
    const struct tensors tensors = order(checkpoint);
    for (size_t i = 0; i < snapshot->block_count && tensors.places != NULL; i++) {
        struct ms_state_block *block = &snapshot->blocks[i];
        if (block->file == file + 1 && block->name[0] == '\0')
            name_block(block, &tensors);
    }
    free(tensors.places);
    ms_checkpoint_close(checkpoint);
}

void name_blocks(struct ms_snapshot *snapshot)
{
    /* Another user's page may name any file. */
    for (size_t i = 0; i < snapshot->file_count && snapshot->is_own; i++) {
        bool is_wanted = false;
        for (size_t k = 0; k < snapshot->block_count && !is_wanted; k++)
            is_wanted = snapshot->blocks[k].file == i + 1 && snapshot->blocks[k].name[0] == '\0';
        if (is_wanted && snapshot->files[i].path[0] == '/')
            name_blocks_of(snapshot, i);
    }
}
