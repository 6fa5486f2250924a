/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tensors that are put one behind the other, as FSDP1 does with those of a unit before it broadcasts them: the sizes of all,
 * in bytes, and which of them is meant. Nothing names them, but where there are several of one size, their order tells.
 */
#ifndef METASHARD_RUNTIME_PLAN_TENSOR_RUN_H
#define METASHARD_RUNTIME_PLAN_TENSOR_RUN_H

#include <stddef.h>

/* The list is the caller's. */
struct ms_sequence {
    const size_t *bytes;
    size_t count, at;
};

#endif
