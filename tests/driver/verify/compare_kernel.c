/* SPDX-License-Identifier: Apache-2.0 */
/* A host version of the shim's own kernel (runtime/fill/compare.ptx), for SIMCUDA_PTX_KERNELS. */
#include "tools/simcuda/driver/kernel.h"

#include <string.h>

/* metashard_compare(memory, shadow, bytes, result) */
SIMCUDA_KERNEL(metashard_compare)
{
    const uint64_t bytes = SIMCUDA_ARG(args, 2, uint64_t);
    const unsigned char *memory = launch->touch(launch, SIMCUDA_ARG(args, 0, CUdeviceptr), bytes);
    const unsigned char *shadow =
        memory == NULL ? NULL : launch->touch(launch, SIMCUDA_ARG(args, 1, CUdeviceptr), bytes);
    uint64_t *result =
        shadow == NULL ? NULL : launch->touch(launch, SIMCUDA_ARG(args, 3, CUdeviceptr), 16);
    if (result == NULL || memcmp(memory, shadow, bytes) == 0)
        return;
    for (uint64_t i = 0; i < bytes; i++) {
        if (memory[i] != shadow[i]) {
            result[0]++;
            result[1] = i < result[1] ? i : result[1];
        }
    }
}
SIMCUDA_PARAMS(metashard_compare, {0, 8}, {8, 8}, {16, 8}, {24, 8});
SIMCUDA_KERNEL_LIST("metashard_compare");
