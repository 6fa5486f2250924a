/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nll_loss of rows of logarithms, to one number (Loss.cu). A target of -100, or of another number,
 * is left out.
 *
 *     nll_loss_forward_reduce_cuda_kernel_2d<T, A, int64>(T *out, T *total, T *in, int64 *target, T *weight,
 *         bool mean, int64 rows, int64 row length, int64 classes, int64 left out)
 *     nll_loss_backward_reduce_cuda_kernel_2d<T, int64>(T *gradient, T *above, int64 *target, T *weight, T *total,
 *         bool mean, int rows, int row length, int64 classes, int64 left out)
 */
#include "tools/simcuda/torch/host.h"

#include <stdio.h>

static const char forward_name[] = "38nll_loss_forward_reduce_cuda_kernel_2dI";
static const char backward_name[] = "39nll_loss_backward_reduce_cuda_kernel_2dI";

struct job {
    size_t rows, length, classes;
    int64_t left_out;
    bool is_mean;
    struct host_vector values, weight, total, one; /* one: the loss, or what is above it */
    const unsigned char *targets;
};

/* False for a row that is left out; a target that is no class is said, and its row is left out. */
static bool read_target(const struct simcuda_launch *launch, const struct job *job, size_t row,
                        size_t *target_out, double *weight_out)
{
    const int64_t target = (int64_t)host_word(job->targets, 8 * row);
    if (target == job->left_out)
        return false;
    if (target < 0 || (size_t)target >= job->classes) {
        fprintf(stderr, "torch_host: no class %lld\n", (long long)target);
        launch->touch(launch, 0, 1); /* loud */
        return false;
    }
    *target_out = (size_t)target;
    *weight_out = job->weight.data == NULL ? 1 : host_get(&job->weight, (size_t)target);
    return true;
}

static bool open_all(const struct simcuda_launch *launch, struct job *job, enum host_type type,
                     const CUdeviceptr *places) /* values, targets, weight, total, one */
{
    if (!host_open(launch, &job->values, places[0], type, job->rows * job->length) ||
        (places[2] != 0 && !host_open(launch, &job->weight, places[2], type, job->classes)) ||
        !host_open(launch, &job->total, places[3], type, 1) ||
        !host_open(launch, &job->one, places[4], type, 1))
        return false;
    job->targets = launch->touch(launch, places[1], 8 * job->rows);
    return job->targets != NULL;
}

static void forward(const struct simcuda_launch *launch, void **args)
{
    struct job job = {.is_mean = SIMCUDA_ARG(args, 5, bool),
                      .rows = (size_t)SIMCUDA_ARG(args, 6, int64_t),
                      .length = (size_t)SIMCUDA_ARG(args, 7, int64_t),
                      .classes = (size_t)SIMCUDA_ARG(args, 8, int64_t),
                      .left_out = SIMCUDA_ARG(args, 9, int64_t)};
    const CUdeviceptr places[] = {SIMCUDA_ARG(args, 2, CUdeviceptr),
                                  SIMCUDA_ARG(args, 3, CUdeviceptr),
                                  SIMCUDA_ARG(args, 4, CUdeviceptr),
                                  SIMCUDA_ARG(args, 1, CUdeviceptr),
                                  SIMCUDA_ARG(args, 0, CUdeviceptr)};
    if (!open_all(launch, &job, host_type_behind(launch->name, forward_name), places))
        return;
    double loss = 0;
    double total = 0;
    for (size_t row = 0; row < job.rows; row++) {
        size_t target;
        double weight;
        if (!read_target(launch, &job, row, &target, &weight))
            continue;
        loss -= host_get(&job.values, row * job.length + target) * weight;
        total += weight;
    }
    host_set(&job.total, 0, total);
    host_set(&job.one, 0, job.is_mean ? loss / total : loss);
}

/* Gradients of classes that are no target stay zero. */
static void backward(const struct simcuda_launch *launch, void **args)
{
    struct job job = {.is_mean = SIMCUDA_ARG(args, 5, bool),
                      .rows = (size_t)SIMCUDA_ARG(args, 6, int),
                      .length = (size_t)SIMCUDA_ARG(args, 7, int),
                      .classes = (size_t)SIMCUDA_ARG(args, 8, int64_t),
                      .left_out = SIMCUDA_ARG(args, 9, int64_t)};
    const CUdeviceptr places[] = {SIMCUDA_ARG(args, 0, CUdeviceptr),
                                  SIMCUDA_ARG(args, 2, CUdeviceptr),
                                  SIMCUDA_ARG(args, 3, CUdeviceptr),
                                  SIMCUDA_ARG(args, 4, CUdeviceptr),
                                  SIMCUDA_ARG(args, 1, CUdeviceptr)};
    if (!open_all(launch, &job, host_type_behind(launch->name, backward_name), places))
        return;
    const double above = host_get(&job.one, 0);
    const double gradient = -(job.is_mean ? above / host_get(&job.total, 0) : above);
    for (size_t row = 0; row < job.rows; row++) {
        size_t target;
        double weight;
        if (read_target(launch, &job, row, &target, &weight))
            host_set(&job.values, row * job.length + target, weight * gradient);
    }
}

/* Targets of bytes are not known here. */
simcuda_kernel *host_find_loss(const char *name)
{
    enum host_type types[3];
    if (host_types_behind(name, forward_name, types, 3))
        return types[2] == HOST_INT64 ? forward : NULL;
    if (host_types_behind(name, backward_name, types, 2))
        return types[1] == HOST_INT64 ? backward : NULL;
    return NULL;
}
