/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the tests of the simulated driver. */
#pragma once

#include "tools/simcuda/harness/test.h"

#include <cuda.h>
#include <string.h>

#define OK(call) CHECK_EQ(call, CUDA_SUCCESS)
#define FAILS(call, result) CHECK_EQ(call, result)
#define MIB ((size_t)1 << 20)

static inline CUcontext start(void)
{
    CUcontext context;
    OK(cuInit(0));
    OK(cuDevicePrimaryCtxRetain(&context, 0));
    OK(cuCtxSetCurrent(context));
    return context;
}

static inline CUmemAllocationProp device_prop(CUdevice device)
{
    return (CUmemAllocationProp){
        .type = CU_MEM_ALLOCATION_TYPE_PINNED,
        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device},
    };
}

static inline CUmemGenericAllocationHandle create(size_t bytes)
{
    CUmemGenericAllocationHandle handle;
    const CUmemAllocationProp prop = device_prop(0);
    OK(cuMemCreate(&handle, bytes, &prop, 0));
    return handle;
}

static inline CUdeviceptr reserve(size_t bytes)
{
    CUdeviceptr address;
    OK(cuMemAddressReserve(&address, bytes, 0, 0, 0));
    return address;
}

static inline CUresult set_access(CUdeviceptr address, size_t bytes, CUdevice device,
                                  CUmemAccess_flags flags)
{
    const CUmemAccessDesc access = {
        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device},
        .flags = flags,
    };
    return cuMemSetAccess(address, bytes, &access, 1);
}

/* One handle of that size, mapped at the address for device 0; the handle is given back. */
static inline void back(CUdeviceptr address, size_t bytes)
{
    const CUmemGenericAllocationHandle handle = create(bytes);
    OK(cuMemMap(address, bytes, 0, handle, 0));
    OK(cuMemRelease(handle));
    OK(set_access(address, bytes, 0, CU_MEM_ACCESS_FLAGS_PROT_READWRITE));
}

static inline size_t free_bytes(void)
{
    size_t bytes;
    OK(cuMemGetInfo(&bytes, NULL));
    return bytes;
}

/* A host function that keeps a stream busy until the test opens the gate. */
struct gate {
    int is_open;
};
static inline void wait_at_gate(void *gate)
{
    while (!__atomic_load_n(&((struct gate *)gate)->is_open, __ATOMIC_ACQUIRE))
        ;
}
static inline void close_gate(struct gate *gate, CUstream stream)
{
    gate->is_open = 0;
    OK(cuLaunchHostFunc(stream, wait_at_gate, gate));
}
static inline void open_gate(struct gate *gate)
{
    __atomic_store_n(&gate->is_open, 1, __ATOMIC_RELEASE);
}
