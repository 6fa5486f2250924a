/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Loops over tensors of any strides: their parameters hold sizes and strides for 25 dimensions, and what lies behind
 * those that are in use was never written. Stale addresses there would mean memory that the kernel does not touch.
 * And copies among them as what they are: of a column slice, say.
 */
#ifndef METASHARD_RUNTIME_KERNEL_STRIDED_LOOP_H
#define METASHARD_RUNTIME_KERNEL_STRIDED_LOOP_H

#include "runtime/base/range.h"
#include "runtime/base/strided_copy.h"
#include "runtime/kernel/call.h"

/*
 * Which bytes of the parameters are sizes and strides, used or not: no pointer lies there. False: the launch is not
 * certainly one of such a kernel, by its rule, the sizes of its parameters, and what they hold.
 */
bool ms_strided_find_numbers(const struct ms_param_layout *layout, const struct ms_packed *packed,
                             struct ms_range *numbers_out);

/*
 * True when the launch does nothing but copy these rows: its name, the sizes of its parameters and all that they hold
 * are as PyTorch makes them for a copy that changes no type. The two pointers lie at `pointers`, as above.
 */
bool ms_strided_find(const struct ms_call *call, const struct ms_param_layout *layout,
                     const struct ms_packed *packed, size_t pointers,
                     struct ms_strided_copy *rows_out);

#endif
