/* SPDX-License-Identifier: Apache-2.0 */
/* Types and operators: what two ranks make of two values. */
#include "tools/simcuda/tests/nccl/ranks.h"

#include <math.h>

/* --- an independent idea of the small types: all values, and the nearest of them */

struct format {
    ncclDataType_t type;
    size_t bytes;
    int exponent_bits, fraction_bits;
    double largest;
    bool saturates;
};
static const struct format formats[] = {
    {ncclFloat16, 2, 5, 10, 65504, false},
    {ncclBfloat16, 2, 8, 7, 0x1.fep127, false},
    {ncclFloat8e4m3, 1, 4, 3, 448, true},
    {ncclFloat8e5m2, 1, 5, 2, 57344, true},
};

static double value_of(const struct format *format, unsigned bits)
{
    const int bias = (1 << (format->exponent_bits - 1)) - 1;
    const unsigned sign = bits >> (format->exponent_bits + format->fraction_bits);
    const unsigned rest = bits & ((1u << (format->exponent_bits + format->fraction_bits)) - 1);
    const int exponent = (int)(rest >> format->fraction_bits);
    double fraction = 0;
    for (int i = 0; i < format->fraction_bits; i++) {
        if (rest >> (format->fraction_bits - 1 - i) & 1)
            fraction += pow(2, -1 - i);
    }
    const double size =
        exponent == 0 ? fraction * pow(2, 1 - bias) : (1 + fraction) * pow(2, exponent - bias);
    return sign ? -size : size;
}

/* By search: the sizes are in the order of their bits. */
static unsigned nearest(const struct format *format, double value)
{
    const unsigned sign = value < 0 ? 1u << (format->exponent_bits + format->fraction_bits) : 0;
    const double size = fabs(value);
    unsigned low = 0;
    unsigned high = 1u << (format->exponent_bits + format->fraction_bits);
    while (high - low > 1) {
        const unsigned middle = (low + high) / 2;
        if (value_of(format, middle) <= size)
            low = middle;
        else
            high = middle;
    }
    unsigned largest = low;
    while (value_of(format, largest) > format->largest)
        largest--;
    const double down = size - value_of(format, low);
    const double up = largest < low ? 0 : value_of(format, low + 1) - size;
    const unsigned bits = low + (up < down || (up == down && (low & 1) == 1));
    if (largest < low || value_of(format, bits) > format->largest)
        return sign | (format->saturates ? largest : largest + 1);
    return sign | bits;
}

static unsigned wanted_sum(const struct format *format, unsigned a, unsigned b)
{
    double exact = value_of(format, a) + value_of(format, b);
    if (format->bytes == 1) /* half precision between */
        exact = value_of(&formats[0], nearest(&formats[0], exact));
    return nearest(format, exact);
}

enum { PAIRS = 4096 };
struct pairs {
    const struct format *format;
    uint16_t bits[2][PAIRS];
};

static void make_pairs(struct pairs *pairs, const struct format *format)
{
    uint32_t random = 12345;
    pairs->format = format;
    for (int i = 0; i < 2 * PAIRS;) {
        random = random * 1664525u + 1013904223u;
        const unsigned bits = random >> 12 & ((1u << (8 * format->bytes)) - 1);
        if (fabs(value_of(format, bits)) <= format->largest) {
            pairs->bits[i % 2][i / 2] = (uint16_t)bits;
            i++;
        }
    }
}

static void run_small_sums(struct rank *rank)
{
    const struct pairs *pairs = rank->extra;
    const struct format *format = pairs->format;
    unsigned char own[PAIRS * 2];
    unsigned char wanted[PAIRS * 2];
    const ncclComm_t comm = rank_start(rank);
    const CUstream stream = rank_stream();
    for (size_t i = 0; i < PAIRS; i++) {
        unsigned sum = wanted_sum(format, pairs->bits[0][i], pairs->bits[1][i]);
        /* The sign of zero is not told by the search. */
        const unsigned top = 0x80u << (8 * (format->bytes - 1));
        if ((sum & ~top) == 0)
            sum = pairs->bits[0][i] & pairs->bits[1][i] & top;
        memcpy(own + i * format->bytes, &pairs->bits[rank->rank][i], format->bytes);
        memcpy(wanted + i * format->bytes, &sum, format->bytes);
    }
    const CUdeviceptr buffer = device_with(own, PAIRS * format->bytes);
    NCCL(ncclAllReduce((void *)buffer, (void *)buffer, PAIRS, format->type, ncclSum, comm, stream));
    sync_stream(stream);
    device_expect(buffer, wanted, PAIRS * format->bytes);
    NCCL(ncclCommDestroy(comm));
}

MS_TEST(small_sums_are_rounded_to_nearest_even)
{
    static struct pairs pairs;
    for (size_t i = 0; i < sizeof(formats) / sizeof(formats[0]); i++) {
        make_pairs(&pairs, &formats[i]);
        ranks_run(2, run_small_sums, &pairs);
    }
}

/* --- every type with every operator: small numbers, exact in all types */

static void encode(ncclDataType_t type, double value, void *bytes_out)
{
    switch ((int)type) {
    case ncclInt8:
        *(int8_t *)bytes_out = (int8_t)value;
        return;
    case ncclUint8:
        *(uint8_t *)bytes_out = (uint8_t)value;
        return;
    case ncclInt32:
        *(int32_t *)bytes_out = (int32_t)value;
        return;
    case ncclUint32:
        *(uint32_t *)bytes_out = (uint32_t)value;
        return;
    case ncclInt64:
        *(int64_t *)bytes_out = (int64_t)value;
        return;
    case ncclUint64:
        *(uint64_t *)bytes_out = (uint64_t)value;
        return;
    case ncclFloat32:
        *(float *)bytes_out = (float)value;
        return;
    case ncclFloat64:
        *(double *)bytes_out = value;
        return;
    default:
        for (size_t i = 0; i < sizeof(formats) / sizeof(formats[0]); i++) {
            const unsigned bits = nearest(&formats[i], value);
            if (formats[i].type == type)
                memcpy(bytes_out, &bits, formats[i].bytes);
        }
    }
}

static size_t bytes_of(ncclDataType_t type)
{
    static const size_t bytes[ncclNumTypes] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
    return bytes[type];
}

static bool has_sign(ncclDataType_t type)
{
    return type != ncclUint8 && type != ncclUint32 && type != ncclUint64;
}

static double combine(ncclRedOp_t op, double a, double b)
{
    const double results[] = {a + b, a * b, fmax(a, b), fmin(a, b), (a + b) / 2};
    return results[op];
}

static void run_operators(struct rank *rank)
{
    enum { COUNT = 12 };
    const ncclComm_t comm = rank_start(rank);
    const CUstream stream = rank_stream();
    const CUdeviceptr buffer = device_allocate(COUNT * sizeof(uint64_t));
    for (int type = 0; type < ncclNumTypes; type++) {
        const size_t bytes = bytes_of((ncclDataType_t)type);
        for (int op = ncclSum; op <= ncclAvg; op++) {
            unsigned char own[COUNT * sizeof(uint64_t)] = {0};
            unsigned char wanted[COUNT * sizeof(uint64_t)] = {0};
            for (int i = 0; i < COUNT; i++) {
                /* Even sums: averages are whole numbers. */
                double values[2] = {i % 4 + 1, (i % 4 + 1) % 2 + 2 * (i / 4)};
                if (has_sign((ncclDataType_t)type) && i % 3 == 1)
                    values[1] = -values[1];
                encode((ncclDataType_t)type, values[rank->rank], own + (size_t)i * bytes);
                encode((ncclDataType_t)type, combine((ncclRedOp_t)op, values[0], values[1]),
                       wanted + (size_t)i * bytes);
                /* Zero of either sign. */
                if (combine((ncclRedOp_t)op, values[0], values[1]) == 0)
                    memset(wanted + (size_t)i * bytes, 0, bytes);
            }
            CU(cuMemcpyHtoD(buffer, own, COUNT * bytes));
            NCCL(ncclAllReduce((void *)buffer, (void *)buffer, COUNT, (ncclDataType_t)type,
                               (ncclRedOp_t)op, comm, stream));
            sync_stream(stream);
            unsigned char seen[COUNT * sizeof(uint64_t)];
            CU(cuMemcpyDtoH(seen, buffer, COUNT * bytes));
            for (int i = 0; i < COUNT; i++) {
                unsigned char *last = &seen[((size_t)i + 1) * bytes - 1];
                bool is_zero = (*last & 0x7f) == 0;
                for (size_t k = 0; k + 1 < bytes; k++)
                    is_zero &= seen[(size_t)i * bytes + k] == 0;
                if (is_zero && type >= ncclFloat16)
                    *last = 0;
            }
            if (memcmp(seen, wanted, COUNT * bytes) != 0)
                ms_test_fail(__FILE__, __LINE__, "type %d operator %d", type, op);
        }
    }
    NCCL(ncclCommDestroy(comm));
}

MS_TEST(every_type_with_every_operator)
{
    ranks_run(2, run_operators, NULL);
}

static void run_wraps(struct rank *rank)
{
    const ncclComm_t comm = rank_start(rank);
    const CUstream stream = rank_stream();
    const int32_t own[3] = {INT32_MAX, INT32_MIN, rank->rank == 0 ? -7 : 2};
    const int32_t sums[3] = {-2, 0, -5};
    const CUdeviceptr in = device_with(own, sizeof(own));
    const CUdeviceptr out = device_allocate(sizeof(own));
    NCCL(ncclAllReduce((void *)in, (void *)out, 3, ncclInt32, ncclSum, comm, stream));
    sync_stream(stream);
    device_expect(out, sums, sizeof(sums));
    /* Integers: the sum, then a division that drops the rest. */
    const int32_t averages[3] = {-1, 0, -2};
    NCCL(ncclAllReduce((void *)in, (void *)out, 3, ncclInt32, ncclAvg, comm, stream));
    sync_stream(stream);
    device_expect(out, averages, sizeof(averages));
    NCCL(ncclCommDestroy(comm));
}

MS_TEST(integers_wrap_and_divide)
{
    ranks_run(2, run_wraps, NULL);
}

/* Averages of floating point multiply by 1/n first: a third is not exact. */
static void run_thirds(struct rank *rank)
{
    const ncclComm_t comm = rank_start(rank);
    const CUstream stream = rank_stream();
    const float own = (float)(rank->rank + 5);
    const float third = 1.0f / 3;
    /* One block, of rank 0: starts at rank 1, then 2, then 0. */
    const float wanted = (6 * third + 7 * third) + 5 * third;
    const CUdeviceptr in = device_with(&own, sizeof(own));
    NCCL(ncclAllReduce((void *)in, (void *)in, 1, ncclFloat32, ncclAvg, comm, stream));
    sync_stream(stream);
    device_expect(in, &wanted, sizeof(wanted));
    NCCL(ncclCommDestroy(comm));
}

MS_TEST(averages_scale_first)
{
    ranks_run(3, run_thirds, NULL);
}

static void run_scaled(struct rank *rank)
{
    const ncclComm_t comm = rank_start(rank);
    const CUstream stream = rank_stream();
    const float own = (float)(rank->rank + 1);
    float scalar = (float)(10 * (rank->rank + 1));
    const CUdeviceptr value = device_with(&own, sizeof(own));
    const CUdeviceptr scalar_there = device_with((float[]){0}, sizeof(float));
    ncclRedOp_t immediate;
    ncclRedOp_t deferred;
    NCCL(ncclRedOpCreatePreMulSum(&immediate, &scalar, ncclFloat32, ncclScalarHostImmediate, comm));
    NCCL(ncclRedOpCreatePreMulSum(&deferred, (void *)scalar_there, ncclFloat32, ncclScalarDevice,
                                  comm));
    CHECK(immediate != deferred && immediate >= ncclNumOps);
    float wanted = 0;
    for (int i = 1; i <= rank->nranks; i++)
        wanted += (float)(i * 10 * i);
    const CUdeviceptr out = device_allocate(sizeof(own));
    NCCL(ncclAllReduce((void *)value, (void *)out, 1, ncclFloat32, immediate, comm, stream));
    /* An operator may go when the call is over; another may take its number. */
    NCCL(ncclRedOpDestroy(immediate, comm));
    sync_stream(stream);
    device_expect(out, &wanted, sizeof(wanted));
    /* The scalar on the device is read when the operation runs. */
    CU(cuMemcpyHtoDAsync(scalar_there, &scalar, sizeof(scalar), stream));
    NCCL(ncclAllReduce((void *)value, (void *)value, 1, ncclFloat32, deferred, comm, stream));
    sync_stream(stream);
    device_expect(value, &wanted, sizeof(wanted));
    CHECK_EQ(ncclAllReduce((void *)value, (void *)value, 1, ncclFloat64, deferred, comm, stream),
             ncclInvalidArgument);
    NCCL(ncclRedOpDestroy(deferred, comm));
    CHECK_EQ(ncclRedOpDestroy(deferred, comm), ncclInvalidArgument);
    CHECK_EQ(ncclRedOpDestroy(ncclSum, comm), ncclInvalidArgument);
    NCCL(ncclCommDestroy(comm));
}

MS_TEST(scaled_sums)
{
    for (int nranks = 1; nranks <= 4; nranks *= 2)
        ranks_run(nranks, run_scaled, NULL);
}
