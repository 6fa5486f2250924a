/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Named tensors: ranges of allocations that are tensors because the program said so, or because
 * nothing else has the size and place that the plan gives. Ranges do not overlap.
 *
 * Guarded by the lock of shard.c.
 */
#pragma once

#include "runtime/checkpoint/tensor.h"
#include "runtime/memory/space.h"

struct ms_named_tensor {
    uint64_t allocation_id;
    size_t begin, end; /* in the allocation */
    struct ms_tensor tensor;
    bool is_guess; /* by the plan in force, and forgotten with it */
    bool is_seen;  /* the plan was asked about it */
    char name[];   /* the tensor's */
};

size_t ms_named_tensors_count(void);
struct ms_named_tensor *ms_named_tensors_at(size_t index); /* valid until it is forgotten */

/* Replaces what overlaps it. Returns it; NULL if out of memory. */
struct ms_named_tensor *ms_named_tensors_add(uint64_t allocation_id, size_t begin, size_t end,
                                             const char *name, const struct ms_tensor *like);

/* Returns true if there was one in that range. */
bool ms_named_tensors_forget(uint64_t allocation_id, size_t begin, size_t end);

void ms_named_tensors_forget_guesses(void);

bool ms_named_tensors_hold(uint64_t allocation_id, size_t begin, size_t end);
