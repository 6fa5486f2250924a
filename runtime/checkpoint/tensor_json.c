/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/checkpoint/tensor_json.h"

static bool find_dtype(const char *value, enum ms_dtype *dtype_out)
{
    for (int i = 0; i < MS_DTYPE_COUNT; i++) {
        if (ms_json_is_text(value, ms_dtype_names[i])) {
            *dtype_out = (enum ms_dtype)i;
            return true;
        }
    }
    return false;
}

bool ms_json_tensor(const struct ms_fault_context *reading, const struct ms_place *place,
                    const char *dtype, const char *shape, struct ms_tensor *tensor)
{
    const struct ms_place at_dtype = {place, "dtype", 0}, at_shape = {place, "shape", 0};
    if (!find_dtype(dtype, &tensor->dtype))
        return ms_fault_at(reading, &at_dtype, "expected a dtype of safetensors, such as \"BF16\"");
    tensor->dims = 0;
    struct ms_json_walk walk = ms_json_walk(shape);
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
