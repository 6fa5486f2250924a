/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/checkpoint/tensor.h"

#include <stddef.h>
#include <string.h>

const char ms_dtype_names[MS_DTYPE_COUNT][MS_DTYPE_NAME_BYTES] = {
#define ROW(name, bits) #name,
    MS_DTYPES(ROW)
#undef ROW
};

const unsigned ms_dtype_bits[MS_DTYPE_COUNT] = {
#define ROW(name, bits) bits,
    MS_DTYPES(ROW)
#undef ROW
};

bool ms_dtype_find(const char *name, enum ms_dtype *dtype_out)
{
    for (int i = 0; i < MS_DTYPE_COUNT; i++) {
        if (strcmp(ms_dtype_names[i], name) == 0) {
            *dtype_out = (enum ms_dtype)i;
            return true;
        }
    }
    return false;
}

const char *ms_tensor_measure(struct ms_tensor *tensor)
{
    const unsigned bits = ms_dtype_bits[tensor->dtype];
    bool is_empty = false;
    uint64_t elements = 1;
    for (unsigned i = 0; i < tensor->dims; i++) {
        is_empty |= tensor->shape[i] == 0;
        if (tensor->shape[i] != 0 && __builtin_mul_overflow(elements, tensor->shape[i], &elements))
            return "expected a shape of less than 2^63 bytes";
    }
    uint64_t bytes;
    const uint64_t limit = (uint64_t)1 << 63;
    if (bits >= 8) {
        if (__builtin_mul_overflow(elements, bits / 8, &bytes) || bytes >= limit)
            return "expected a shape of less than 2^63 bytes";
    } else {
        if (elements % 8 * bits % 8 != 0 && !is_empty)
            return "expected a shape with a whole number of bytes in this dtype";
        bytes = elements / 8 * bits + elements % 8 * bits / 8;
        if (elements >= limit) /* indices of elements are below 2^63 as well */
            return "expected a shape of less than 2^63 elements";
    }
    tensor->elements = is_empty ? 0 : elements;
    tensor->bytes = is_empty ? 0 : bytes;
    return NULL;
}

bool ms_tensor_is_alike(const struct ms_tensor *a, const struct ms_tensor *b)
{
    return a->dtype == b->dtype && a->dims == b->dims &&
           memcmp(a->shape, b->shape, a->dims * sizeof(a->shape[0])) == 0;
}

int ms_tensor_by_place(const void *a, const void *b)
{
    const struct ms_tensor *left = a, *right = b;
    if (left->offset != right->offset)
        return left->offset < right->offset ? -1 : 1;
    if (left->bytes != right->bytes)
        return left->bytes < right->bytes ? -1 : 1;
    return strcmp(left->name, right->name);
}
