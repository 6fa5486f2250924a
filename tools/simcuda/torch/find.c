/* SPDX-License-Identifier: Apache-2.0 */
/* The host version of a kernel, by its name; each file knows its own. */
#include "tools/simcuda/torch/host.h"

/* --- by name */

simcuda_find_kernel simcuda_find;
SIMCUDA_EXPORT simcuda_kernel *simcuda_find(const char *name)
{
    static simcuda_find_kernel *const families[] = {
        host_find_elementwise,  host_find_random,    host_find_cat,      host_find_foreach,
        host_find_range,        host_find_transpose, host_find_reduce,   host_find_sleep,
        host_find_multi_tensor, host_find_softmax,   host_find_norm,     host_find_loss,
        host_find_embedding,    host_find_dropout,   host_find_triangle, host_find_shards,
        host_find_scan,         host_find_scaler,    host_find_roll,     host_find_polar};
    simcuda_kernel *kernel = NULL;
    for (size_t i = 0; kernel == NULL && i < sizeof(families) / sizeof(families[0]); i++)
        kernel = families[i](name);
    return kernel;
}
