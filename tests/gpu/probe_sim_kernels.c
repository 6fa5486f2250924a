/* SPDX-License-Identifier: Apache-2.0 */
/* The probe's kernels for the simulated driver: what the PTX in probe_kernel.c does. */
#include "tools/simcuda/driver/kernel.h"

#include <stdint.h>
#include <time.h>

SIMCUDA_KERNEL(probe_spin)
{
    const uint64_t ns = SIMCUDA_ARG(args, 0, uint64_t);
    const struct timespec pause = {.tv_sec = (time_t)(ns / 1000000000),
                                   .tv_nsec = (long)(ns % 1000000000)};
    nanosleep(&pause, NULL);
}
SIMCUDA_PARAMS(probe_spin, {0, 8});

SIMCUDA_KERNEL(probe_store)
{
    uint32_t *const word = launch->touch(launch, SIMCUDA_ARG(args, 0, CUdeviceptr), 4);
    if (word != NULL)
        *word = SIMCUDA_ARG(args, 1, uint32_t);
}
SIMCUDA_PARAMS(probe_store, {0, 8}, {8, 4});

SIMCUDA_KERNEL(probe_layout)
{
}
SIMCUDA_PARAMS(probe_layout, {0, 8}, {8, 4}, {16, 24}, {40, 1});

SIMCUDA_KERNEL_LIST("probe_spin", "probe_store", "probe_layout");
