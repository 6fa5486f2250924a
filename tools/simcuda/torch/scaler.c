/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernels that torch.amp.GradScaler launches (AmpKernels.cu):
 *
 *     multi_tensor_apply_kernel<TensorListMetadata<1>, UnaryOpFunctor<T, ...>, lambda>
 *     (list, functor, {float *found, float *inverse of the scale, nvcc's pointer})
 *
 *     amp_update_scale_cuda_kernel
 *     (float *scale, int *tracker, float *found, double growth, double backoff, int interval)
 */
#include "tools/simcuda/torch/host.h"

#include <math.h>

enum { CHUNK = 65536 };

struct list {
    CUdeviceptr addresses[770];
    int64_t numel[770];
    uint16_t block_to_tensor[2240];
    int32_t block_to_chunk[2240];
    int32_t start_tensor;
};

static const char unscale_name[] = "47_amp_foreach_non_finite_check_and_unscale_cuda_";
static const char unscale_type[] = "14UnaryOpFunctorI";
static const char update_name[] = "28amp_update_scale_cuda_kernel";

/* False when they may not be touched. */
static bool unscale_chunk(const struct simcuda_launch *launch, const struct list *list,
                          unsigned block, double inverse, bool *found)
{
    const enum host_type type = host_type_behind(launch->name, unscale_type);
    const unsigned tensor = list->block_to_tensor[block];
    const size_t begin = (size_t)list->block_to_chunk[block] * CHUNK;
    const size_t left = (size_t)list->numel[tensor] - begin;
    const size_t count = left < CHUNK ? left : CHUNK;
    struct host_vector values;
    if (!host_open(launch, &values, list->addresses[tensor] + begin * host_size(type), type, count))
        return false;
    for (size_t i = 0; i < count; i++) {
        const double value = host_get(&values, i);
        *found |= !isfinite(value);
        host_set(&values, i, inverse == 1 ? value : value * inverse);
    }
    return true;
}

static void unscale(const struct simcuda_launch *launch, void **args)
{
    struct host_vector found, inverse;
    bool has_found = false;
    if (!host_open(launch, &found, host_word(args[2], 0), HOST_FLOAT, 1) ||
        !host_open(launch, &inverse, host_word(args[2], 8), HOST_FLOAT, 1))
        return;
    for (unsigned block = 0; block < launch->grid[0]; block++) {
        if (!unscale_chunk(launch, args[0], block, host_get(&inverse, 0), &has_found))
            return;
    }
    if (has_found)
        host_set(&found, 0, 1);
}

static void update(const struct simcuda_launch *launch, void **args)
{
    struct host_vector scale, tracker, found;
    if (!host_open(launch, &scale, SIMCUDA_ARG(args, 0, CUdeviceptr), HOST_FLOAT, 1) ||
        !host_open(launch, &tracker, SIMCUDA_ARG(args, 1, CUdeviceptr), HOST_INT32, 1) ||
        !host_open(launch, &found, SIMCUDA_ARG(args, 2, CUdeviceptr), HOST_FLOAT, 1))
        return;
    const double before = host_get(&scale, 0);
    const double steps = host_get(&tracker, 0) + 1;
    const double grown = (double)(float)(before * SIMCUDA_ARG(args, 3, double));
    const bool is_due = steps == SIMCUDA_ARG(args, 5, int);
    if (host_get(&found, 0) != 0)
        host_set(&scale, 0, before * SIMCUDA_ARG(args, 4, double));
    else if (is_due && isfinite(grown))
        host_set(&scale, 0, grown);
    host_set(&tracker, 0, host_get(&found, 0) != 0 || is_due ? 0 : steps);
}

simcuda_kernel *host_find_scaler(const char *name)
{
    if (strstr(name, update_name) != NULL)
        return update;
    return strstr(name, "18TensorListMetadataILi1EE") != NULL &&
                   strstr(name, unscale_name) != NULL &&
                   host_type_behind(name, unscale_type) != HOST_NONE
               ? unscale
               : NULL;
}
