/* SPDX-License-Identifier: Apache-2.0 */
/* Questions about memory, memory management of the program's own, and memory that runs out. */
#include "tests/driver/differential/fuzz.h"

#include <string.h>
#include <unistd.h>

#include "tools/simcuda/driver/hook.h"
#include "tools/simcuda/tests/peer.h"

enum { PAGE = 4096 };

static void ask_range(void)
{
    CUdeviceptr base = 0;
    size_t bytes = 0;
    const struct fuzz_range range = fuzz_range(FUZZ_BLOCK_MOST, 1);
    if (range.block->is_part)
        return;
    SEE(CALL(cuMemGetAddressRange_v2)(&base, &bytes, range.at));
    fuzz_see(range.at - base);
    fuzz_see(bytes);
}

static void ask_attribute(void)
{
    uint64_t value = 0;
    static const CUpointer_attribute all[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                              CU_POINTER_ATTRIBUTE_RANGE_SIZE,
                                              CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
                                              CU_POINTER_ATTRIBUTE_IS_MANAGED,
                                              CU_POINTER_ATTRIBUTE_MAPPED};
    const struct fuzz_range range = fuzz_range(FUZZ_BLOCK_MOST, 1);
    const CUpointer_attribute which = all[fuzz_below(5)];
    SEE(CALL(cuPointerGetAttribute)(&value, which, range.at));
    fuzz_see(value);
}

static void ask_attributes(void)
{
    CUdeviceptr start = 0;
    size_t bytes = 0;
    unsigned type = 0;
    int device = -1;
    CUpointer_attribute which[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                   CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
                                   CU_POINTER_ATTRIBUTE_RANGE_SIZE,
                                   CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL};
    void *values[] = {&type, &start, &bytes, &device};
    const struct fuzz_range range = fuzz_range(FUZZ_BLOCK_MOST, 1);
    if (range.block->is_part)
        return;
    SEE(CALL(cuPointerGetAttributes)(4, which, values, range.at));
    fuzz_see(type);
    fuzz_see(range.at - start);
    fuzz_see(bytes);
    fuzz_see((uint64_t)device);
}

/* Deferred memory counts as used. */
static void ask_free(void)
{
    size_t before = 0, after = 0, total;
    CUdeviceptr large = 0;
    fuzz_wait();
    SEE(CALL(cuMemGetInfo_v2)(&before, &total));
    SEE(CALL(cuMemAlloc_v2)(&large, 2 << 20));
    SEE(CALL(cuMemGetInfo_v2)(&after, &total));
    /* Little memory differs from much, and other memory may be given back meanwhile. */
    fuzz_see(fuzz_driver_has("SIMCUDA_OTHERS") || after + (1 << 20) <= before);
    SEE(CALL(cuMemFree_v2)(large));
}

/* --- what the shim cannot do for a block, and says so */

/* Blocks of their own: what was shared or pinned is as it is until it is freed. */
static CUdeviceptr make_alone(size_t bytes)
{
    CUdeviceptr at = 0;
    fuzz_wait();
    SEE(CALL(cuMemAlloc_v2)(&at, bytes));
    fuzz_define(at, bytes);
    return at;
}

static void free_alone(CUdeviceptr at, size_t bytes)
{
    fuzz_read(at, bytes);
    SEE(CALL(cuMemFree_v2)(at));
}

static void set_attribute(void)
{
    const unsigned on = 1;
    const CUdeviceptr at = make_alone(PAGE);
    fuzz_loud(CALL(cuPointerSetAttribute)(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, at),
              "cuPointerSetAttribute");
    free_alone(at, PAGE);
}

/* The other process opens the memory, writes there, and closes it. ipc.c does more. */
static void share_with_another(void)
{
    static struct sim_peer peer;
    enum { BYTES = 5 * PAGE };
    CUipcMemHandle handle;
    const CUdeviceptr at = make_alone(BYTES);
    SEE(CALL(cuCtxSynchronize)()); /* nothing else orders the other process behind what is there */
    if (SEE(CALL(cuIpcGetMemHandle)(&handle, at)) == CUDA_SUCCESS) {
        if (peer.to == 0)
            peer = sim_peer_start_as("memory");
        const struct sim_peer_shared seen = sim_peer_add(peer, handle, BYTES);
        fuzz_see(seen.result);
        fuzz_see(seen.sum);
    }
    free_alone(at, BYTES);
}

/* This process may not open it. */
static void share_the_old_way(void)
{
    enum { LAZY = CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS };
    CUipcMemHandle handle = {{0}};
    CUdeviceptr there = 0;
    const CUdeviceptr at = make_alone(PAGE);
    SEE(CALL(cuIpcGetMemHandle)(&handle, at));
    SEE(CALL(cuIpcOpenMemHandle)(&there, handle, LAZY));
    SEE(CALL(cuIpcOpenMemHandle_v2)(&there, handle, LAZY));
    SEE(CALL(cuIpcCloseMemHandle)(at));
    free_alone(at, PAGE);
}

/* The driver has none for memory of cuMemAlloc, and not when it is in memory either. */
static void ask_for_a_handle(void)
{
    CUmemGenericAllocationHandle handle = 0;
    const CUdeviceptr at = make_alone(64 << 10);
    if (fuzz_one_in(2))
        fuzz_read(at, 64 << 10);
    SEE(CALL(cuMemRetainAllocationHandle)(&handle, (void *)(uintptr_t)at));
    free_alone(at, 64 << 10);
}

/* Pins: the memory stays in its place from then on. Only whole pages can be: where they begin in
 * the block may be another place under the shim. */
static void pin_by_range(void)
{
    int descriptor = -1;
    const CUdeviceptr at = make_alone(FUZZ_BLOCK_MOST);
    const CUdeviceptr first_page = (at + PAGE - 1) / PAGE * PAGE;
    fuzz_loud(CALL(cuMemGetHandleForAddressRange)(&descriptor, first_page, FUZZ_BLOCK_MOST - PAGE,
                                                  CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0),
              "cuMemGetHandleForAddressRange");
    if (descriptor >= 0)
        close(descriptor);
    SEE(CALL(cuMemsetD8_v2)(at, (unsigned char)fuzz_random(), FUZZ_BLOCK_MOST / 2));
    free_alone(at, FUZZ_BLOCK_MOST);
}

/* --- what cuMemAlloc gave is no reservation of the program's */

static const CUmemAllocationProp on_device = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                              .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};

size_t fuzz_granule(void)
{
    static size_t bytes;
    if (bytes == 0)
        CALL(cuMemGetAllocationGranularity)(&bytes, &on_device, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
    return bytes;
}

static void misuse_mapping(void)
{
    const CUmemLocation here = {.type = CU_MEM_LOCATION_TYPE_DEVICE};
    const CUmemAccessDesc none = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE},
                                  .flags = CU_MEM_ACCESS_FLAGS_PROT_NONE};
    const size_t bytes = fuzz_granule();
    CUmemGenericAllocationHandle handle = 0;
    unsigned long long flags = 0;
    const CUdeviceptr at = make_alone(bytes);
    const size_t way = fuzz_below(6);
    if (way >= 3)
        fuzz_read(at, bytes); /* in memory */
    fuzz_wait();
    switch (way) {
    case 0:
        SEE(CALL(cuMemAddressFree)(at, bytes));
        break;
    case 1:
        SEE(CALL(cuMemAddressFree)(at - bytes, 3 * bytes));
        break;
    case 2:
        SEE(CALL(cuMemCreate)(&handle, bytes, &on_device, 0));
        SEE(CALL(cuMemMap)(at, bytes, 0, handle, 0));
        SEE(CALL(cuMemRelease)(handle));
        break;
    case 3:
        SEE(CALL(cuMemUnmap)(at, bytes));
        break;
    case 4:
        SEE(CALL(cuMemSetAccess)(at, bytes, &none, 1));
        break;
    default:
        SEE(CALL(cuMemGetAccess)(&flags, &here, at));
    }
    free_alone(at, bytes);
}

/* --- memory that a switch writes to (on a driver with SIMCUDA_MULTICAST) */

static void bind_handle(CUmemGenericAllocationHandle object, CUdevice device,
                        CUmemGenericAllocationHandle handle, size_t bytes)
{
    if (fuzz_is_newer(FUZZ_cuMulticastBindMem_v2))
        SEE(CALL(cuMulticastBindMem_v2)(object, device, 0, handle, 0, bytes, 0));
    else
        SEE(CALL(cuMulticastBindMem)(object, 0, handle, 0, bytes, 0));
}

static CUresult bind_address(CUmemGenericAllocationHandle object, CUdeviceptr at, size_t bytes)
{
    return fuzz_is_newer(FUZZ_cuMulticastBindAddr_v2)
               ? CALL(cuMulticastBindAddr_v2)(object, 0, 0, at, bytes, 0)
               : CALL(cuMulticastBindAddr)(object, 0, at, bytes, 0);
}

/* Both devices' memory, of which the second one's is not looked at. */
static CUmemGenericAllocationHandle make_object(size_t bytes)
{
    CUmemGenericAllocationHandle object = 0, other = 0;
    const CUmulticastObjectProp prop = {.numDevices = 2, .size = bytes};
    const CUmemAllocationProp on_second = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                           .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE,
                                                        .id = 1}};
    SEE(CALL(cuMulticastCreate)(&object, &prop));
    SEE(CALL(cuMulticastAddDevice)(object, 0));
    SEE(CALL(cuMulticastAddDevice)(object, 1));
    SEE(CALL(cuMemCreate)(&other, bytes, &on_second, 0));
    bind_handle(object, 1, other, bytes);
    SEE(CALL(cuMemRelease)(other));
    return object;
}

static void store(CUmemGenericAllocationHandle object, size_t at)
{
    unsigned char bytes[64];
    memset(bytes, (int)fuzz_below(256), sizeof(bytes));
    SEE(FUZZ_STAND_IN(simcuda_multicast_store)(object, at, bytes, sizeof(bytes)));
}

/* Memory of a pool, which is the driver's own. */
static void bind_pooled(void)
{
    const size_t bytes = fuzz_granule();
    CUdeviceptr at = 0;
    fuzz_wait();
    SEE(CALL(cuMemAllocAsync)(&at, bytes, NULL));
    SEE(CALL(cuCtxSynchronize)());
    fuzz_define(at, bytes);
    fuzz_wait();
    const CUmemGenericAllocationHandle object = make_object(bytes);
    SEE(bind_address(object, at, bytes));
    store(object, 100);
    fuzz_read(at, bytes);
    SEE(CALL(cuMulticastUnbind)(object, 0, 0, bytes));
    SEE(CALL(cuMemRelease)(object));
    SEE(CALL(cuMemFreeAsync)(at, NULL));
    SEE(CALL(cuCtxSynchronize)());
}

/* Memory that the program maps: to a switch, or to an endpoint. */
static void bind_mapped_to(CUmemGenericAllocationHandle object, CUdeviceptr at, size_t bytes,
                           CUmemGenericAllocationHandle handle)
{
    switch (fuzz_below(4)) {
    case 0:
        return bind_handle(object, 0, handle, bytes);
    case 1:
        SEE(bind_address(object, at, bytes));
        break;
    case 2:
        SEE(CALL(cuLogicalEndpointBindMem)(1, 0, 0, handle, 0, bytes, 0));
        break;
    default:
        SEE(CALL(cuLogicalEndpointBindAddr)(1, 0, 0, (void *)(uintptr_t)at, bytes, 0));
    }
}

static void bind_mapped(void)
{
    const size_t bytes = fuzz_granule();
    const CUmemAccessDesc desc = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE},
                                  .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUmemGenericAllocationHandle handle = 0;
    CUdeviceptr at = 0;
    fuzz_wait();
    SEE(CALL(cuMemAddressReserve)(&at, bytes, 0, 0, 0));
    SEE(CALL(cuMemCreate)(&handle, bytes, &on_device, 0));
    SEE(CALL(cuMemMap)(at, bytes, 0, handle, 0));
    SEE(CALL(cuMemSetAccess)(at, bytes, &desc, 1));
    fuzz_define(at, bytes);
    fuzz_wait();
    const CUmemGenericAllocationHandle object = make_object(bytes);
    bind_mapped_to(object, at, bytes, handle);
    store(object, 100);
    fuzz_read(at, bytes);
    SEE(CALL(cuMulticastUnbind)(object, 0, 0, bytes));
    SEE(CALL(cuMemRelease)(object));
    SEE(CALL(cuMemRelease)(handle));
    SEE(CALL(cuMemUnmap)(at, bytes));
    SEE(CALL(cuMemAddressFree)(at, bytes));
}

/*
 * The driver binds no memory of cuMemAlloc; a block is mapped memory, which it binds
 * (docs/design/memory.md). The object is then the block's, and a store through it is a copy to the
 * block of the side that has none.
 */
static void bind(void)
{
    const size_t bytes = fuzz_granule();
    unsigned char stored[64];
    const CUdeviceptr at = make_alone(bytes);
    const size_t where = fuzz_below(bytes - sizeof(stored));
    memset(stored, (int)fuzz_below(256), sizeof(stored));
    const CUmemGenericAllocationHandle object = make_object(bytes);
    const CUresult result = bind_address(object, at, bytes);
    fuzz_see(!fuzz_may_be_in_memory() && fuzz_has_shim() && fuzz_defers() &&
             result != CUDA_SUCCESS);
    fuzz_default_stream(false);
    SEE(CALL(cuMemsetD8_v2)(at, (unsigned char)fuzz_random(), bytes / 2));
    fuzz_wait();
    SEE(result == CUDA_SUCCESS
            ? FUZZ_STAND_IN(simcuda_multicast_store)(object, where, stored, sizeof(stored))
            : CALL(cuMemcpyHtoD_v2)(at + where, stored, sizeof(stored)));
    fuzz_read(at, bytes);
    fuzz_wait();
    SEE(CALL(cuMemRelease)(object));
    free_alone(at, bytes);
}

/* --- memory runs out: what can be restored makes room */

/* A pool that another device may reach is the driver's. */
static CUmemoryPool make_shared_pool(void)
{
    CUmemoryPool pool = NULL;
    const CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                                  .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
    const CUmemAccessDesc access = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 1},
                                    .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    SEE(CALL(cuMemPoolCreate)(&pool, &props));
    SEE(CALL(cuMemPoolSetAccess)(pool, &access, 1));
    return pool;
}

/*
 * With the shim the device has 16 MiB (fuzzing.py), so 9 and 9 are too much, unless bytes that were
 * read are given back. Once the program computes, deferred memory may not be more than the device
 * either (overcommit.h), so there the program takes less.
 */
static void need_room(void)
{
    const size_t bytes = 9 << 20, less = 5 << 20;
    CUdeviceptr first = 0, second = 0;
    size_t pitch = 0;
    CUmemGenericAllocationHandle handle = 0;
    CUmemoryPool pool = NULL, usual = NULL;
    const bool twin = fuzz_one_in(2);
    fuzz_end_program();
    SEE(CALL(cuDeviceGetDefaultMemPool)(&usual, 0));
    SEE(CALL(cuMemAlloc_v2)(&first, bytes));
    SEE(CALL(cuMemsetD8_v2)(first, 7, bytes));
    for (size_t at = 0; at < bytes; at += FUZZ_BUFFER_BYTES)
        fuzz_read(first + at, FUZZ_BUFFER_BYTES);
    fuzz_wait();
    switch (fuzz_below(5)) {
    case 0:
        SEE(CALL(cuMemAllocPitch_v2)(&second, &pitch, 1 << 20, 9, 4));
        break;
    case 1:
        pool = make_shared_pool();
        SEE(CALL(cuDeviceSetMemPool)(0, pool));
        SEE(TWIN(twin, cuMemAllocAsync, cuMemAllocAsync_ptsz)(&second, bytes, NULL));
        SEE(CALL(cuDeviceSetMemPool)(0, usual));
        break;
    case 2:
        pool = make_shared_pool();
        SEE(TWIN(twin, cuMemAllocFromPoolAsync, cuMemAllocFromPoolAsync_ptsz)(&second, bytes, pool,
                                                                              NULL));
        break;
    case 3:
        SEE(CALL(cuMemCreate)(&handle, less, &on_device, 0));
        break;
    default:
        SEE(CALL(cuMemAlloc_v2)(&second, less));
        SEE(CALL(cuMemsetD8_v2)(second, 9, less));
        fuzz_read(second + less - 1000, 1000);
    }
    SEE(CALL(cuCtxSynchronize)());
    if (second != 0)
        SEE(CALL(cuMemFree_v2)(second));
    if (handle != 0)
        SEE(CALL(cuMemRelease)(handle));
    if (pool != NULL)
        SEE(CALL(cuMemPoolDestroy)(pool));
    CALL(cuMemPoolTrimTo)(usual, 0);
    fuzz_read(first, PAGE);
    SEE(CALL(cuMemFree_v2)(first));
}

const struct fuzz_operation fuzz_memory[] = {
    {"ask for the range", ask_range, 12},
    {"ask for an attribute", ask_attribute, 12},
    {"ask for attributes", ask_attributes, 12},
    {"ask for free memory", ask_free, 5},
    {"set an attribute", set_attribute, 2},
    {"share the old way", share_the_old_way, 2},
    {"share with another process", share_with_another, 1},
    {"pin by a handle", ask_for_a_handle, 2},
    {"pin by a range", pin_by_range, 2},
    {"bind to a switch", bind, 2},
    {"bind a pool's memory to a switch", bind_pooled, 1},
    {"bind mapped memory to a switch", bind_mapped, 2},
    {"misuse a mapping", misuse_mapping, 8},
    {"need room", need_room, 1},
    {NULL, NULL, 0},
};
