/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Arithmetic of the data types. A result is rounded to its type after every operation, to nearest
 * even, as a device's adders do. The 8-bit types are computed in half precision and saturate.
 */
#include "tools/simcuda/nccl/internal.h"

#include <math.h>
#include <string.h>

static const struct {
    const char *name;
    size_t bytes;
} types[ncclNumTypes] = {
    [ncclInt8] = {"int8", 1},       [ncclUint8] = {"uint8", 1},
    [ncclInt32] = {"int32", 4},     [ncclUint32] = {"uint32", 4},
    [ncclInt64] = {"int64", 8},     [ncclUint64] = {"uint64", 8},
    [ncclFloat16] = {"float16", 2}, [ncclFloat32] = {"float32", 4},
    [ncclFloat64] = {"float64", 8}, [ncclBfloat16] = {"bfloat16", 2},
    [ncclFloat8e4m3] = {"e4m3", 1}, [ncclFloat8e5m2] = {"e5m2", 1},
};

static bool is_type(ncclDataType_t type)
{
    return (unsigned)type < ncclNumTypes;
}

size_t nc_type_bytes(ncclDataType_t type)
{
    return is_type(type) ? types[type].bytes : 0;
}

const char *nc_type_name(ncclDataType_t type)
{
    return is_type(type) ? types[type].name : "unknown type";
}

/* --- small floating point types: sign, exponent, fraction */

struct small {
    int exponent_bits, fraction_bits;
    bool has_infinity; /* else the largest exponent is an ordinary one, except for NaN */
    bool saturates;
};
static const struct small half = {5, 10, true, false};
static const struct small bfloat = {8, 7, true, false};
static const struct small e4m3 = {4, 3, false, true};
static const struct small e5m2 = {5, 2, true, true};

static const struct small *small_type(ncclDataType_t type)
{
    switch ((int)type) {
    case ncclFloat16:
        return &half;
    case ncclBfloat16:
        return &bfloat;
    case ncclFloat8e4m3:
        return &e4m3;
    case ncclFloat8e5m2:
        return &e5m2;
    default:
        return NULL;
    }
}

static int bias(const struct small *small)
{
    return (1 << (small->exponent_bits - 1)) - 1;
}

static double decode(const struct small *small, unsigned bits)
{
    const unsigned fraction = bits & ((1u << small->fraction_bits) - 1);
    const unsigned top = (1u << small->exponent_bits) - 1;
    const unsigned exponent = bits >> small->fraction_bits & top;
    const bool is_negative = bits >> (small->exponent_bits + small->fraction_bits) & 1;
    double value;
    if (exponent == top && small->has_infinity)
        value = fraction == 0 ? INFINITY : NAN;
    else if (exponent == top && fraction == (1u << small->fraction_bits) - 1)
        value = NAN;
    else if (exponent == 0)
        value = ldexp(fraction, 1 - bias(small) - small->fraction_bits);
    else
        value = ldexp((double)(fraction + (1u << small->fraction_bits)),
                      (int)exponent - bias(small) - small->fraction_bits);
    return is_negative ? -value : value;
}

/* The bits of the largest finite value, without sign. */
static unsigned largest(const struct small *small)
{
    const unsigned all = (1u << (small->exponent_bits + small->fraction_bits)) - 1;
    return small->has_infinity ? (all >> small->fraction_bits << small->fraction_bits) - 1
                               : all - 1;
}

static unsigned encode(const struct small *small, double value)
{
    const unsigned sign = signbit(value) ? 1u << (small->exponent_bits + small->fraction_bits) : 0;
    const unsigned all = (1u << (small->exponent_bits + small->fraction_bits)) - 1;
    const int smallest = 1 - bias(small); /* exponent of the normal numbers */
    int exponent;
    if (isnan(value))
        return sign | all;
    const double size = fabs(value);
    if (size > decode(small, largest(small)) * 2)
        return sign | (small->saturates ? largest(small) : largest(small) + 1);
    if (size == 0)
        return sign;
    frexp(size, &exponent);
    exponent = exponent - 1 < smallest ? smallest : exponent - 1;
    /* In units of the last place; a carry moves into the exponent by itself. */
    const double units = rint(ldexp(size, small->fraction_bits - exponent));
    const unsigned bits =
        ((unsigned)(exponent - smallest) << small->fraction_bits) + (unsigned)units;
    if (bits > largest(small))
        return sign | (small->saturates ? largest(small) : largest(small) + 1);
    return sign | bits;
}

static unsigned load_small(const unsigned char *at, size_t bytes)
{
    return bytes == 1 ? at[0] : at[0] | (unsigned)at[1] << 8;
}

static void store_small(unsigned char *at, size_t bytes, unsigned bits)
{
    at[0] = (unsigned char)bits;
    if (bytes == 2)
        at[1] = (unsigned char)(bits >> 8);
}

static void store_rounded(const struct small *small, unsigned char *at, size_t bytes, double value)
{
    if (bytes == 1)
        value = decode(&half, encode(&half, value));
    store_small(at, bytes, encode(small, value));
}

static double combine_real(ncclRedOp_t op, double a, double b)
{
    switch ((int)op) {
    case ncclSum:
        return a + b;
    case ncclProd:
        return a * b;
    case ncclMax:
        return fmax(a, b);
    default:
        return fmin(a, b);
    }
}

static void combine_small(ncclDataType_t type, ncclRedOp_t op, unsigned char *into,
                          const unsigned char *from, size_t count)
{
    const struct small *small = small_type(type);
    const size_t bytes = types[type].bytes;
    for (size_t i = 0; i < count * bytes; i += bytes) {
        const double a = decode(small, load_small(into + i, bytes));
        const double b = decode(small, load_small(from + i, bytes));
        store_rounded(small, into + i, bytes, combine_real(op, a, b));
    }
}

/* --- the others */

/* Sums and products of integers wrap: computed without sign. */
#define COMBINE(name, type, wide)                                                              \
    static void combine_##name(ncclRedOp_t op, unsigned char *into, const unsigned char *from, \
                               size_t count)                                                   \
    {                                                                                          \
        for (size_t i = 0; i < count; i++, into += sizeof(type), from += sizeof(type)) {       \
            type a;                                                                            \
            type b;                                                                            \
            memcpy(&a, into, sizeof(a));                                                       \
            memcpy(&b, from, sizeof(b));                                                       \
            if (op == ncclSum)                                                                 \
                a = (type)((wide)a + (wide)b);                                                 \
            else if (op == ncclProd)                                                           \
                a = (type)((wide)a * (wide)b);                                                 \
            else if (op == ncclMax)                                                            \
                a = a > b || b != b ? a : b;                                                   \
            else                                                                               \
                a = a < b || b != b ? a : b;                                                   \
            memcpy(into, &a, sizeof(a));                                                       \
        }                                                                                      \
    }
COMBINE(int8, int8_t, uint64_t)
COMBINE(uint8, uint8_t, uint64_t)
COMBINE(int32, int32_t, uint64_t)
COMBINE(uint32, uint32_t, uint64_t)
COMBINE(int64, int64_t, uint64_t)
COMBINE(uint64, uint64_t, uint64_t)
COMBINE(float, float, float)
COMBINE(double, double, double)

void nc_combine(ncclDataType_t type, ncclRedOp_t op, void *into, const void *from, size_t count)
{
    typedef void combiner(ncclRedOp_t, unsigned char *, const unsigned char *, size_t);
    static combiner *const combiners[ncclNumTypes] = {
        [ncclInt8] = combine_int8,     [ncclUint8] = combine_uint8,
        [ncclInt32] = combine_int32,   [ncclUint32] = combine_uint32,
        [ncclInt64] = combine_int64,   [ncclUint64] = combine_uint64,
        [ncclFloat32] = combine_float, [ncclFloat64] = combine_double,
    };
    if (combiners[type] != NULL)
        combiners[type](op, into, from, count);
    else
        combine_small(type, op, into, from, count);
}

void nc_scale(ncclDataType_t type, const void *scalar, void *values, size_t count)
{
    for (size_t i = 0; i < count; i++)
        nc_combine(type, ncclProd, (unsigned char *)values + i * types[type].bytes, scalar, 1);
}

#define DIVIDE(type)                                                                \
    for (size_t i = 0; i < count; i++) {                                            \
        type value;                                                                 \
        memcpy(&value, (unsigned char *)values + i * sizeof(value), sizeof(value)); \
        value = (type)(value / (type)divisor);                                      \
        memcpy((unsigned char *)values + i * sizeof(value), &value, sizeof(value)); \
    }                                                                               \
    break

void nc_divide(ncclDataType_t type, uint64_t divisor, void *values, size_t count)
{
    switch ((int)type) {
    case ncclInt8:
        DIVIDE(int8_t);
    case ncclUint8:
        DIVIDE(uint8_t);
    case ncclInt32:
        DIVIDE(int32_t);
    case ncclUint32:
        DIVIDE(uint32_t);
    case ncclInt64:
        DIVIDE(int64_t);
    default:
        DIVIDE(uint64_t);
    }
}

void nc_average(ncclDataType_t type, int ranks, struct nc_reduction *reduction_out)
{
    const double one = 1.0 / ranks;
    const float one_float = (float)one;
    *reduction_out = (struct nc_reduction){.op = ncclSum, .is_scaled = true};
    if (type == ncclFloat64)
        memcpy(reduction_out->scalar, &one, sizeof(one));
    else if (type == ncclFloat32)
        memcpy(reduction_out->scalar, &one_float, sizeof(one_float));
    else if (small_type(type) != NULL)
        store_small(reduction_out->scalar, types[type].bytes,
                    encode(small_type(type), (double)one_float));
    else
        *reduction_out = (struct nc_reduction){.op = ncclSum, .divisor = (uint64_t)ranks};
}
