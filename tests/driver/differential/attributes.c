/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Scenarios (scenario.h), one for each state that memory may be in: each attribute of its pointers,
 * asked alone and with others, is as the driver says. attributes.py runs them.
 */
#include <cuda.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/driver/differential/scenario.h"

enum { ATTRIBUTES = 21 };
static const size_t bytes = 4 * MIB;

static const CUmemAllocationProp props = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                          .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};

/* Addresses are shown from the base on; a number that only names something, as whether there is
 * one. */
static unsigned long long show(int attribute, const unsigned long long value[2], CUdeviceptr base)
{
    switch (attribute) {
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
        return value[0] != 0 ? value[0] - base : 0;
    case CU_POINTER_ATTRIBUTE_CONTEXT:
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
    case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
    case CU_POINTER_ATTRIBUTE_P2P_TOKENS:
        return value[0] != 0;
    default:
        return value[0];
    }
}

static void ask(const char *where, CUdeviceptr address, CUdeviceptr base)
{
    unsigned long long values[ATTRIBUTES + 1][2];
    CUpointer_attribute which[ATTRIBUTES];
    void *places[ATTRIBUTES];
    for (int i = 1; i <= ATTRIBUTES; i++) {
        memset(values[i], 0, sizeof(values[i]));
        const CUresult result = cuPointerGetAttribute(values[i], (CUpointer_attribute)i, address);
        printf("%s %d: %d %llx\n", where, i, (int)result, show(i, values[i], base));
    }
    for (int i = 0; i < ATTRIBUTES; i++) {
        memset(values[i], 0, sizeof(values[i]));
        which[i] = (CUpointer_attribute)(i + 1);
        places[i] = values[i];
    }
    printf("%s all: %d\n", where, (int)cuPointerGetAttributes(ATTRIBUTES, which, places, address));
    for (int i = 0; i < ATTRIBUTES; i++)
        printf("%s all %d: %llx\n", where, i + 1, show(i + 1, values[i], base));
}

static void ask_all(CUdeviceptr base, size_t count)
{
    ask("base", base, base);
    ask("inside", base + count / 2 + 3, base);
    ask("last", base + count - 1, base);
}

static void read_some(CUdeviceptr base)
{
    char byte;
    OK(cuMemcpyDtoH(&byte, base + 5, 1));
}

SCENARIO(plain)
{
    ask_all(allocate(bytes), bytes);
}

SCENARIO(plain_odd)
{
    const size_t odd = bytes + 1001;
    ask_all(allocate(odd), odd);
}

SCENARIO(plain_written)
{
    const CUdeviceptr base = allocate(bytes);
    OK(cuMemsetD8(base, 1, bytes));
    ask_all(base, bytes);
    read_some(base);
    ask_all(base, bytes);
}

SCENARIO(plain_shared)
{
    CUipcMemHandle handle;
    const CUdeviceptr base = allocate(bytes);
    OK(cuIpcGetMemHandle(&handle, base));
    ask_all(base, bytes);
}

SCENARIO(plain_freed)
{
    const CUdeviceptr base = allocate(bytes);
    OK(cuMemFree(base));
    ask_all(base, bytes);
}

static CUdeviceptr take_from_pool(void)
{
    CUdeviceptr base;
    OK(cuMemAllocAsync(&base, bytes, NULL));
    OK(cuStreamSynchronize(NULL));
    return base;
}

SCENARIO(pool)
{
    ask_all(take_from_pool(), bytes);
}

SCENARIO(pool_written)
{
    const CUdeviceptr base = take_from_pool();
    OK(cuMemsetD8(base, 1, bytes));
    read_some(base);
    ask_all(base, bytes);
}

SCENARIO(pool_freed)
{
    const CUdeviceptr base = take_from_pool();
    OK(cuMemFreeAsync(base, NULL));
    OK(cuCtxSynchronize());
    ask_all(base, bytes);
}

static CUdeviceptr map_all(CUmemAllocationHandleType types, CUmemAccess_flags access)
{
    CUdeviceptr base;
    CUmemGenericAllocationHandle handle;
    CUmemAllocationProp wanted = props;
    const CUmemAccessDesc who = {wanted.location, access};
    wanted.requestedHandleTypes = types;
    OK(cuMemAddressReserve(&base, 2 * bytes, 0, 0, 0));
    OK(cuMemCreate(&handle, bytes, &wanted, 0));
    OK(cuMemMap(base, bytes, 0, handle, 0));
    OK(cuMemRelease(handle));
    if (access != CU_MEM_ACCESS_FLAGS_PROT_NONE)
        OK(cuMemSetAccess(base, bytes, &who, 1));
    return base;
}

SCENARIO(mapped)
{
    ask_all(map_all(CU_MEM_HANDLE_TYPE_NONE, CU_MEM_ACCESS_FLAGS_PROT_READWRITE), bytes);
}

SCENARIO(mapped_written)
{
    const CUdeviceptr base = map_all(CU_MEM_HANDLE_TYPE_NONE, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    OK(cuMemsetD8(base, 1, bytes));
    read_some(base);
    ask_all(base, bytes);
}

SCENARIO(mapped_read_only)
{
    ask_all(map_all(CU_MEM_HANDLE_TYPE_NONE, CU_MEM_ACCESS_FLAGS_PROT_READ), bytes);
}

SCENARIO(mapped_without_access)
{
    ask_all(map_all(CU_MEM_HANDLE_TYPE_NONE, CU_MEM_ACCESS_FLAGS_PROT_NONE), bytes);
}

SCENARIO(mapped_to_export)
{
    ask_all(map_all(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, CU_MEM_ACCESS_FLAGS_PROT_READWRITE),
            bytes);
}

SCENARIO(mapped_exported)
{
    int descriptor;
    CUmemGenericAllocationHandle handle;
    const CUdeviceptr base =
        map_all(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    OK(cuMemRetainAllocationHandle(&handle, (void *)base));
    OK(cuMemExportToShareableHandle(&descriptor, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                    0));
    ask_all(base, bytes);
}

SCENARIO(unmapped)
{
    const CUdeviceptr base = map_all(CU_MEM_HANDLE_TYPE_NONE, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    OK(cuMemUnmap(base, bytes));
    ask_all(base, bytes);
}
