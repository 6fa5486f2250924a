/* SPDX-License-Identifier: Apache-2.0 */
/*
 * PyTorch's gpu_kernel_impl_nocast (aten/src/ATen/native/cuda/CUDALoops.cuh) gives its kernel (int count, closure), where
 * the closure holds OffsetCalculator<2> and the two pointers, in this order or the other:
 *
 *     int dims;
 *     struct { unsigned divisor, m1, shift; } sizes[25];
 *     unsigned strides[25][2];
 *
 * (OffsetCalculator.cuh, IntegerDivider.cuh). The kernel reads the first `dims` of each.
 */
#include "runtime/launch/strided.h"

#include <string.h>

enum {
    MAX_DIMS = 25,
    SIZE_BYTES = 12,
    STRIDE_BYTES = 8,
    SIZES_AT = 4,
    STRIDES_AT = SIZES_AT + MAX_DIMS * SIZE_BYTES,
    CALCULATOR_BYTES = STRIDES_AT + MAX_DIMS * STRIDE_BYTES,
    POINTERS_BYTES = 16
};

/* Where the calculator lies, when the pointers lie there; SIZE_MAX: nowhere. */
static size_t find_calculator(const struct ms_param *closure, size_t pointers)
{
    if (closure->bytes < CALCULATOR_BYTES + POINTERS_BYTES)
        return SIZE_MAX;
    if (pointers == closure->offset)
        return closure->offset + POINTERS_BYTES;
    return pointers == closure->offset + CALCULATOR_BYTES ? closure->offset : SIZE_MAX;
}

bool ms_strided_clean(const struct ms_param_layout *layout, struct ms_packed *packed,
                      size_t pointers)
{
    int dims;
    if (layout->count != 2 || layout->params[0].bytes != sizeof(int) ||
        packed->bytes != packed->local)
        return false; /* packed by the program itself, or something else */
    const size_t at = find_calculator(&layout->params[1], pointers);
    if (at == SIZE_MAX || at + CALCULATOR_BYTES > packed->count)
        return false;
    memcpy(&dims, packed->local + at, sizeof(dims));
    if (dims < 0 || dims > MAX_DIMS)
        return false;
    const size_t unused = MAX_DIMS - (size_t)dims;
    memset(packed->local + at + SIZES_AT + (size_t)dims * SIZE_BYTES, 0, unused * SIZE_BYTES);
    memset(packed->local + at + STRIDES_AT + (size_t)dims * STRIDE_BYTES, 0, unused * STRIDE_BYTES);
    return true;
}
