/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels that no rule may name; the tests name them. */
#include "tools/simcuda/driver/kernel.h"

/* neighbours32(out, in, count): each element of the result depends on two of the old ones. */
SIMCUDA_KERNEL(neighbours32)
{
    const uint64_t count = SIMCUDA_ARG(args, 2, uint64_t);
    const uint32_t *in = launch->touch(launch, SIMCUDA_ARG(args, 1, CUdeviceptr), count * 4);
    uint32_t *out =
        in == NULL ? NULL : launch->touch(launch, SIMCUDA_ARG(args, 0, CUdeviceptr), count * 4);
    for (uint64_t i = 0; out != NULL && i + 1 < count; i++)
        out[i] = in[i] + in[i + 1];
}
SIMCUDA_PARAMS(neighbours32, {0, 8}, {8, 8}, {16, 8});

/* drift32(out, count): computes another value each time, as a driver does that was replaced. */
SIMCUDA_KERNEL(drift32)
{
    static uint32_t value = 17;
    const uint64_t count = SIMCUDA_ARG(args, 1, uint64_t);
    uint32_t *out = launch->touch(launch, SIMCUDA_ARG(args, 0, CUdeviceptr), count * 4);
    for (uint64_t i = 0; out != NULL && i < count; i++)
        out[i] = value;
    value++;
}
SIMCUDA_PARAMS(drift32, {0, 8}, {8, 8});
