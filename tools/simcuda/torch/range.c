/* SPDX-License-Identifier: Apache-2.0 */
/* elementwise_kernel_with_index (RangeFactories.cu): torch.arange and torch.linspace. (int numel,
 * lambda, T *out) */
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

/* --- torch.linspace: {start, end, int64_t steps, step, int64_t halfway}, from both ends on. A
 * step is double or float. */

/* The outer lambda is of integers or not, the inner of one type. */
static enum host_type type_of_linspace(const char *name)
{
    static const char outer[] = "ENKUlvE", inner[] = "clEvENKUlvE";
    static const enum host_type whole[] = {HOST_UINT8, HOST_INT8, HOST_INT32, HOST_INT64,
                                           HOST_INT16},
                                real[] = {HOST_DOUBLE, HOST_FLOAT, HOST_NONE,
                                          HOST_NONE,   HOST_HALF,  HOST_BFLOAT16};
    const char *at = strstr(name, outer);
    if (at == NULL)
        return HOST_NONE;
    const bool is_whole = at[strlen(outer)] == '_';
    at = strstr(at, inner);
    if (at == NULL)
        return HOST_NONE;
    at += strlen(inner);
    const size_t number = *at == '_' ? 0 : (size_t)(*at - '0') + 1;
    const size_t count =
        is_whole ? sizeof(whole) / sizeof(whole[0]) : sizeof(real) / sizeof(real[0]);
    return number >= count ? HOST_NONE : is_whole ? whole[number] : real[number];
}

static size_t up_to(size_t offset, size_t alignment)
{
    return (offset + alignment - 1) / alignment * alignment;
}

static void run_linspace(const struct simcuda_launch *launch, void **args)
{
    const size_t numel = (size_t)SIMCUDA_ARG(args, 0, int);
    const enum host_type type = type_of_linspace(launch->name);
    const enum host_type between = type == HOST_DOUBLE ? HOST_DOUBLE : HOST_FLOAT;
    const size_t steps_at = up_to(2 * host_size(type), sizeof(int64_t));
    const unsigned char *captured = args[1];
    const double start = host_load(captured, type);
    const double end = host_load(captured + host_size(type), type);
    const double step = host_load(captured + steps_at + sizeof(int64_t), between);
    unsigned char *out =
        launch->touch(launch, SIMCUDA_ARG(args, 2, CUdeviceptr), numel * host_size(type));
    for (size_t i = 0; out != NULL && i < numel; i++) {
        const bool is_first = i < numel / 2;
        const double way = host_round(between, step * (double)(is_first ? i : numel - 1 - i));
        host_store(out + i * host_size(type), type, is_first ? start + way : end - way);
    }
}

simcuda_kernel *host_find_range(const char *name)
{
    if (strstr(name, "29elementwise_kernel_with_indexI") == NULL)
        return NULL;
    if (strstr(name, "15arange_cuda_outE") != NULL && type_of(name) != HOST_NONE)
        return run;
    if (strstr(name, "17linspace_cuda_outE") != NULL && type_of_linspace(name) != HOST_NONE)
        return run_linspace;
    return NULL;
}
