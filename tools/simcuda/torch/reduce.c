/* SPDX-License-Identifier: Apache-2.0 */
/*
 * reduce_kernel<..., ReduceOp<T, ...>> (Reduce.cuh). This file reads these members of ReduceOp; A
 * is the type in which it computes:
 *
 *     {operation (of MeanOps: A factor; else empty), A identity,
 *      ReduceConfig {int element size, inputs, outputs, ...}: 64 bytes,
 *      OffsetCalculator<1> of an output's inputs, OffsetCalculator<2> of outputs: out, first input,
 *      source, destination[2], buffers[3], base, bool accumulate, bool final, int outputs}
 */
#include "tools/simcuda/torch/host.h"

#include <math.h>
#include <stdio.h>

enum {
    CONFIG = 64,
    INPUTS = 4 + 25 * 12 + 25 * 4, /* bytes of the first calculator */
    BEHIND_SOURCE = 64,            /* bytes of ReduceOp from the source on */
    ACCUMULATE = BEHIND_SOURCE - 8 /* from there */
};

struct reduction {
    enum { BY_OR, BY_AND, BY_MAX, BY_MIN, BY_SUM, BY_MEAN, BY_NORM, BY_SQUARES } kind;
    enum host_type in, out;
    size_t computed; /* bytes of A */
};

/* The type behind the type of indices, "j": "EEjfLi4ELi4EE". */
static enum host_type read_out(const char *name, enum host_type in)
{
    for (const char *at = strstr(name, "Ej"); at != NULL; at = strstr(at + 1, "Ej")) {
        const char *behind = at + 2;
        const enum host_type out = host_parse_type(&behind, in);
        if (out != HOST_NONE && strncmp(behind, "Li", 2) == 0)
            return out;
    }
    return HOST_NONE;
}

static bool read_name(const char *name, struct reduction *out)
{
    static const struct {
        const char *name;
        int kind;
    } kinds[] = {{"14or_kernel_cuda", BY_OR},  {"15and_kernel_cuda", BY_AND},
                 {"13MaxNanFunctorI", BY_MAX}, {"13MinNanFunctorI", BY_MIN},
                 {"11sum_functorI", BY_SUM},   {"7MeanOpsI", BY_MEAN},
                 {"10NormTwoOpsI", BY_NORM}};
    if (strstr(name, "13reduce_kernelI") == NULL || strstr(name, "15xor_sum_functorI") != NULL)
        return false;
    out->in = host_type_behind(name, "8ReduceOpI");
    out->out = read_out(name, out->in);
    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        const char *at = strstr(name, kinds[i].name);
        if (at == NULL)
            continue;
        out->kind = kinds[i].kind;
        if (out->kind == BY_NORM && strstr(at, "Lb0E") != NULL) /* without the root */
            out->kind = BY_SQUARES;
        out->computed = host_size(out->in);
        if (out->kind >= BY_SUM && out->computed < sizeof(float) && out->in > HOST_INT64)
            out->computed = sizeof(float);
        /* any and all have versions that read another type than they give. */
        return out->in != HOST_NONE && out->out != HOST_NONE &&
               (out->kind > BY_AND || out->in == HOST_BOOL);
    }
    return false;
}

/* One launch. */
struct job {
    struct reduction reduction;
    struct host_operands inputs;  /* of an output, from its first */
    struct host_operands outputs; /* 0: where it is stored; 1: its first input */
    size_t inputs_count, outputs_count;
    const unsigned char *source;
    unsigned char *out;
    double factor;
};

static const unsigned char *input_at(const struct job *job, const unsigned char *first,
                                     size_t input)
{
    return first + (job->inputs.dims == 0 ? 0 : host_offset(&job->inputs, 0, input));
}

/* Whether an element takes the place of the best so far. A NaN does, and stays. */
static bool is_better(const struct reduction *reduction, const void *one, const void *best)
{
    const bool wants_more = reduction->kind == BY_MAX;
    if (reduction->in == HOST_INT64) { /* more than a double can tell apart */
        int64_t a, b;
        memcpy(&a, one, sizeof(a));
        memcpy(&b, best, sizeof(b));
        return wants_more ? a > b : a < b;
    }
    const double a = host_load(one, reduction->in);
    const double b = host_load(best, reduction->in);
    return !isnan(b) && (isnan(a) || (wants_more ? a > b : a < b));
}

static void find_best(const struct job *job, const unsigned char *first, unsigned char *out)
{
    const unsigned char *best = first;
    for (size_t i = 1; i < job->inputs_count; i++) {
        const unsigned char *one = input_at(job, first, i);
        if (is_better(&job->reduction, one, best))
            best = one;
    }
    memmove(out, best, host_size(job->reduction.in));
}

static void decide(const struct job *job, const unsigned char *first, unsigned char *out)
{
    unsigned char any = 0, all = 1;
    for (size_t i = 0; i < job->inputs_count; i++) {
        const unsigned char one = *input_at(job, first, i);
        any |= one != 0;
        all &= one != 0;
    }
    *out = job->reduction.kind == BY_OR ? any : all;
}

/* In the order of the elements, in double; a GPU has another order, which rounds differently. */
static void add_up(const struct job *job, const unsigned char *first, unsigned char *out)
{
    const struct reduction *reduction = &job->reduction;
    double sum = 0;
    uint64_t whole = 0;
    for (size_t i = 0; i < job->inputs_count; i++) {
        const unsigned char *place = input_at(job, first, i);
        const double value = host_load(place, reduction->in);
        if (reduction->in == HOST_INT64)
            whole += host_word(place, 0);
        sum += reduction->kind >= BY_NORM ? value * value : value;
    }
    if (reduction->kind == BY_SUM && reduction->in == HOST_INT64 && reduction->out == HOST_INT64) {
        memcpy(out, &whole, sizeof(whole));
        return;
    }
    if (reduction->kind == BY_MEAN)
        sum *= job->factor;
    if (reduction->kind == BY_NORM)
        sum = sqrt(sum);
    host_store(out, reduction->out, sum);
}

static uint32_t number_at(const unsigned char *bytes, size_t offset)
{
    uint32_t number;
    memcpy(&number, bytes + offset, sizeof(number));
    return number;
}

static bool read_job(const struct simcuda_launch *launch, const unsigned char *op, struct job *job)
{
    const size_t computed = job->reduction.computed;
    const size_t config = (2 * computed + 3) / 4 * 4;
    const size_t source = launch->args_bytes - BEHIND_SOURCE;
    job->inputs_count = number_at(op, config + 4);
    job->outputs_count = number_at(op, config + 8);
    job->inputs.count = 1;
    job->outputs.count = 2;
    job->inputs.type[0] = job->outputs.type[1] = job->reduction.in;
    job->outputs.type[0] = job->reduction.out;
    host_read_calculator(&job->inputs, op + config + CONFIG);
    host_read_calculator(&job->outputs, op + config + CONFIG + INPUTS);
    job->factor = host_load(op, computed == sizeof(double) ? HOST_DOUBLE : HOST_FLOAT);
    if (op[source + ACCUMULATE] != 0 || op[source + ACCUMULATE + 1] == 0) {
        fprintf(stderr, "torch_host: a reduction in several launches: %s\n", launch->name);
        launch->touch(launch, 0, 1); /* loud */
        return false;
    }
    const size_t in = host_size(job->reduction.in);
    const size_t inputs = job->inputs.dims == 0 ? in : host_extent(&job->inputs, 0, 0);
    const size_t outputs = job->outputs.dims == 0 ? in : host_extent(&job->outputs, 1, 0);
    job->source = launch->touch(launch, host_word(op, source), outputs - in + inputs);
    job->out = job->source == NULL
                   ? NULL
                   : launch->touch(launch, host_word(op, source + 8),
                                   job->outputs.dims == 0 ? host_size(job->reduction.out)
                                                          : host_extent(&job->outputs, 0, 0));
    return job->out != NULL;
}

static void run(const struct simcuda_launch *launch, void **args)
{
    struct job job = {.inputs_count = 0};
    if (!read_name(launch->name, &job.reduction) || !read_job(launch, args[0], &job))
        return;
    for (size_t i = 0; i < job.outputs_count; i++) {
        const bool is_one = job.outputs.dims == 0;
        const unsigned char *first = job.source + (is_one ? 0 : host_offset(&job.outputs, 1, i));
        unsigned char *out = job.out + (is_one ? 0 : host_offset(&job.outputs, 0, i));
        if (job.reduction.kind <= BY_AND)
            decide(&job, first, out);
        else if (job.reduction.kind <= BY_MIN)
            find_best(&job, first, out);
        else
            add_up(&job, first, out);
    }
}

simcuda_kernel *host_find_reduce(const char *name)
{
    struct reduction reduction;
    return read_name(name, &reduction) ? run : NULL;
}
