/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kernels of the simulated driver: C functions in a shared library ("kernel library"), which
 * cuModuleLoad and cuLibraryLoadFromFile open by path. cuModuleLoadData and cuLibraryLoadData take
 * the bytes "SIMCUDA:" and a path; a fat binary of nvcc is accepted as a module without kernels.
 *
 *     SIMCUDA_KERNEL(fill32)
 *     {
 *         const CUdeviceptr address = SIMCUDA_ARG(args, 0, CUdeviceptr);
 *         const size_t count = SIMCUDA_ARG(args, 2, uint64_t);
 *         uint32_t *words = launch->touch(launch, address, count * sizeof *words);
 *         if (words == NULL)
 *             return;
 *         ...
 *     }
 *     SIMCUDA_PARAMS(fill32, {0, 8}, {8, 4}, {16, 8});
 *     SIMCUDA_KERNEL_LIST("fill32");
 *
 * A kernel runs once for the whole grid, on the thread of its stream, and loops over the grid
 * itself. It reaches device memory through touch only, and calls no driver function.
 *
 * Layout. With SIMCUDA_PARAMS the driver knows the parameters: it copies them when the kernel is
 * launched, from kernelParams or from the packed buffer of `extra`, and answers cuFuncGetParamInfo.
 * A kernel that takes none has SIMCUDA_PARAMS_NONE(name). A kernel without either stands for one
 * that was compiled by too old a toolchain: cuFuncGetParamInfo says CUDA_ERROR_NOT_SUPPORTED, it
 * can be launched only with `extra`, and args[0] is the whole packed buffer.
 */
#pragma once

#include <cuda.h>
#include <stddef.h>
#include <stdint.h>

/* One launch, as its kernel sees it. */
struct simcuda_launch {
    const char *name;
    unsigned grid[3];
    unsigned block[3];
    unsigned shared_bytes;
    size_t args_bytes; /* of the packed arguments */
    /*
     * The memory behind a device address, or NULL when a byte of it may not be touched. The context
     * is then lost, as with CUDA_ERROR_ILLEGAL_ADDRESS on a device, and the kernel has to return.
     */
    void *(*touch)(const struct simcuda_launch *launch, CUdeviceptr address, size_t bytes);
    /* The address of a variable of the kernel's module that the program has asked for before; or
     * 0. */
    CUdeviceptr (*global)(const struct simcuda_launch *launch, const char *name);
    const void *module; /* for that */
};

typedef void simcuda_kernel(const struct simcuda_launch *launch, void **args);

/* The place of one parameter; a layout ends with a size of 0. */
struct simcuda_param {
    size_t offset;
    size_t size;
};

/*
 * A kernel library of host versions for the kernels in fat binaries exports simcuda_find: the
 * function for a mangled name, or NULL (fatbin.c).
 */
typedef simcuda_kernel *simcuda_find_kernel(const char *name);

#define SIMCUDA_EXPORT __attribute__((visibility("default")))

#define SIMCUDA_KERNEL(kernel)                                               \
    SIMCUDA_EXPORT simcuda_kernel kernel;                                    \
    void kernel(__attribute__((unused)) const struct simcuda_launch *launch, \
                __attribute__((unused)) void **args)

#define SIMCUDA_PARAMS(kernel, ...)                                     \
    SIMCUDA_EXPORT extern const struct simcuda_param kernel##_params[]; \
    const struct simcuda_param kernel##_params[] = {__VA_ARGS__, {0, 0}}

#define SIMCUDA_PARAMS_NONE(kernel)                                     \
    SIMCUDA_EXPORT extern const struct simcuda_param kernel##_params[]; \
    const struct simcuda_param kernel##_params[] = {{0, 0}}

#define SIMCUDA_ARG(args, index, type) (*(const type *)(args)[index])

/* How descriptors hold an address (descriptor.c); the same again gives it back. */
static inline uint64_t simcuda_hide(uint64_t address)
{
    return ~address;
}

/* A __device__ variable: its first content. Each module that is loaded has a copy of its own. */
#define SIMCUDA_GLOBAL(variable, type, ...)                              \
    SIMCUDA_EXPORT extern const type simcuda_global_##variable;          \
    SIMCUDA_EXPORT extern const size_t simcuda_global_##variable##_size; \
    const type simcuda_global_##variable = __VA_ARGS__;                  \
    const size_t simcuda_global_##variable##_size = sizeof(type)

/* A __managed__ variable. */
#define SIMCUDA_MANAGED(variable, type, ...)                              \
    SIMCUDA_EXPORT extern const char simcuda_global_##variable##_managed; \
    const char simcuda_global_##variable##_managed = 1;                   \
    SIMCUDA_GLOBAL(variable, type, __VA_ARGS__)

/* The names that cuModuleEnumerateFunctions and cuLibraryEnumerateKernels know. */
#define SIMCUDA_KERNEL_LIST(...)                               \
    SIMCUDA_EXPORT extern const char *const simcuda_kernels[]; \
    const char *const simcuda_kernels[] = {__VA_ARGS__, NULL}
