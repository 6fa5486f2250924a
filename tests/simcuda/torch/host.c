/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/simcuda/torch/host.h"

#include <ctype.h>
#include <math.h>

/* --- element types */

static const struct {
    const char *mangled;
    enum host_type type;
} mangled_types[] = {{"N3c108BFloat16E", HOST_BFLOAT16},
                     {"N3c104HalfE", HOST_HALF},
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

size_t host_size(enum host_type type)
{
    switch (type) {
    case HOST_BOOL:
    case HOST_UINT8:
    case HOST_INT8:
        return 1;
    case HOST_INT16:
    case HOST_HALF:
    case HOST_BFLOAT16:
        return 2;
    case HOST_INT32:
    case HOST_FLOAT:
        return 4;
    case HOST_INT64:
    case HOST_DOUBLE:
        return 8;
    default:
        return 0;
    }
}

/* "NS5_8BFloat16E": the namespace was named before. */
static enum host_type parse_in_known_namespace(const char **text)
{
    static const struct {
        const char *end;
        enum host_type type;
    } types[] = {{"_8BFloat16E", HOST_BFLOAT16}, {"_4HalfE", HOST_HALF}};
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

enum host_type host_scalar_type(unsigned number)
{
    static const enum host_type types[] = {HOST_UINT8, HOST_INT8, HOST_INT16, HOST_INT32,
                                           HOST_INT64, HOST_HALF, HOST_FLOAT, HOST_DOUBLE,
                                           HOST_NONE,  HOST_NONE, HOST_NONE,  HOST_BOOL,
                                           HOST_NONE,  HOST_NONE, HOST_NONE,  HOST_BFLOAT16};
    return number < sizeof(types) / sizeof(types[0]) ? types[number] : HOST_NONE;
}

static float from_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof(value));
    return value;
}

static uint32_t to_bits(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof(bits));
    return bits;
}

/* To nearest, ties to even (c10/util/BFloat16.h). */
static uint16_t to_bfloat16(float value)
{
    if (isnan(value))
        return 0x7fc0;
    const uint32_t bits = to_bits(value);
    return (uint16_t)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

static float from_half(uint16_t half)
{
    const uint32_t sign = (uint32_t)(half & 0x8000) << 16;
    const uint32_t exponent = half >> 10 & 31;
    const uint32_t fraction = half & 1023;
    if (exponent == 31)
        return from_bits(sign | 0x7f800000 | fraction << 13);
    const float size = exponent == 0 ? (float)fraction * 0x1p-24F
                                     : from_bits((exponent + 112) << 23 | fraction << 13);
    return sign != 0 ? -size : size;
}

/* To nearest, ties to even; rint rounds so. */
static uint16_t to_half(float value)
{
    const uint16_t sign = signbit(value) ? 0x8000 : 0;
    const float size = fabsf(value);
    if (isnan(value))
        return 0x7e00;
    if (size >= 65520.0F)
        return sign | 0x7c00;
    if (size < 0x1p-14F)
        return (uint16_t)(sign | (uint16_t)rintf(size * 0x1p24F));
    int exponent;
    const float fraction = frexpf(size, &exponent);             /* in [0.5, 1) */
    const uint32_t steps = (uint32_t)rintf(fraction * 2048.0F); /* 1024 to 2048 */
    return (uint16_t)(sign + ((uint32_t)(exponent + 13) << 10) + steps);
}

double host_load(const void *place, enum host_type type)
{
    union {
        uint8_t u8;
        int8_t i8;
        int16_t i16;
        uint16_t u16;
        int32_t i32;
        int64_t i64;
        float f;
        double d;
    } at;
    memcpy(&at, place, host_size(type));
    switch (type) {
    case HOST_BOOL:
    case HOST_UINT8:
        return at.u8;
    case HOST_INT8:
        return at.i8;
    case HOST_INT16:
        return at.i16;
    case HOST_INT32:
        return at.i32;
    case HOST_INT64:
        return (double)at.i64;
    case HOST_HALF:
        return from_half(at.u16);
    case HOST_BFLOAT16:
        return from_bits((uint32_t)at.u16 << 16);
    case HOST_FLOAT:
        return at.f;
    default:
        return at.d;
    }
}

void host_store(void *place, enum host_type type, double value)
{
    const int64_t integer = host_size(type) > 0 && type <= HOST_INT64 ? (int64_t)value : 0;
    const float real = (float)value;
    uint16_t half;
    switch (type) {
    case HOST_BOOL:
        *(uint8_t *)place = value != 0;
        break;
    case HOST_UINT8:
    case HOST_INT8:
    case HOST_INT16:
    case HOST_INT32:
    case HOST_INT64:
        memcpy(place, &integer, host_size(type)); /* little-endian */
        break;
    case HOST_HALF:
        half = to_half(real);
        memcpy(place, &half, sizeof(half));
        break;
    case HOST_BFLOAT16:
        half = to_bfloat16(real);
        memcpy(place, &half, sizeof(half));
        break;
    case HOST_FLOAT:
        memcpy(place, &real, sizeof(real));
        break;
    default:
        memcpy(place, &value, sizeof(value));
    }
}

double host_round(enum host_type type, double value)
{
    return type == HOST_DOUBLE || type <= HOST_INT64 ? value : (double)(float)value;
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

/* Bytes from the first element of an operand to the end of its last one: strides are not
 * negative. */
static size_t extent_of(const struct host_operands *operands, unsigned operand, size_t numel)
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
            launch->touch(launch, operands->address[k], extent_of(operands, k, numel));
        if (operands->data[k] == NULL)
            return false;
    }
    return true;
}

void *host_place(const struct host_operands *operands, unsigned operand, size_t element)
{
    if (operands->dims == 0)
        return operands->data[operand] + element * host_size(operands->type[operand]);
    size_t offset = 0;
    for (unsigned i = 0; i < operands->dims; i++) {
        offset += element % operands->sizes[i] * operands->strides[i][operand];
        element /= operands->sizes[i];
    }
    return operands->data[operand] + offset;
}

/* --- by name */

simcuda_find_kernel simcuda_find;
SIMCUDA_EXPORT simcuda_kernel *simcuda_find(const char *name)
{
    static simcuda_find_kernel *const families[] = {host_find_elementwise, host_find_random,
                                                    host_find_cat,         host_find_foreach,
                                                    host_find_range,       host_find_transpose,
                                                    host_find_reduce,      host_find_sleep};
    simcuda_kernel *kernel = NULL;
    for (size_t i = 0; kernel == NULL && i < sizeof(families) / sizeof(families[0]); i++)
        kernel = families[i](name);
    return kernel;
}
