/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Host versions of the kernels that the suites compile, by the names that they have there. For
 * SIMCUDA_PTX_KERNELS.
 */
#include "tools/simcuda/driver/kernel.h"

#include <stdbool.h>
#include <string.h>
#include <unistd.h>

/* Stores the value of argument `from` where argument `to` points. */
static void store(const struct simcuda_launch *launch, void **args, int from, int to, size_t bytes)
{
    void *place = launch->touch(launch, SIMCUDA_ARG(args, to, CUdeviceptr), bytes);
    if (place != NULL)
        memcpy(place, args[from], bytes);
}

/* The numbers that an argument points to. */
static float *touch_floats(const struct simcuda_launch *launch, void **args, int index,
                           size_t count)
{
    return launch->touch(launch, SIMCUDA_ARG(args, index, CUdeviceptr), count * sizeof(float));
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

/* --- pycuda, test/test_driver.py */

SIMCUDA_KERNEL(multiply_them)
{
    const size_t count = (size_t)launch->block[0] * launch->block[1];
    float *to = touch_floats(launch, args, 0, count);
    const float *a = touch_floats(launch, args, 1, count);
    const float *b = touch_floats(launch, args, 2, count);
    for (size_t i = 0; to != NULL && a != NULL && b != NULL && i < count; i++)
        to[i] = a[i] * b[i];
}
SIMCUDA_PARAMS(multiply_them, {0, 8}, {8, 8}, {16, 8});

SIMCUDA_KERNEL(set_them)
{
    float *to = touch_floats(launch, args, 0, 3 * (size_t)launch->block[0]);
    for (size_t i = 0; to != NULL && i < launch->block[0]; i++)
        memcpy(&to[3 * i], args[1], 3 * sizeof *to);
}
SIMCUDA_PARAMS(set_them, {0, 8}, {8, 12});

SIMCUDA_KERNEL(doublify)
{
    const size_t count = (size_t)launch->block[0] * launch->block[1];
    float *a = touch_floats(launch, args, 0, count);
    for (size_t i = 0; a != NULL && i < count; i++)
        a[i] *= 2;
}
SIMCUDA_PARAMS(doublify, {0, 8});

SIMCUDA_KERNEL(gpu_arange)
{
    _Z10helloworldPi(launch, args);
}
SIMCUDA_PARAMS(gpu_arange, {0, 8});

/* The kernel of test_large_smem: the number of the thread. */
SIMCUDA_KERNEL(kernel)
{
    _Z10helloworldPi(launch, args);
}
SIMCUDA_PARAMS(kernel, {0, 8});

SIMCUDA_KERNEL(cuda_function)
{
}
SIMCUDA_PARAMS(cuda_function, {0, 12});

struct floats {
    float of[32];
};
SIMCUDA_GLOBAL(const_array, struct floats, {{0}});

SIMCUDA_KERNEL(copy_constant_into_global)
{
    const CUdeviceptr from = launch->global(launch, "const_array");
    const struct floats *array = launch->touch(launch, from, sizeof *array);
    float *to = touch_floats(launch, args, 0, launch->block[0]);
    for (unsigned i = 0; array != NULL && to != NULL && i < launch->block[0]; i++)
        to[i] = array->of[i];
}
SIMCUDA_PARAMS(copy_constant_into_global, {0, 8});

/* Those that pycuda makes for the operators of arrays; here of float. */

SIMCUDA_KERNEL(axpbyz)
{
    const float a = SIMCUDA_ARG(args, 0, float), b = SIMCUDA_ARG(args, 2, float);
    const size_t count = SIMCUDA_ARG(args, 5, size_t);
    const float *x = touch_floats(launch, args, 1, count);
    const float *y = touch_floats(launch, args, 3, count);
    float *z = touch_floats(launch, args, 4, count);
    for (size_t i = 0; x != NULL && y != NULL && z != NULL && i < count; i++)
        z[i] = a * x[i] + b * y[i];
}
SIMCUDA_PARAMS(axpbyz, {0, 4}, {8, 8}, {16, 4}, {24, 8}, {32, 8}, {40, 8});

SIMCUDA_KERNEL(axpb)
{
    const float a = SIMCUDA_ARG(args, 0, float), b = SIMCUDA_ARG(args, 2, float);
    const size_t count = SIMCUDA_ARG(args, 4, size_t);
    const float *x = touch_floats(launch, args, 1, count);
    float *z = touch_floats(launch, args, 3, count);
    for (size_t i = 0; x != NULL && z != NULL && i < count; i++)
        z[i] = a * x[i] + b;
}
SIMCUDA_PARAMS(axpb, {0, 4}, {8, 8}, {16, 4}, {24, 8}, {32, 8});

SIMCUDA_KERNEL(multiply)
{
    const size_t count = SIMCUDA_ARG(args, 3, size_t);
    const float *x = touch_floats(launch, args, 0, count);
    const float *y = touch_floats(launch, args, 1, count);
    float *z = touch_floats(launch, args, 2, count);
    for (size_t i = 0; x != NULL && y != NULL && z != NULL && i < count; i++)
        z[i] = x[i] * y[i];
}
SIMCUDA_PARAMS(multiply, {0, 8}, {8, 8}, {16, 8}, {24, 8});

SIMCUDA_KERNEL(fill)
{
    const size_t count = SIMCUDA_ARG(args, 2, size_t);
    float *z = touch_floats(launch, args, 1, count);
    for (size_t i = 0; z != NULL && i < count; i++)
        z[i] = SIMCUDA_ARG(args, 0, float);
}
SIMCUDA_PARAMS(fill, {0, 4}, {8, 8}, {16, 8});

/* --- cuda_core/examples/memory_pool_resources.py */

SIMCUDA_KERNEL(scale_and_bias)
{
    const size_t count = SIMCUDA_ARG(args, 1, size_t);
    float *data = touch_floats(launch, args, 0, count);
    for (size_t i = 0; data != NULL && i < count; i++)
        data[i] = data[i] * SIMCUDA_ARG(args, 2, float) + SIMCUDA_ARG(args, 3, float);
}
SIMCUDA_PARAMS(scale_and_bias, {0, 8}, {8, 8}, {16, 4}, {20, 4});

/* --- cuda_core/examples/graph_update.py */

SIMCUDA_KERNEL(add_one)
{
    int *value = launch->touch(launch, SIMCUDA_ARG(args, 0, CUdeviceptr), sizeof *value);
    if (value != NULL)
        *value += 1;
}
SIMCUDA_PARAMS(add_one, {0, 8});

SIMCUDA_KERNEL_LIST("empty_kernel", "basic", "structsCuda", "structCustom", "testkernel",
                    "_Z10helloworldPi", "multiply_them", "set_them", "doublify", "gpu_arange",
                    "kernel", "cuda_function", "copy_constant_into_global", "axpbyz", "axpb",
                    "multiply", "fill", "scale_and_bias", "add_one");
