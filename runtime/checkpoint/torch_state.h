/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finds the tensors in the pickle of torch.save (data.pkl), and their names: all tensors reached
 * from the top through dicts, lists and tuples (docs/plan-format.md, Checkpoints). torch_file.h
 * finds their storages.
 */
#pragma once

#include "runtime/base/arena.h"
#include "runtime/checkpoint/checkpoint.h"

/* Equations: tensor.offset + tensor.bytes <= storage_bytes; tensor.file is NULL. */
struct ms_torch_view {
    struct ms_tensor tensor; /* offset: in its storage */
    const char *key;         /* of the storage; valid UTF-8 */
    uint64_t storage_bytes;
};

/* Views in the order of the pickle. Two views may have the same bytes, or the same name. Each name
 * is skipped of a tensor that is not contiguous in its storage, of a dtype that safetensors lacks,
 * in an object, below a key without a name, conjugated, or of too many dimensions. */
struct ms_torch_state {
    struct ms_torch_view *views; /* ms_heap_free */
    size_t count, capacity, skipped;
};

/* Strings are in the arena, also some if the function returns false. */
bool ms_torch_state_read(const struct ms_fault_context *reading, const char *text, size_t bytes,
                         struct ms_arena *arena, struct ms_torch_state *state_out);
