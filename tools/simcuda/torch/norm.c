/* SPDX-License-Identifier: Apache-2.0 */
/*
 * LayerNorm and RMSNorm (layer_norm_kernel.cu), T the elements' type and A the one in which it
 * computes; RMSNorm, whose kernels end with true, has no mean and no beta:
 *
 *     vectorized_layer_norm_kernel<T, A, rms>(int N, A eps, T *x, T *gamma, T *beta, A *mean, A *rstd, T *y)
 *     RowwiseMomentsCUDAKernel<T, A, rms>(int64 M, int64 N, A eps, T *x, A *mean, A *rstd)
 *     LayerNormForwardCUDAKernel<T, A, rms>(int64 M, int64 N, T *x, A *mean, A *rstd, T *gamma, T *beta, T *y)
 *     layer_norm_grad_input_kernel<T, A, rms>(T *dy, T *x, A *mean, A *rstd, T *gamma, T *dx, int N)
 *     GammaBetaBackwardCUDAKernelTemplate<T, A, columns and rows of a block, rows that it adds, partial, aligned, rms>
 *         (int64 M, int64 N, T *dy, T *x, A *mean, A *rstd, T *dgamma, T *dbeta)
 */
#include "tools/simcuda/torch/host.h"

#include <math.h>
#include <stdlib.h>

/* M rows of N elements. */
struct job {
    bool is_rms;
    enum host_type type, computed;
    size_t rows, length;
    struct host_vector x, y, gamma, beta, mean, rstd, dy, dx, dgamma, dbeta;
};

static bool open(const struct simcuda_launch *launch, struct host_vector *vector, const void *arg,
                 enum host_type type, size_t count)
{
    const CUdeviceptr address = *(const CUdeviceptr *)arg;
    return address == 0 || host_open(launch, vector, address, type, count);
}

static bool read_name(const char *name, const char *kernel, struct job *job)
{
    enum host_type types[2];
    if (!host_types_behind(name, kernel, types, 2))
        return false;
    const char *end = strstr(name, "EEEv");
    *job = (struct job){.type = types[0],
                        .computed = types[1],
                        .is_rms = end != NULL && end[-1] == '1'};
    return true;
}

static double of(const struct host_vector *vector, size_t element, double otherwise)
{
    return vector->data == NULL ? otherwise : host_get(vector, element);
}

static void find_moments(const struct job *job, double epsilon)
{
    for (size_t row = 0; row < job->rows; row++) {
        const size_t first = row * job->length;
        double mean = 0;
        double squares = 0;
        for (size_t i = 0; !job->is_rms && i < job->length; i++)
            mean += host_get(&job->x, first + i);
        mean /= (double)job->length;
        for (size_t i = 0; i < job->length; i++) {
            const double from = host_get(&job->x, first + i) - mean;
            squares += from * from;
        }
        if (!job->is_rms)
            host_set(&job->mean, row, mean);
        host_set(&job->rstd, row, 1 / sqrt(squares / (double)job->length + epsilon));
    }
}

static void normalise(const struct job *job)
{
    for (size_t row = 0; row < job->rows; row++) {
        const double mean = job->is_rms ? 0 : host_get(&job->mean, row);
        const double rstd = host_get(&job->rstd, row);
        for (size_t i = 0; i < job->length; i++) {
            const double value = (host_get(&job->x, row * job->length + i) - mean) * rstd;
            host_set(&job->y, row * job->length + i,
                     value * of(&job->gamma, i, 1) + of(&job->beta, i, 0));
        }
    }
}

static void vectorized(const struct simcuda_launch *launch, void **args)
{
    struct job job;
    if (!read_name(launch->name, "28vectorized_layer_norm_kernelI", &job))
        return;
    job.rows = launch->grid[0];
    job.length = (size_t)SIMCUDA_ARG(args, 0, int);
    const size_t all = job.rows * job.length;
    if (!open(launch, &job.x, args[2], job.type, all) ||
        !open(launch, &job.gamma, args[3], job.type, job.length) ||
        (!job.is_rms && !open(launch, &job.beta, args[4], job.type, job.length)) ||
        (!job.is_rms && !open(launch, &job.mean, args[5], job.computed, job.rows)) ||
        !open(launch, &job.rstd, args[6], job.computed, job.rows) ||
        !open(launch, &job.y, args[7], job.type, all))
        return;
    find_moments(&job, host_load(args[1], job.computed));
    normalise(&job);
}

static void moments(const struct simcuda_launch *launch, void **args)
{
    struct job job;
    if (!read_name(launch->name, "24RowwiseMomentsCUDAKernelI", &job))
        return;
    job.rows = (size_t)SIMCUDA_ARG(args, 0, int64_t);
    job.length = (size_t)SIMCUDA_ARG(args, 1, int64_t);
    if (open(launch, &job.x, args[3], job.type, job.rows * job.length) &&
        (job.is_rms || open(launch, &job.mean, args[4], job.computed, job.rows)) &&
        open(launch, &job.rstd, args[5], job.computed, job.rows))
        find_moments(&job, host_load(args[2], job.computed));
}

static void forward(const struct simcuda_launch *launch, void **args)
{
    struct job job;
    if (!read_name(launch->name, "26LayerNormForwardCUDAKernelI", &job))
        return;
    job.rows = (size_t)SIMCUDA_ARG(args, 0, int64_t);
    job.length = (size_t)SIMCUDA_ARG(args, 1, int64_t);
    const size_t all = job.rows * job.length;
    if (open(launch, &job.x, args[2], job.type, all) &&
        (job.is_rms || open(launch, &job.mean, args[3], job.computed, job.rows)) &&
        open(launch, &job.rstd, args[4], job.computed, job.rows) &&
        open(launch, &job.gamma, args[5], job.type, job.length) &&
        (job.is_rms || open(launch, &job.beta, args[6], job.type, job.length)) &&
        open(launch, &job.y, args[7], job.type, all))
        normalise(&job);
}

static void find_input_gradient(const struct job *job)
{
    const double length = (double)job->length;
    for (size_t row = 0; row < job->rows; row++) {
        const size_t first = row * job->length;
        const double mean = job->is_rms ? 0 : host_get(&job->mean, row);
        const double rstd = host_get(&job->rstd, row);
        double plain = 0;
        double weighted = 0;
        for (size_t i = 0; i < job->length; i++) {
            const double above = host_get(&job->dy, first + i) * of(&job->gamma, i, 1);
            plain += above;
            weighted += above * (host_get(&job->x, first + i) - mean) * rstd;
        }
        for (size_t i = 0; i < job->length; i++) {
            const double above = host_get(&job->dy, first + i) * of(&job->gamma, i, 1);
            const double from = (host_get(&job->x, first + i) - mean) * rstd;
            const double rest = length * above - from * weighted - (job->is_rms ? 0 : plain);
            host_set(&job->dx, first + i, rest / length * rstd);
        }
    }
}

static const char *backward_name(const char *name)
{
    static const char *const names[] = {"28layer_norm_grad_input_kernelI",
                                        "39layer_norm_grad_input_kernel_vectorizedI"};
    return strstr(name, names[0]) != NULL ? names[0] : names[1];
}

static void backward(const struct simcuda_launch *launch, void **args)
{
    struct job job;
    if (!read_name(launch->name, backward_name(launch->name), &job))
        return;
    job.rows = launch->grid[0];
    job.length = (size_t)SIMCUDA_ARG(args, 6, int);
    const size_t all = job.rows * job.length;
    if (open(launch, &job.dy, args[0], job.type, all) &&
        open(launch, &job.x, args[1], job.type, all) &&
        (job.is_rms || open(launch, &job.mean, args[2], job.computed, job.rows)) &&
        open(launch, &job.rstd, args[3], job.computed, job.rows) &&
        open(launch, &job.gamma, args[4], job.type, job.length) &&
        open(launch, &job.dx, args[5], job.type, all))
        find_input_gradient(&job);
}

/* The rows that a row of blocks adds: so many side by side, of all that are left by the others. */
struct part {
    size_t number, count, rows;
};

static bool is_of(const struct part *part, size_t row)
{
    return row / part->rows % part->count == part->number;
}

static void find_weight_gradients(const struct job *job, const struct part *part)
{
    for (size_t i = 0; i < job->length; i++) {
        double gamma = 0;
        double beta = 0;
        for (size_t row = 0; row < job->rows; row++) {
            if (!is_of(part, row))
                continue;
            const double above = host_get(&job->dy, row * job->length + i);
            const double mean = job->is_rms ? 0 : host_get(&job->mean, row);
            gamma += above * (host_get(&job->x, row * job->length + i) - mean) *
                     host_get(&job->rstd, row);
            beta += above;
        }
        if (job->dgamma.data != NULL)
            host_set(&job->dgamma, part->number * job->length + i, gamma);
        if (job->dbeta.data != NULL)
            host_set(&job->dbeta, part->number * job->length + i, beta);
    }
}

static const char weights_name[] = "35GammaBetaBackwardCUDAKernelTemplateI";

/* "...ffLj32ELj8ELj64ELb0E": the third number, if the kernel is partial; else there is one part. */
static size_t rows_of_part(const char *name)
{
    const char *at = strstr(name, weights_name);
    for (int i = 0; at != NULL && i < 3; i++)
        at = strstr(at + 1, "Lj");
    if (at == NULL)
        return 0;
    char *end;
    const size_t rows = strtoul(at + 2, &end, 10);
    return strncmp(end, "ELb1E", 5) == 0 ? rows : 0;
}

static void weights(const struct simcuda_launch *launch, void **args)
{
    struct job job;
    if (!read_name(launch->name, weights_name, &job))
        return;
    job.rows = (size_t)SIMCUDA_ARG(args, 0, int64_t);
    job.length = (size_t)SIMCUDA_ARG(args, 1, int64_t);
    const size_t in_part = rows_of_part(launch->name);
    const size_t parts = in_part == 0 ? 1 : launch->grid[1];
    const size_t all = job.rows * job.length;
    if (!open(launch, &job.dy, args[2], job.type, all) ||
        !open(launch, &job.x, args[3], job.type, all) ||
        (!job.is_rms && !open(launch, &job.mean, args[4], job.computed, job.rows)) ||
        !open(launch, &job.rstd, args[5], job.computed, job.rows) ||
        !open(launch, &job.dgamma, args[6], job.type, parts * job.length) ||
        (!job.is_rms && !open(launch, &job.dbeta, args[7], job.type, parts * job.length)))
        return;
    for (size_t number = 0; number < parts; number++) {
        const struct part part = {number, parts, in_part == 0 ? job.rows : in_part};
        find_weight_gradients(&job, &part);
    }
}

simcuda_kernel *host_find_norm(const char *name)
{
    static const struct {
        const char *name;
        simcuda_kernel *kernel;
    } kernels[] = {{"28vectorized_layer_norm_kernelI", vectorized},
                   {"24RowwiseMomentsCUDAKernelI", moments},
                   {"26LayerNormForwardCUDAKernelI", forward},
                   {"28layer_norm_grad_input_kernelI", backward},
                   {"39layer_norm_grad_input_kernel_vectorizedI", backward},
                   {weights_name, weights}};
    struct job job;
    for (size_t i = 0;
         strstr(name, "layer_norm_kernel_cu") != NULL && i < sizeof(kernels) / sizeof(kernels[0]);
         i++) {
        if (strstr(name, kernels[i].name) != NULL)
            return read_name(name, kernels[i].name, &job) ? kernels[i].kernel : NULL;
    }
    return NULL;
}
