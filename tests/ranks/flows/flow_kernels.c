/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/ranks/flows/flow_kernels.h"

#include "tools/simcuda/driver/simcuda.h"
#include "tools/simcuda/kernels/torch_kernels.h"
#include "tools/simcuda/torch/host.h"

/* Names that are macros are expanded on the way. */
#define KERNEL(name) SIMCUDA_KERNEL(name)
#define PARAMS(name, ...) SIMCUDA_PARAMS(name, __VA_ARGS__)

KERNEL(TORCH_CAT)
{
    host_find_cat(launch->name)(launch, args);
}
PARAMS(TORCH_CAT, {0, 8}, {8, sizeof(struct cat_inputs)},
       {8 + sizeof(struct cat_inputs), sizeof(struct cat_shape)},
       {8 + sizeof(struct cat_inputs) + sizeof(struct cat_shape), 4},
       {12 + sizeof(struct cat_inputs) + sizeof(struct cat_shape), 4});

SIMCUDA_KERNEL_LIST(TORCH_NAME(TORCH_CAT));
