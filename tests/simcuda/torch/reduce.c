/* SPDX-License-Identifier: Apache-2.0 */
/*
 * reduce_kernel<..., ReduceOp<T, ...>> (Reduce.cuh), for the reductions that loading, initialising
 * and talking to other ranks need: all elements of a dense tensor to one. Of ReduceOp's members
 * only these are read; what stands before them and between them depends on T:
 *
 *     {operation (empty), T identity, ReduceConfig {int element size, inputs, outputs, ...}, calculators,
 *      source, destination[2], four words, bool accumulate, bool final, int outputs}
 */
#include "tests/simcuda/torch/host.h"

#include <math.h>
#include <stdio.h>

enum { BEHIND_SOURCE = 64 }; /* bytes of ReduceOp from the source on */

struct reduction {
    enum { BY_OR, BY_AND, BY_MAX, BY_MIN, BY_SUM } kind;
    enum host_type type; /* of the elements, and of the result */
    size_t identity;     /* bytes of T */
};

/* sum_functor<T, float, T> for types of half the size, which were named before, else sum_functor<T,
 * T, T>; with other types it casts. */
static bool gives_what_it_reads(const char *name)
{
    static const char *const same[] = {"Ifff", "Iddd", "Illl", "Iiii", "IS4_fS4_E"};
    const char *at = strstr(name, "11sum_functor") + strlen("11sum_functor");
    for (size_t i = 0; i < sizeof(same) / sizeof(same[0]); i++) {
        if (strncmp(at, same[i], strlen(same[i])) == 0)
            return true;
    }
    return false;
}

static bool read_name(const char *name, struct reduction *out)
{
    static const struct {
        const char *name;
        int kind;
    } kinds[] = {{"14or_kernel_cuda", BY_OR},
                 {"15and_kernel_cuda", BY_AND},
                 {"13MaxNanFunctorI", BY_MAX},
                 {"13MinNanFunctorI", BY_MIN},
                 {"11sum_functorI", BY_SUM}};
    if (strstr(name, "13reduce_kernelI") == NULL)
        return false;
    out->type = host_type_behind(name, "8ReduceOpI");
    out->identity = host_size(out->type);
    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        if (strstr(name, kinds[i].name) != NULL) {
            out->kind = kinds[i].kind;
            if (out->kind == BY_SUM && out->identity < sizeof(float))
                out->identity = sizeof(float);
            /* Of any and all there are versions that read another type than they give. */
            return out->type != HOST_NONE && (out->kind > BY_AND || out->type == HOST_BOOL) &&
                   (out->kind != BY_SUM || gives_what_it_reads(name));
        }
    }
    return false;
}

/* Whether an element takes the place of the best so far. A NaN does, and stays. */
static bool is_better(const struct reduction *reduction, const void *one, const void *best)
{
    const bool wants_more = reduction->kind == BY_MAX;
    if (reduction->type == HOST_INT64) { /* more than a double can tell apart */
        int64_t a, b;
        memcpy(&a, one, sizeof(a));
        memcpy(&b, best, sizeof(b));
        return wants_more ? a > b : a < b;
    }
    const double a = host_load(one, reduction->type);
    const double b = host_load(best, reduction->type);
    return !isnan(b) && (isnan(a) || (wants_more ? a > b : a < b));
}

static const unsigned char *find_best(const struct reduction *reduction, const unsigned char *in,
                                      size_t count)
{
    const size_t size = host_size(reduction->type);
    const unsigned char *best = in;
    for (size_t i = 1; i < count; i++) {
        if (is_better(reduction, in + i * size, best))
            best = in + i * size;
    }
    return best;
}

static unsigned char decide(const struct reduction *reduction, const unsigned char *in,
                            size_t count)
{
    unsigned char any = 0, all = 1;
    for (size_t i = 0; i < count; i++) {
        any |= in[i] != 0;
        all &= in[i] != 0;
    }
    return reduction->kind == BY_OR ? any : all;
}

/* In the order of the elements; a GPU has another one, which rounds differently. */
static void add_up(const struct reduction *reduction, const unsigned char *in, size_t count,
                   unsigned char *out)
{
    const size_t size = host_size(reduction->type);
    if (reduction->type == HOST_INT64) {
        uint64_t sum = 0;
        for (size_t i = 0; i < count; i++)
            sum += host_word(in, i * size);
        memcpy(out, &sum, sizeof(sum));
        return;
    }
    double sum = 0;
    for (size_t i = 0; i < count; i++)
        sum = host_round(reduction->type, sum + host_load(in + i * size, reduction->type));
    host_store(out, reduction->type, sum);
}

static uint32_t number_at(const unsigned char *bytes, size_t offset)
{
    uint32_t number;
    memcpy(&number, bytes + offset, sizeof(number));
    return number;
}

static void run(const struct simcuda_launch *launch, void **args)
{
    const unsigned char *op = args[0];
    struct reduction reduction;
    if (!read_name(launch->name, &reduction))
        return;
    const size_t size = host_size(reduction.type);
    const size_t config = (2 * reduction.identity + 3) / 4 * 4;
    const size_t source = launch->args_bytes - BEHIND_SOURCE;
    const size_t inputs = number_at(op, config + 4);
    if (number_at(op, config + 8) != 1 || inputs == 0) {
        fprintf(stderr, "torch_host: only all of a tensor can be reduced: %s\n", launch->name);
        launch->touch(launch, 0, 1); /* loud */
        return;
    }
    const unsigned char *in = launch->touch(launch, host_word(op, source), inputs * size);
    unsigned char *out = in == NULL ? NULL : launch->touch(launch, host_word(op, source + 8), size);
    if (out == NULL)
        return;
    if (reduction.kind <= BY_AND)
        *out = decide(&reduction, in, inputs);
    else if (reduction.kind == BY_SUM)
        add_up(&reduction, in, inputs, out);
    else
        memcpy(out, find_best(&reduction, in, inputs), size);
}

simcuda_kernel *host_find_reduce(const char *name)
{
    struct reduction reduction;
    return read_name(name, &reduction) ? run : NULL;
}
