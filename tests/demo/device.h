/* SPDX-License-Identifier: Apache-2.0 */
/* The driver as the demo's clients use it: found as most programs find it, one device, one context,
 * one thread. */
#pragma once

#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>
#include <stddef.h>
#include <stdint.h>

/* field, name, symbol, CUDA version */
#define DEVICE_FUNCTIONS(X)                                                     \
    X(init, cuInit, cuInit, 2000)                                               \
    X(context_retain, cuDevicePrimaryCtxRetain, cuDevicePrimaryCtxRetain, 7000) \
    X(context_set, cuCtxSetCurrent, cuCtxSetCurrent, 4000)                      \
    X(synchronise, cuCtxSynchronize, cuCtxSynchronize, 2000)                    \
    X(allocate, cuMemAlloc, cuMemAlloc_v2, 3020)                                \
    X(free, cuMemFree, cuMemFree_v2, 3020)                                      \
    X(to_device, cuMemcpyHtoD, cuMemcpyHtoD_v2, 3020)                           \
    X(on_device, cuMemcpyDtoD, cuMemcpyDtoD_v2, 3020)                           \
    X(to_host, cuMemcpyDtoH, cuMemcpyDtoH_v2, 3020)                             \
    X(set, cuMemsetD8, cuMemsetD8_v2, 3020)                                     \
    X(module_load, cuModuleLoad, cuModuleLoad, 2000)                            \
    X(function, cuModuleGetFunction, cuModuleGetFunction, 2000)                 \
    X(launch, cuLaunchKernel, cuLaunchKernel, 4000)

struct device {
#define DEVICE_FIELD(field, name, symbol, version) __typeof__(&symbol) field;
    DEVICE_FUNCTIONS(DEVICE_FIELD)
#undef DEVICE_FIELD
    CUfunction copy32, nothing; /* of the kernel library, if one was loaded */
    CUdeviceptr scratch;        /* where copy32 copies to */
    size_t scratch_bytes;
};

extern struct device device;

/* Ends the program with one line when result is not success. */
void must(CUresult result, const char *what);

/* Initialises CUDA, with a context of device 0. Ends the program when that fails. */
void device_open(void);

/* The hash of bytes that follow others with this hash; 0 at first. Eight bytes a step; enough to
 * tell any two loads apart. */
uint64_t hash_bytes(uint64_t hash, const unsigned char *bytes, uint64_t length);

/* Loads a kernel library of tools/simcuda/kernels, with scratch memory for reads of at most so many
 * bytes. */
void device_load_kernels(const char *path, size_t scratch_bytes);

/* Reads device memory with a copy. */
CUresult device_read(void *to, CUdeviceptr from, size_t bytes);

/*
 * Reads device memory with a kernel that copies the words of it to scratch memory, and those to the
 * host. The first and the last word may have bytes that are outside; they are on the same page as
 * the bytes that are not.
 */
CUresult device_read_by_kernel(void *to, CUdeviceptr from, size_t bytes);
