/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/demo/device.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct device device;

void must(CUresult result, const char *what)
{
    if (result == CUDA_SUCCESS)
        return;
    fprintf(stderr, "demo: %s failed with CUDA error %d\n", what, result);
    exit(1);
}

static void *find(__typeof__(&cuGetProcAddress_v2) resolve, const char *name, int version)
{
    void *found = NULL;
    CUdriverProcAddressQueryResult status;
    must(resolve(name, &found, version, CU_GET_PROC_ADDRESS_DEFAULT, &status), name);
    return found;
}

static void find_functions(void)
{
    void *handle = dlopen("libcuda.so.1", RTLD_NOW);
    if (handle == NULL) {
        fprintf(stderr, "demo: %s\n", dlerror());
        exit(1);
    }
    __typeof__(&cuGetProcAddress_v2) resolve =
        (__typeof__(resolve))dlsym(handle, "cuGetProcAddress_v2");
    if (resolve == NULL) {
        fprintf(stderr, "demo: the driver is older than CUDA 12\n");
        exit(1);
    }
#define FIND(field, name, symbol, version) \
    device.field = (__typeof__(device.field))find(resolve, #name, version);
    DEVICE_FUNCTIONS(FIND)
#undef FIND
}

void device_open(void)
{
    CUcontext context;
    find_functions();
    must(device.init(0), "cuInit");
    must(device.context_retain(&context, 0), "cuDevicePrimaryCtxRetain");
    must(device.context_set(context), "cuCtxSetCurrent");
}

uint64_t hash_bytes(uint64_t hash, const unsigned char *bytes, uint64_t length)
{
    uint64_t word;
    for (; length >= 8; bytes += 8, length -= 8) {
        memcpy(&word, bytes, 8);
        hash = (hash ^ word) * UINT64_C(0x9fb21c651e98df25);
        hash ^= hash >> 32;
    }
    for (; length > 0; bytes++, length--)
        hash = (hash ^ *bytes) * UINT64_C(0x100000001b3);
    return hash;
}

void device_load_kernels(const char *path, size_t scratch_bytes)
{
    CUmodule module;
    must(device.module_load(&module, path), "cuModuleLoad");
    must(device.function(&device.copy32, module, "copy32"), "cuModuleGetFunction");
    must(device.function(&device.nothing, module, "no_params"), "cuModuleGetFunction");
    device.scratch_bytes = (scratch_bytes + 8) / 4 * 4;
    must(device.allocate(&device.scratch, device.scratch_bytes), "cuMemAlloc of scratch memory");
}

CUresult device_read(void *to, CUdeviceptr from, size_t bytes)
{
    return device.to_host(to, from, bytes);
}

CUresult device_read_by_kernel(void *to, CUdeviceptr from, size_t bytes)
{
    CUdeviceptr first = from / 4 * 4;
    uint64_t words = (from + bytes + 3) / 4 - first / 4;
    void *args[] = {&device.scratch, &first, &words};
    if (words * 4 > device.scratch_bytes)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = device.launch(device.copy32, 1, 1, 1, 1, 1, 1, 0, NULL, args, NULL);
    if (result == CUDA_SUCCESS)
        result = device.synchronise();
    if (result == CUDA_SUCCESS)
        result = device.to_host(to, device.scratch + (from - first), bytes);
    return result;
}
