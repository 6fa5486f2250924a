/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rows by their numbers (IndexKernelUtils.cu), lengths and distances in bytes; and what comes back
 * to them (Embedding.cu), in the order of the numbers:
 *
 *     vectorized_gather_kernel<alignment, I>(char *out, char *in, I *numbers, int count, int64 row's length, int64 rows,
 *                                            int64 distance of rows in, int64 out, bool negative ones count from the end)
 *     _scatter_gather_elementwise_kernel<..., _cuda_scatter_gather_internal_kernel<scatters, element, I>::...>
 *         (int count, lambda{OffsetCalculator<3> of out, in, numbers; I *numbers, int64 rows, functor (empty), char *out,
 *                            int64 distance of rows in elements, int64 elements, char *in})
 *     embedding_backward_feature_kernel<T, A, I>(I *numbers, T *above, T *gradient, int count, int64 row's elements,
 *                                                int left out)
 */
#include "tools/simcuda/torch/host.h"

#include <stdio.h>
#include <stdlib.h>

static const char gather_name[] = "24vectorized_gather_kernelILi";
static const char backward_name[] = "33embedding_backward_feature_kernelI";

/* Behind the alignment: "ILi16ElEE". */
static enum host_type gathered_by(const char *name)
{
    const char *at = strstr(name, gather_name);
    at = at == NULL ? NULL : strchr(at + strlen(gather_name), 'E');
    if (at == NULL)
        return HOST_NONE;
    at++;
    return host_parse_type(&at, HOST_NONE);
}

static void say_missing(const struct simcuda_launch *launch, int64_t number, int64_t rows)
{
    fprintf(stderr, "torch_host: no row %lld of %lld\n", (long long)number, (long long)rows);
    launch->touch(launch, 0, 1); /* loud */
}

static void gather(const struct simcuda_launch *launch, void **args)
{
    const size_t count = (size_t)SIMCUDA_ARG(args, 3, int);
    const size_t length = (size_t)SIMCUDA_ARG(args, 4, int64_t);
    const int64_t rows = SIMCUDA_ARG(args, 5, int64_t);
    const size_t in_row = (size_t)SIMCUDA_ARG(args, 6, int64_t);
    const size_t out_row = (size_t)SIMCUDA_ARG(args, 7, int64_t);
    struct host_vector numbers;
    if (count == 0 || !host_open(launch, &numbers, SIMCUDA_ARG(args, 2, CUdeviceptr),
                                 gathered_by(launch->name), count))
        return;
    const unsigned char *in = launch->touch(launch, SIMCUDA_ARG(args, 1, CUdeviceptr),
                                            (size_t)(rows - 1) * in_row + length);
    unsigned char *out = in == NULL ? NULL
                                    : launch->touch(launch, SIMCUDA_ARG(args, 0, CUdeviceptr),
                                                    (count - 1) * out_row + length);
    for (size_t i = 0; out != NULL && i < count; i++) {
        int64_t number = (int64_t)host_get(&numbers, i);
        if (number < 0 && SIMCUDA_ARG(args, 8, bool))
            number += rows;
        if (number < 0 || number >= rows) {
            say_missing(launch, number, rows);
            return;
        }
        memcpy(out + i * out_row, in + (size_t)number * in_row, length);
    }
}

/* --- elements by the number of their row (ScatterGatherKernel.cu) */

static const char elements_name[] = "36_cuda_scatter_gather_internal_kernelILb";

struct elements {
    bool scatters;
    size_t size;
    enum host_type number;
};

/* "...ILb0ENS0_10OpaqueTypeILi4EEElE" */
static bool read_elements(const char *name, struct elements *out)
{
    const char *at = strstr(name, elements_name);
    if (at == NULL || strstr(name, "12TensorAssignE") == NULL)
        return false;
    at += strlen(elements_name);
    out->scatters = *at == '1';
    at = strstr(at, "10OpaqueTypeILi");
    if (at == NULL)
        return false;
    char *behind;
    out->size = strtoul(at + strlen("10OpaqueTypeILi"), &behind, 10);
    at = behind + strlen("EEE");
    out->number = host_parse_type(&at, HOST_NONE);
    return out->number != HOST_NONE;
}

static void move_elements(const struct simcuda_launch *launch, void **args)
{
    enum { OUT, IN, NUMBERS };
    struct elements kind;
    if (!read_elements(launch->name, &kind))
        return;
    const size_t count = (size_t)SIMCUDA_ARG(args, 0, int);
    const unsigned char *lambda = args[1];
    struct host_operands operands = {.count = 3, .type = {HOST_UINT8, HOST_UINT8, kind.number}};
    const size_t at = (host_read_calculator(&operands, lambda) + 7) / 8 * 8;
    const int64_t rows = (int64_t)host_word(lambda, at + 8);
    const size_t distance = host_word(lambda, at + 32) * kind.size;
    operands.address[NUMBERS] = host_word(lambda, at);
    operands.address[OUT] = host_word(lambda, at + 24);
    operands.address[IN] = host_word(lambda, at + 48);
    const unsigned by_number = kind.scatters ? OUT : IN;
    for (unsigned i = 0; i < 3; i++) {
        const size_t more = (i == NUMBERS ? 0 : kind.size - 1) +
                            (i == by_number ? (size_t)(rows - 1) * distance : 0);
        operands.data[i] =
            launch->touch(launch, operands.address[i], host_extent(&operands, i, count) + more);
        if (operands.data[i] == NULL)
            return;
    }
    for (size_t i = 0; i < count; i++) {
        const int64_t number = (int64_t)host_load(host_place(&operands, NUMBERS, i), kind.number);
        if (number < 0 || number >= rows) {
            say_missing(launch, number, rows);
            return;
        }
        unsigned char *places[] = {host_place(&operands, OUT, i), host_place(&operands, IN, i)};
        places[by_number] += (size_t)number * distance;
        memmove(places[OUT], places[IN], kind.size);
    }
}

static void scatter(const struct simcuda_launch *launch, void **args)
{
    enum host_type types[3];
    if (!host_types_behind(launch->name, backward_name, types, 3))
        return;
    const size_t count = (size_t)SIMCUDA_ARG(args, 3, int);
    const size_t length = (size_t)SIMCUDA_ARG(args, 4, int64_t);
    const int left_out = SIMCUDA_ARG(args, 5, int);
    struct host_vector numbers, above, row;
    if (!host_open(launch, &numbers, SIMCUDA_ARG(args, 0, CUdeviceptr), types[2], count) ||
        !host_open(launch, &above, SIMCUDA_ARG(args, 1, CUdeviceptr), types[0], count * length))
        return;
    for (size_t i = 0; i < count; i++) {
        const int64_t number = (int64_t)host_get(&numbers, i);
        if (number == left_out)
            continue;
        const CUdeviceptr place =
            SIMCUDA_ARG(args, 2, CUdeviceptr) + (size_t)number * length * host_size(types[0]);
        if (!host_open(launch, &row, place, types[0], length))
            return;
        for (size_t k = 0; k < length; k++)
            host_set(&row, k, host_get(&row, k) + host_get(&above, i * length + k));
    }
}

simcuda_kernel *host_find_embedding(const char *name)
{
    enum host_type types[3];
    struct elements elements;
    if (gathered_by(name) != HOST_NONE)
        return gather;
    if (read_elements(name, &elements))
        return move_elements;
    return host_types_behind(name, backward_name, types, 3) ? scatter : NULL;
}
