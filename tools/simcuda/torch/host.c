/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/simcuda/torch/host.h"

#include <ctype.h>

/* --- element types */

static const struct {
    const char *mangled;
    enum host_type type;
} mangled_types[] = {{"N3c108BFloat16E", HOST_BFLOAT16},
                     {"N3c104HalfE", HOST_HALF},
                     {"N3c1013Float8_e4m3fnE", HOST_E4M3FN},
                     {"N3c1011Float8_e5m2E", HOST_E5M2},
                     {"b", HOST_BOOL},
                     {"h", HOST_UINT8},
                     {"a", HOST_INT8},
                     {"s", HOST_INT16},
                     {"i", HOST_INT32},
                     {"l", HOST_INT64},
                     {"f", HOST_FLOAT},
                     {"d", HOST_DOUBLE},
                     {"j", HOST_INT32}, /* of any type of that size */
                     {"t", HOST_INT16}};

/* "NS5_8BFloat16E": the namespace was named before. */
static enum host_type parse_in_known_namespace(const char **text)
{
    static const struct {
        const char *end;
        enum host_type type;
    } types[] = {{"_8BFloat16E", HOST_BFLOAT16},
                 {"_4HalfE", HOST_HALF},
                 {"_13Float8_e4m3fnE", HOST_E4M3FN},
                 {"_11Float8_e5m2E", HOST_E5M2}};
    if (strncmp(*text, "NS", 2) != 0)
        return HOST_NONE;
    const char *end = *text + 2;
    while (isdigit((unsigned char)*end) || isupper((unsigned char)*end))
        end++;
    for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++) {
        if (strncmp(end, types[i].end, strlen(types[i].end)) == 0) {
            *text = end + strlen(types[i].end);
            return types[i].type;
        }
    }
    return HOST_NONE;
}

enum host_type host_parse_type(const char **text, enum host_type same)
{
    for (size_t i = 0; i < sizeof(mangled_types) / sizeof(mangled_types[0]); i++) {
        const size_t length = strlen(mangled_types[i].mangled);
        if (strncmp(*text, mangled_types[i].mangled, length) == 0) {
            *text += length;
            return mangled_types[i].type;
        }
    }
    if (**text == 'N')
        return parse_in_known_namespace(text);
    const char *end = *text + 1;
    while (isdigit((unsigned char)*end) || isupper((unsigned char)*end))
        end++;
    if (**text != 'S' || *end != '_')
        return HOST_NONE;
    *text = end + 1;
    return same;
}

enum host_type host_type_behind(const char *name, const char *before)
{
    const char *at = strstr(name, before);
    if (at == NULL)
        return HOST_NONE;
    at += strlen(before);
    return host_parse_type(&at, HOST_NONE);
}

bool host_types_behind(const char *name, const char *before, enum host_type *types, unsigned count)
{
    const char *at = strstr(name, before);
    enum host_type same = HOST_NONE;
    if (at == NULL)
        return false;
    at += strlen(before);
    for (unsigned i = 0; i < count; i++) {
        const bool is_long = *at == 'N';
        types[i] = host_parse_type(&at, same);
        if (types[i] == HOST_NONE)
            return false;
        if (is_long)
            same = types[i];
    }
    return true;
}

enum host_type host_scalar_type(unsigned number)
{
    static const enum host_type types[] = {
        [0] = HOST_UINT8, [1] = HOST_INT8,      [2] = HOST_INT16, [3] = HOST_INT32,
        [4] = HOST_INT64, [5] = HOST_HALF,      [6] = HOST_FLOAT, [7] = HOST_DOUBLE,
        [11] = HOST_BOOL, [15] = HOST_BFLOAT16, [23] = HOST_E5M2, [24] = HOST_E4M3FN};
    return number < sizeof(types) / sizeof(types[0]) ? types[number] : HOST_NONE;
}

/* --- operands */

size_t host_read_calculator(struct host_operands *operands, const unsigned char *bytes)
{
    const uint32_t *words = (const uint32_t *)bytes;
    operands->dims = words[0];
    words++;
    for (unsigned i = 0; i < operands->dims; i++)
        operands->sizes[i] = words[3 * i]; /* divisor, magic, shift */
    words += 3 * HOST_MAX_DIMS;
    for (unsigned i = 0; i < operands->dims; i++) {
        for (unsigned k = 0; k < operands->count; k++)
            operands->strides[i][k] = words[i * operands->count + k];
    }
    words += HOST_MAX_DIMS * operands->count;
    return (size_t)((const unsigned char *)words - bytes);
}

size_t host_extent(const struct host_operands *operands, unsigned operand, size_t numel)
{
    const size_t size = host_size(operands->type[operand]);
    if (operands->dims == 0)
        return numel * size;
    size_t last = 0;
    for (unsigned i = 0; i < operands->dims; i++)
        last += (size_t)(operands->sizes[i] - 1) * operands->strides[i][operand];
    return last + size;
}

bool host_touch(const struct simcuda_launch *launch, struct host_operands *operands, size_t numel)
{
    for (unsigned k = operands->count; k-- > 0;) {
        operands->data[k] =
            launch->touch(launch, operands->address[k], host_extent(operands, k, numel));
        if (operands->data[k] == NULL)
            return false;
    }
    return true;
}

size_t host_offset(const struct host_operands *operands, unsigned operand, size_t element)
{
    if (operands->dims == 0)
        return element * host_size(operands->type[operand]);
    size_t offset = 0;
    for (unsigned i = 0; i < operands->dims; i++) {
        offset += element % operands->sizes[i] * operands->strides[i][operand];
        element /= operands->sizes[i];
    }
    return offset;
}

void *host_place(const struct host_operands *operands, unsigned operand, size_t element)
{
    return operands->data[operand] + host_offset(operands, operand, element);
}

bool host_open(const struct simcuda_launch *launch, struct host_vector *vector, CUdeviceptr address,
               enum host_type type, size_t count)
{
    vector->type = type;
    vector->data = launch->touch(launch, address, count * host_size(type));
    return vector->data != NULL;
}

/* --- tensors by strides */

size_t host_info_place(const struct host_tensor_info *info, size_t element)
{
    size_t place = 0;
    for (int i = info->dims - 1; i >= 0; i--) {
        place += element % info->sizes[i] * info->strides[i];
        element /= info->sizes[i];
    }
    return place;
}

size_t host_info_extent(const struct host_tensor_info *info)
{
    size_t last = 0;
    for (int i = 0; i < info->dims; i++)
        last += (size_t)(info->sizes[i] - 1) * info->strides[i];
    return last + 1;
}
