/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tensors that are concatenated, as FSDP1 does with those of a unit before it broadcasts them:
 * their sizes in bytes, and the index of one. Their order identifies those of equal size.
 */
#ifndef METASHARD_RUNTIME_PLAN_TENSOR_RUN_H
#define METASHARD_RUNTIME_PLAN_TENSOR_RUN_H

#include <stddef.h>

/* The caller owns the list. */
struct ms_sequence {
    const size_t *bytes;
    size_t count, at;
};

#endif
