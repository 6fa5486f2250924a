/* SPDX-License-Identifier: Apache-2.0 */
/* elementwise_kernel_with_index (RangeFactories.cu): torch.arange. (int numel, lambda {start,
 * step}, T *out) */
#include "tools/simcuda/torch/host.h"

/* The innermost lambda of arange_cuda_out computes in int64 or the like for integers, else in
 * float. */
static enum host_type type_of(const char *name)
{
    static const struct {
        const char *lambda;
        enum host_type type;
    } types[] = {{"clEvENKUlvE_clEvEUllE_", HOST_UINT8},   {"clEvENKUlvE0_clEvEUllE_", HOST_INT8},
                 {"clEvENKUlvE1_clEvEUllE_", HOST_INT32},  {"clEvENKUlvE2_clEvEUllE_", HOST_INT64},
                 {"clEvENKUlvE4_clEvEUllE_", HOST_DOUBLE}, {"clEvENKUlvE5_clEvEUllE_", HOST_FLOAT}};
    for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++) {
        if (strstr(name, types[i].lambda) != NULL)
            return types[i].type;
    }
    return HOST_NONE;
}

static void run(const struct simcuda_launch *launch, void **args)
{
    const size_t numel = (size_t)SIMCUDA_ARG(args, 0, int);
    const enum host_type type = type_of(launch->name);
    const unsigned char *captured = args[1];
    const enum host_type computed = type == HOST_FLOAT    ? HOST_FLOAT
                                    : type == HOST_DOUBLE ? HOST_DOUBLE
                                                          : HOST_INT64;
    const double start = host_load(captured, computed);
    const double step = host_load(captured + host_size(computed), computed);
    unsigned char *out =
        launch->touch(launch, SIMCUDA_ARG(args, 2, CUdeviceptr), numel * host_size(type));
    for (size_t i = 0; out != NULL && i < numel; i++)
        host_store(out + i * host_size(type), type, start + step * (double)i);
}

simcuda_kernel *host_find_range(const char *name)
{
    return strstr(name, "29elementwise_kernel_with_indexI") != NULL &&
                   strstr(name, "15arange_cuda_outE") != NULL && type_of(name) != HOST_NONE
               ? run
               : NULL;
}
