/* SPDX-License-Identifier: Apache-2.0 */
/* A program with PyTorch's kernels, of whichever release its libtorch_cuda.so is. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

#include "tests/driver/differential/scenario.h"
#include "tools/simcuda/kernels/torch_kernels.h"

enum { TENSORS = 8, BYTES = 4 << 20 };

static CUfunction torch_function(const char *name)
{
    static CUmodule module;
    CUfunction kernel;
    if (module == NULL)
        OK(cuModuleLoad(&module, getenv("TORCH_KERNELS")));
    OK(cuModuleGetFunction(&kernel, module, name));
    return kernel;
}

static void full(CUdeviceptr tensor, float value)
{
    int count = BYTES / 4;
    void *params[] = {&count, &value, &tensor};
    OK(cuLaunchKernel(torch_function(TORCH_NAME(TORCH_FILL)), (unsigned)count / 512, 1, 1, 128, 1,
                      1, 0, NULL, params, NULL));
}

static void multiply(CUdeviceptr tensor, float factor)
{
    int count = BYTES / 4;
    CUdeviceptr data[2] = {tensor, tensor};
    void *params[] = {&count, &factor, data};
    OK(cuLaunchKernel(torch_function(TORCH_NAME(TORCH_MUL)), (unsigned)count / 512, 1, 1, 128, 1, 1,
                      0, NULL, params, NULL));
}

static void load_library(const char *path)
{
    if (path != NULL && dlopen(path, RTLD_NOW) == NULL)
        printf("%s\n", dlerror());
}

/* Loads PyTorch, initialises tensors, loads others from a file, and reads a part of them. */
SCENARIO(initialise)
{
    CUdeviceptr tensors[TENSORS];
    load_library(getenv("TORCH_LIBRARY"));
    for (int i = 0; i < TENSORS; i++) {
        tensors[i] = allocate(BYTES);
        full(tensors[i], (float)i);
        multiply(tensors[i], 3);
    }
    const CUdeviceptr loaded = load_file((size_t)TENSORS * BYTES);
    print_bytes("initialised", tensors[3], BYTES);
    print_bytes("loaded", loaded + BYTES, BYTES);
    for (int i = 0; i < TENSORS; i++)
        OK(cuMemFree(tensors[i]));
    OK(cuMemFree(loaded));
}

/* A kernel of such a name is launched before there is a PyTorch, another one afterwards. */
SCENARIO(loaded_late)
{
    const CUdeviceptr tensor = allocate(BYTES);
    full(tensor, 7);
    load_library(getenv("TORCH_LIBRARY"));
    full(tensor, 8);
    multiply(tensor, 3);
    print_bytes("initialised", tensor, BYTES);
    OK(cuMemFree(tensor));
}
