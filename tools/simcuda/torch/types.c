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
