/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finds the remote parts of a tensor before any of it has arrived, so that a broadcast to it need
 * not be kept whole (receive.h), and a copy of it can be marked alike (calls/copy.c): PyTorch
 * concatenates tensors, broadcasts the result, and copies the parts back.
 */
#pragma once

#include "runtime/base/ranges.h"
#include "runtime/memory/space.h"

/* Tensors that are concatenated, as FSDP1 does with those of a unit before it broadcasts them:
 * their sizes in bytes, and the index of one. Their order identifies those of equal size. */
struct ms_sequence {
    const size_t *bytes; /* the caller's */
    size_t count, at;
};

/*
 * Adds the parts of [begin, begin + bytes) of a claimed allocation that other ranks keep, sorted
 * and exact to the byte. It knows them from the tensor's name; else from what the plan says of its
 * content (shard.h) and what was copied there from remote bytes; or, if its content says
 * nothing, from its size. `sequence` is the one that the tensor is in, or NULL.
 * Adds nothing with METASHARD_RECEIVE_PARTS=off. Returns false if out of memory.
 */
bool ms_remote_parts_list(struct ms_allocation *allocation, size_t begin, size_t bytes,
                          const struct ms_sequence *sequence, struct ms_ranges *remote_parts);
