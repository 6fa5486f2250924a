/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Loops over tensors of any strides. Their parameters hold sizes and strides for 25 dimensions, and
 * those that are not in use were never written: stale addresses there would name memory that the
 * kernel does not touch. Loops that only copy, such as of a column slice, are recognised as copies.
 */
#pragma once

#include "runtime/base/range.h"
#include "runtime/base/strided_copy.h"
#include "runtime/kernel/call.h"

/*
 * Finds the bytes of the parameters that are sizes and strides, used or not: no pointer lies there.
 * Returns false unless the kernel's rule, the sizes of its parameters and their content prove it.
 */
bool ms_strided_loop_find_numbers(const struct ms_param_layout *layout,
                                  const struct ms_packed *packed, struct ms_range *numbers_out);

/*
 * True if the launch is such a loop whose two pointers, at `pointers`, lead it to different places
 * though they are the same: an element of the result is not that element of the source. Only false
 * is certain.
 */
bool ms_strided_loop_moves(const struct ms_param_layout *layout, const struct ms_packed *packed,
                           size_t pointers);

/*
 * True if the launch only copies these rows: the kernel's name, the sizes of its parameters and
 * their content are what PyTorch makes for a copy without a cast. Its pointers are at `pointers`.
 */
bool ms_strided_loop_find(const struct ms_call *call, const struct ms_param_layout *layout,
                          const struct ms_packed *packed, size_t pointers,
                          struct ms_strided_copy *rows_out);
