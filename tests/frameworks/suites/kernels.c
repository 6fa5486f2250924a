/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Host versions of the kernels that the suites compile, by the names that they have there: each
 * stores its arguments where others of its arguments say. For SIMCUDA_PTX_KERNELS.
 */
#include "tests/simcuda/driver/kernel.h"

#include <stdbool.h>
#include <string.h>
#include <unistd.h>

/* What argument `from` holds, to where argument `to` points. */
static void store(const struct simcuda_launch *launch, void **args, int from, int to, size_t bytes)
{
    void *place = launch->touch(launch, SIMCUDA_ARG(args, to, CUdeviceptr), bytes);
    if (place != NULL)
        memcpy(place, args[from], bytes);
}

/* --- cuda/tests/test_kernelParams.py */

SIMCUDA_GLOBAL(isDone, bool, false);

/* The simulator makes a variable when the program asks for it; here it does after the launch. */
static CUdeviceptr wait_for_global(const struct simcuda_launch *launch, const char *name)
{
    for (int ms = 0; ms < 10000 && launch->global(launch, name) == 0; ms++)
        usleep(1000);
    return launch->global(launch, name);
}

SIMCUDA_KERNEL(empty_kernel)
{
    bool *done = launch->touch(launch, wait_for_global(launch, "isDone"), sizeof *done);
    if (done != NULL)
        *done = true;
}
SIMCUDA_PARAMS_NONE(empty_kernel);

/* bool, char, wchar_t, signed and unsigned char, short, int, long, long long; size_t, float,
 * double, and a pointer; then a pointer for each but the last. */
static const unsigned char basic_bytes[] = {1, 1, 4, 1, 1, 2, 2, 4, 4, 8, 8, 8, 8, 8, 4, 8};

SIMCUDA_KERNEL(basic)
{
    for (int i = 0; i < (int)sizeof basic_bytes; i++)
        store(launch, args, i, (int)sizeof basic_bytes + 1 + i, basic_bytes[i]);
}
SIMCUDA_PARAMS(basic, {0, 1}, {1, 1}, {4, 4}, {8, 1}, {9, 1}, {10, 2}, {12, 2}, {16, 4}, {20, 4},
               {24, 8}, {32, 8}, {40, 8}, {48, 8}, {56, 8}, {64, 4}, {72, 8}, {80, 8}, {88, 8},
               {96, 8}, {104, 8}, {112, 8}, {120, 8}, {128, 8}, {136, 8}, {144, 8}, {152, 8},
               {160, 8}, {168, 8}, {176, 8}, {184, 8}, {192, 8}, {200, 8}, {208, 8});

/* An error, a surface and a dim3, each with a pointer behind it. */
SIMCUDA_KERNEL(structsCuda)
{
    store(launch, args, 0, 1, 4);
    store(launch, args, 2, 3, 8);
    store(launch, args, 4, 5, 12);
}
SIMCUDA_PARAMS(structsCuda, {0, 4}, {8, 8}, {16, 8}, {24, 8}, {32, 12}, {48, 8});

SIMCUDA_KERNEL(structCustom)
{
    store(launch, args, 0, 1, 4);
}
SIMCUDA_PARAMS(structCustom, {0, 4}, {8, 8});

SIMCUDA_KERNEL(testkernel)
{
    store(launch, args, 0, 1, 4);
    store(launch, args, 2, 3, 4);
    store(launch, args, 4, 5, 4);
}
SIMCUDA_PARAMS(testkernel, {0, 4}, {8, 8}, {16, 4}, {24, 8}, {32, 4}, {40, 8});

/* --- numba/cuda/tests/cudadrv/test_cuda_driver.py */

SIMCUDA_KERNEL(_Z10helloworldPi)
{
    const size_t bytes = launch->block[0] * sizeof(int);
    int *to = launch->touch(launch, SIMCUDA_ARG(args, 0, CUdeviceptr), bytes);
    for (unsigned i = 0; to != NULL && i < launch->block[0]; i++)
        to[i] = (int)i;
}
SIMCUDA_PARAMS(_Z10helloworldPi, {0, 8});

SIMCUDA_KERNEL_LIST("empty_kernel", "basic", "structsCuda", "structCustom", "testkernel",
                    "_Z10helloworldPi");
