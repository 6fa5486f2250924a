/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tensor_kernel_scan_innermost_dim<T, plus<T>> (ScanUtils.cuh): torch.cumsum over the last
 * dimension.
 *
 *     (T *out, T *in, unsigned rows, unsigned row's length, unsigned, T first, functor)
 */
#include "tools/simcuda/torch/host.h"

static const char name_begin[] = "32tensor_kernel_scan_innermost_dimI";

static void run(const struct simcuda_launch *launch, void **args)
{
    const enum host_type type = host_type_behind(launch->name, name_begin);
    const size_t rows = SIMCUDA_ARG(args, 2, uint32_t);
    const size_t length = SIMCUDA_ARG(args, 3, uint32_t);
    struct host_vector in, out;
    if (!host_open(launch, &in, SIMCUDA_ARG(args, 1, CUdeviceptr), type, rows * length) ||
        !host_open(launch, &out, SIMCUDA_ARG(args, 0, CUdeviceptr), type, rows * length))
        return;
    for (size_t row = 0; row < rows; row++) {
        double sum = host_load(args[5], type);
        for (size_t i = row * length; i < (row + 1) * length; i++) {
            sum = host_round(type, sum + host_get(&in, i));
            host_set(&out, i, sum);
        }
    }
}

simcuda_kernel *host_find_scan(const char *name)
{
    return strstr(name, name_begin) != NULL && strstr(name, "St4plusI") != NULL &&
                   host_type_behind(name, name_begin) != HOST_NONE
               ? run
               : NULL;
}
