/* SPDX-License-Identifier: Apache-2.0 */
/*
 * roll_cuda_kernel<T> (TensorTransformations.cu): a tensor whose elements are moved along a
 * dimension; those that fall out come in at its other end.
 *
 *     (const T *in, T *out, int64 elements, int64 dimension, int64 start, int64 size, int64 stride, int64 dimensions)
 */
#include "tools/simcuda/torch/host.h"

static const char name_begin[] = "16roll_cuda_kernelI";

static void run(const struct simcuda_launch *launch, void **args)
{
    const size_t bytes = host_size(host_type_behind(launch->name, name_begin));
    const size_t elements = (size_t)SIMCUDA_ARG(args, 2, int64_t);
    const size_t start = (size_t)SIMCUDA_ARG(args, 4, int64_t);
    const size_t size = (size_t)SIMCUDA_ARG(args, 5, int64_t);
    const size_t stride = (size_t)SIMCUDA_ARG(args, 6, int64_t);
    const unsigned char *in =
        launch->touch(launch, SIMCUDA_ARG(args, 0, CUdeviceptr), elements * bytes);
    unsigned char *out =
        in == NULL ? NULL
                   : launch->touch(launch, SIMCUDA_ARG(args, 1, CUdeviceptr), elements * bytes);
    for (size_t i = 0; out != NULL && i < elements; i++) {
        const size_t begin = i - i % (stride * size), at = i % (stride * size) / stride;
        const size_t from = begin + (at + start) % size * stride + i % stride;
        memcpy(out + i * bytes, in + from * bytes, bytes);
    }
}

simcuda_kernel *host_find_roll(const char *name)
{
    return host_type_behind(name, name_begin) != HOST_NONE ? run : NULL;
}
