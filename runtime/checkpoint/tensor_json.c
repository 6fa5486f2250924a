/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/checkpoint/tensor_json.h"

bool ms_json_tensor(const struct ms_fault_context *reading, const struct ms_place *place,
                    json_t *object, struct ms_tensor *tensor)
{
    json_t *dtype = json_object_get(object, "dtype"), *shape = json_object_get(object, "shape");
    const struct ms_place at_dtype = {place, "dtype", 0}, at_shape = {place, "shape", 0};
    if (!json_is_string(dtype) || !ms_dtype_find(json_string_value(dtype), &tensor->dtype))
        return ms_fault_at(reading, &at_dtype, "expected a dtype of safetensors, such as \"BF16\"");
    if (!json_is_array(shape) || json_array_size(shape) > MS_TENSOR_DIMS_MAX)
        return ms_fault_at(reading, &at_shape, "expected a list of at most 8 integers");
    tensor->dims = (unsigned)json_array_size(shape);
    for (unsigned i = 0; i < tensor->dims; i++) {
        const struct ms_place at = {&at_shape, NULL, i};
        if (!ms_json_count(reading, &at, json_array_get(shape, i), 0, INT64_MAX, &tensor->shape[i]))
            return false;
    }
    const char *fault = ms_tensor_measure(tensor);
    return fault == NULL || ms_fault_at(reading, &at_shape, "%s", fault);
}
