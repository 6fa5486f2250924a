/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers of each type. */
#include "tools/simcuda/torch/host.h"

#include <math.h>

size_t host_size(enum host_type type)
{
    switch (type) {
    case HOST_BOOL:
    case HOST_UINT8:
    case HOST_INT8:
    case HOST_E4M3FN:
    case HOST_E5M2:
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

/* The bits of a positive number with so many bits of fraction, to nearest, ties to even: an
 * exponent of 0 has the same steps as 1. */
static uint32_t to_small(float size, int fraction_bits, int bias)
{
    int exponent = size > 0 ? ilogbf(size) : 1 - bias;
    if (exponent < 1 - bias)
        exponent = 1 - bias;
    const uint32_t steps = (uint32_t)rintf(ldexpf(size, fraction_bits - exponent));
    return ((uint32_t)(exponent + bias - 1) << fraction_bits) + steps;
}

static uint16_t to_half(float value)
{
    const uint16_t sign = signbit(value) ? 0x8000 : 0;
    const float size = fabsf(value);
    if (isnan(value))
        return 0x7e00;
    if (size >= 65520.0F)
        return sign | 0x7c00;
    return (uint16_t)(sign | to_small(size, 10, 15));
}

static float from_small(uint32_t bits, int fraction_bits, int bias)
{
    const uint32_t one = 1U << fraction_bits, fraction = bits & (one - 1);
    const int exponent = (int)(bits >> fraction_bits);
    return exponent == 0 ? ldexpf((float)fraction, 1 - bias - fraction_bits)
                         : ldexpf((float)(one + fraction), exponent - bias - fraction_bits);
}

/* The largest number has the bits `most`. Larger numbers become `above`: infinity, or the largest
 * number where there is no infinity (Float8_e4m3fn.h). */
static const struct small_type {
    int fraction_bits, bias;
    uint8_t most, above, nan;
} e4m3fn = {3, 7, 0x7e, 0x7e, 0x7f}, e5m2 = {2, 15, 0x7b, 0x7c, 0x7f};

static uint8_t to_float8(float value, const struct small_type *type)
{
    const uint8_t sign = signbit(value) ? 0x80 : 0;
    if (isnan(value))
        return sign | type->nan;
    const uint32_t bits =
        isinf(value) ? UINT32_MAX : to_small(fabsf(value), type->fraction_bits, type->bias);
    return sign | (bits > type->most ? type->above : (uint8_t)bits);
}

static float from_float8(uint8_t bits, const struct small_type *type)
{
    const uint8_t size = bits & 0x7f;
    const float value = size <= type->most    ? from_small(size, type->fraction_bits, type->bias)
                        : size == type->above ? INFINITY
                                              : NAN;
    return (bits & 0x80) != 0 ? -value : value;
}

double host_load_any(const void *place, enum host_type type)
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
    case HOST_E4M3FN:
        return from_float8(at.u8, &e4m3fn);
    case HOST_E5M2:
        return from_float8(at.u8, &e5m2);
    default:
        return at.d;
    }
}

void host_store_any(void *place, enum host_type type, double value)
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
    case HOST_E4M3FN:
        *(uint8_t *)place = to_float8(real, &e4m3fn);
        break;
    case HOST_E5M2:
        *(uint8_t *)place = to_float8(real, &e5m2);
        break;
    default:
        memcpy(place, &value, sizeof(value));
    }
}

double host_round(enum host_type type, double value)
{
    return type == HOST_DOUBLE || type <= HOST_INT64 ? value : (double)(float)value;
}

double host_lerp(enum host_type type, double from, double to, double weight)
{
    const double distance = host_round(type, to - from);
    const double rest = host_round(type, 1 - weight);
    return fabs(weight) < 0.5 ? host_round(type, from + host_round(type, weight * distance))
                              : host_round(type, to - host_round(type, distance * rest));
}
