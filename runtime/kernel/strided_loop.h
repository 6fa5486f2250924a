/* SPDX-License-Identifier: Apache-2.0 */
/* Loops over tensors of any strides, and reductions. Their parameters hold sizes and strides for 25
 * dimensions. Unused ones were never written: stale addresses there would name memory that the
 * kernel does not touch. Loops that only copy, such as of a column slice, are recognised as copies.
 */
#pragma once

#include "runtime/base/range.h"
#include "runtime/base/strided_copy.h"
#include "runtime/kernel/call.h"

/*
 * Finds the bytes of the parameters that are sizes and strides, used or not: no pointer lies there.
 * Returns false unless the kernel's rule (a reduction: its name), the sizes of its parameters and
 * their content prove it.
 */
bool ms_strided_loop_find_numbers(const struct ms_param_layout *layout,
                                  const struct ms_packed *packed, struct ms_range *numbers_out);

/* True if the launch only copies these rows: the kernel's name, the sizes of its parameters and
 * their content are as PyTorch makes them for a copy without a cast. The pointers are at
 * `pointers`. */
bool ms_strided_loop_find(const struct ms_call *call, const struct ms_param_layout *layout,
                          const struct ms_packed *packed, size_t pointers,
                          struct ms_strided_copy *rows_out);

enum ms_strided { MS_STRIDED_NOT, MS_STRIDED_UNCLEAR, MS_STRIDED_FOUND };

/* Rows of an input and of an output, in bytes: the steps of the last dimension, to which
 * TensorIterator gives the output's longest stride. */
struct ms_strides {
    uint64_t elements;          /* more than INT32_MAX: any number of them */
    uint64_t rows;              /* at least 1 */
    uint64_t in_step, out_step; /* from row to row */
    uint64_t in_span;           /* from a row's first element to its last one */
    bool has_rows;              /* each row of the output lies before the next */
    bool is_parallel;           /* each element lies at the same offset in both */
};

/* Whether the launch is such a loop over two operands with its pointers at `pointers`. Unclear: its
 * name is a loop's, but its parameters are not, or a stride leads backwards. */
enum ms_strided ms_strided_loop_find_strides(const struct ms_param_layout *layout,
                                             const struct ms_packed *packed, size_t pointers,
                                             struct ms_strides *strides_out);
