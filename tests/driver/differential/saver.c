/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/driver/differential/saver.h"

#include <cuda.h>
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#define EXPORT __attribute__((visibility("default")))

EXPORT saver_keep_function saver_keep;
EXPORT saver_pause_function saver_pause;
EXPORT saver_resume_function saver_resume;
EXPORT saver_count_function saver_count;
EXPORT int cudaMalloc(void **pointer, size_t bytes);
EXPORT int cudaFree(void *pointer);

static struct {
    CUdeviceptr address;
    size_t bytes; /* 0: none */
    CUmemGenericAllocationHandle handle;
    void *backup;
    int keeps;
} all[16];
static int keeps_content, count;

enum { COUNT = sizeof(all) / sizeof(all[0]) };

static void *next(const char *name)
{
    void *found = dlsym(RTLD_NEXT, name);
    if (found == NULL)
        abort();
    count++;
    return found;
}

#define NEXT(name) ((__typeof__(&name))next(#name))

/* --- passed on */

EXPORT CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size,
                            const CUmemAllocationProp *prop, unsigned long long flags)
{
    return NEXT(cuMemCreate)(handle, size, prop, flags);
}

EXPORT CUresult cuMemRelease(CUmemGenericAllocationHandle handle)
{
    return NEXT(cuMemRelease)(handle);
}

EXPORT CUresult cuMemMap(CUdeviceptr ptr, size_t size, size_t offset,
                         CUmemGenericAllocationHandle handle, unsigned long long flags)
{
    return NEXT(cuMemMap)(ptr, size, offset, handle, flags);
}

EXPORT CUresult cuMemUnmap(CUdeviceptr ptr, size_t size)
{
    return NEXT(cuMemUnmap)(ptr, size);
}

/* --- its own */

static void must(CUresult result, int line)
{
    if (result == CUDA_SUCCESS)
        return;
    fprintf(stderr, "saver.c:%d: %d\n", line, (int)result);
    exit(1);
}
#define MUST(call) must(call, __LINE__)

static void map_memory(int i)
{
    const CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                      .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE},
                                      .allocFlags = {.gpuDirectRDMACapable = 1}};
    const CUmemAccessDesc access = {.location = prop.location,
                                    .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    MUST(cuMemCreate(&all[i].handle, all[i].bytes, &prop, 0));
    MUST(cuMemMap(all[i].address, all[i].bytes, 0, all[i].handle, 0));
    MUST(cuMemSetAccess(all[i].address, all[i].bytes, &access, 1));
}

static void unmap_memory(int i)
{
    MUST(cuMemUnmap(all[i].address, all[i].bytes));
    MUST(cuMemRelease(all[i].handle));
}

int cudaMalloc(void **pointer, size_t bytes)
{
    int i = 0;
    while (all[i].bytes != 0)
        i++;
    all[i].bytes = bytes;
    all[i].keeps = keeps_content;
    MUST(cuMemAddressReserve(&all[i].address, bytes, 0, 0, 0));
    map_memory(i);
    *pointer = (void *)(uintptr_t)all[i].address;
    return 0;
}

int cudaFree(void *pointer)
{
    for (int i = 0; i < COUNT; i++) {
        if (all[i].bytes == 0 || all[i].address != (CUdeviceptr)(uintptr_t)pointer)
            continue;
        MUST(cuCtxSynchronize());
        unmap_memory(i);
        MUST(cuMemAddressFree(all[i].address, all[i].bytes));
        all[i].bytes = 0;
    }
    return 0;
}

void saver_keep(int keeps)
{
    keeps_content = keeps;
}

void saver_pause(void)
{
    for (int i = 0; i < COUNT; i++) {
        if (all[i].bytes == 0)
            continue;
        if (all[i].keeps && all[i].backup == NULL)
            MUST(cuMemAllocHost(&all[i].backup, all[i].bytes));
        if (all[i].keeps)
            MUST(cuMemcpyDtoH(all[i].backup, all[i].address, all[i].bytes));
        unmap_memory(i);
    }
}

void saver_resume(void)
{
    for (int i = 0; i < COUNT; i++) {
        if (all[i].bytes == 0)
            continue;
        map_memory(i);
        if (all[i].keeps)
            MUST(cuMemcpyHtoD(all[i].address, all[i].backup, all[i].bytes));
    }
}

int saver_count(void)
{
    return count;
}
