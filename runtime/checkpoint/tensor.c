/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/checkpoint/tensor.h"

#include <stddef.h>
#include <string.h>

#include "runtime/document/json.h"

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

bool ms_tensor_find_dtype(const char *name, enum ms_dtype *dtype_out)
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
        if (elements >= limit) /* indices of elements must be below 2^63, too */
            return "expected a shape of less than 2^63 elements";
    }
    tensor->elements = is_empty ? 0 : elements;
    tensor->bytes = is_empty ? 0 : bytes;
    return NULL;
}

/* --- in a JSON document */

bool ms_tensor_parse(const struct ms_fault_context *reading, const struct ms_place *place,
                     const char *dtype, const char *shape, struct ms_tensor *tensor)
{
    const struct ms_place at_dtype = {place, "dtype", 0}, at_shape = {place, "shape", 0};
    tensor->dtype = (enum ms_dtype)0;
    while (tensor->dtype < MS_DTYPE_COUNT && !ms_json_is_text(dtype, ms_dtype_names[tensor->dtype]))
        tensor->dtype++;
    if (tensor->dtype == MS_DTYPE_COUNT)
        return ms_fault_at(reading, &at_dtype, "expected a dtype of safetensors, such as \"BF16\"");
    tensor->dims = 0;
    struct ms_json_walk walk = {.in = shape};
    bool is_good = ms_json_is_list(shape);
    while (is_good && ms_json_next(&walk)) {
        const struct ms_place at = {&at_shape, NULL, tensor->dims};
        is_good = tensor->dims < MS_TENSOR_DIMS_MAX;
        if (is_good &&
            !ms_json_count(reading, &at, walk.value, 0, INT64_MAX, &tensor->shape[tensor->dims++]))
            return false;
    }
    if (!is_good)
        return ms_fault_at(reading, &at_shape, "expected a list of at most 8 integers");
    const char *fault = ms_tensor_measure(tensor);
    return fault == NULL || ms_fault_at(reading, &at_shape, "%s", fault);
}
