/* SPDX-License-Identifier: Apache-2.0 */
/* Allocating, freeing, asking, mapping and sharing. */
#include "tests/driver/groups/groups.h"
#include "tools/simcuda/driver/hook.h"

/* groups.py looks at how much memory the device had to have. */
static void is_deferred(void)
{
    CUdeviceptr block;
    MUST(TESTED(cuMemAlloc_v2)(&block, 64 * MIB));
    MUST(cuMemsetD8_v2(block, 1, 64 * MIB));
    print_device("a part", block + MIB, MIB);
}

static void initialised(void)
{
    CUdeviceptr block;
    MUST(cuMemAlloc_v2(&block, 64 * MIB));
    MUST(cuMemsetD8_v2(block, 1, 64 * MIB));
}

static void freed(void)
{
    const CUdeviceptr block = make_block(1);
    SEEN(TESTED(cuMemFree_v2)(block + 4096));
    SEEN(TESTED(cuMemFree_v2)(block));
    SEEN(TESTED(cuMemFree_v2)(block));
    CUdeviceptr base;
    size_t bytes;
    SEEN(cuMemGetAddressRange_v2(&base, &bytes, block));
}

static void freed_in_a_stream(void)
{
    const CUdeviceptr block = make_block(1);
    SEEN(TESTED(cuMemFreeAsync)(block, NULL));
    MUST(cuCtxSynchronize());
    SEEN(cuMemFree_v2(block));
}

/* Memory is out until what was read is given back. */
static CUdeviceptr fill_device(void)
{
    CUdeviceptr block;
    MUST(cuMemAlloc_v2(&block, 40 * MIB));
    MUST(cuMemsetD8_v2(block, 7, 40 * MIB));
    print_device("read", block, 40 * MIB);
    return block;
}

static void room_for_pitched(void)
{
    const CUdeviceptr block = fill_device();
    CUdeviceptr pitched;
    size_t pitch;
    SEEN(TESTED(cuMemAllocPitch_v2)(&pitched, &pitch, MIB, 40, 4));
    print_device("read again", block, MIB);
}

static void room_in_a_stream(void)
{
    fill_device();
    CUdeviceptr other;
    SEEN(TESTED(cuMemAllocAsync)(&other, 40 * MIB, NULL));
}

static void room_in_a_pool(void)
{
    fill_device();
    CUdeviceptr other;
    CUmemoryPool pool;
    MUST(cuDeviceGetDefaultMemPool(&pool, 0));
    SEEN(TESTED(cuMemAllocFromPoolAsync)(&other, 40 * MIB, pool, NULL));
}

/* --- pools */

static CUmemoryPool make_pool(CUmemLocationType place)
{
    CUmemoryPool pool;
    const CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                                  .location = {.type = place}};
    MUST(cuMemPoolCreate(&pool, &props));
    return pool;
}

static CUdeviceptr make_pooled(CUmemoryPool pool, size_t bytes)
{
    CUdeviceptr block;
    MUST(cuMemAllocFromPoolAsync(&block, bytes, pool, NULL));
    MUST(cuMemsetD8_v2(block, 7, bytes));
    return block;
}

static void print_figure(CUmemoryPool pool, CUmemPool_attribute attribute)
{
    uint64_t value = 0;
    MUST(cuMemPoolGetAttribute(pool, attribute, &value));
    printf("%d: %llu\n", (int)attribute, (unsigned long long)value);
}

static void pool_made(void)
{
    CUmemoryPool pool;
    const CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                                  .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
    MUST(TESTED(cuMemPoolCreate)(&pool, &props));
    const CUdeviceptr block = make_pooled(pool, 64 * MIB);
    print_device("a part", block, MIB);
}

/* The handle is the next pool's, which is one of host memory. */
static void pool_destroyed(void)
{
    CUdeviceptr there;
    const CUmemoryPool gone = make_pool(CU_MEM_LOCATION_TYPE_DEVICE);
    MUST(TESTED(cuMemPoolDestroy)(gone));
    SEEN(cuMemPoolTrimTo(gone, 0));
    const CUmemoryPool pool = make_pool(CU_MEM_LOCATION_TYPE_HOST);
    printf("the same handle: %d\n", pool == gone);
    MUST(cuMemAllocFromPoolAsync(&there, BLOCK_BYTES, pool, NULL));
    MUST(cuCtxSynchronize());
    memset((void *)(uintptr_t)there, 3, BLOCK_BYTES);
    print_device("there", there, BLOCK_BYTES);
}

static void pool_asked(void)
{
    uint64_t value = 0;
    const CUmemoryPool pool = make_pool(CU_MEM_LOCATION_TYPE_DEVICE);
    make_pooled(pool, BLOCK_BYTES);
    SEEN(TESTED(cuMemPoolGetAttribute)(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &value));
    printf("%llu bytes\n", (unsigned long long)value);
}

static void pool_set(void)
{
    uint64_t zero = 0;
    const CUmemoryPool pool = make_pool(CU_MEM_LOCATION_TYPE_DEVICE);
    MUST(cuMemFreeAsync(make_pooled(pool, BLOCK_BYTES), NULL));
    MUST(cuCtxSynchronize());
    SEEN(TESTED(cuMemPoolSetAttribute)(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH, &zero));
    print_figure(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH);
}

static void pool_trimmed(void)
{
    uint64_t all = UINT64_MAX;
    const CUmemoryPool pool = make_pool(CU_MEM_LOCATION_TYPE_DEVICE);
    MUST(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &all));
    MUST(cuMemFreeAsync(make_pooled(pool, BLOCK_BYTES), NULL));
    MUST(cuCtxSynchronize());
    print_figure(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT);
    SEEN(TESTED(cuMemPoolTrimTo)(pool, 0));
    print_figure(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT);
}

static void pool_shared(void)
{
    CUcontext here, there;
    CUdeviceptr copy;
    uint64_t count = BLOCK_BYTES / 4;
    const CUmemoryPool pool = make_pool(CU_MEM_LOCATION_TYPE_DEVICE);
    const CUmemAccessDesc access = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 1},
                                    .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUdeviceptr block = make_pooled(pool, BLOCK_BYTES);
    MUST(cuCtxSynchronize());
    MUST(cuCtxGetCurrent(&here));
    SEEN(TESTED(cuMemPoolSetAccess)(pool, &access, 1));
    MUST(cuDevicePrimaryCtxRetain(&there, 1));
    MUST(cuCtxSetCurrent(there));
    MUST(cuMemAlloc_v2(&copy, BLOCK_BYTES));
    void *params[] = {&copy, &block, &count};
    SEEN(cuLaunchKernel(find_kernel("copy32"), 1, 1, 1, 1, 1, 1, 0, NULL, params, NULL));
    print_device("copied", copy, BLOCK_BYTES);
    MUST(cuCtxSetCurrent(here));
}

static const CUmemAllocationProp on_device = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                              .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};

static void room_for_a_handle(void)
{
    fill_device();
    CUmemGenericAllocationHandle handle;
    SEEN(TESTED(cuMemCreate)(&handle, 40 * MIB, &on_device, 0));
}

static void address_range(void)
{
    CUdeviceptr base;
    size_t bytes;
    const CUdeviceptr block = make_block(1);
    SEEN(TESTED(cuMemGetAddressRange_v2)(&base, &bytes, block + 3 * MIB + 1));
    printf("%lld %zu\n", (long long)(block - base), bytes);
}

static void free_memory(void)
{
    size_t before, after, total;
    MUST(TESTED(cuMemGetInfo_v2)(&before, &total));
    make_block(1);
    MUST(TESTED(cuMemGetInfo_v2)(&after, &total));
    printf("%zu less\n", before - after);
}

static void attribute(void)
{
    size_t bytes = 0;
    unsigned type = 0;
    int device = -1;
    const CUdeviceptr block = make_block(1);
    SEEN(TESTED(cuPointerGetAttribute)(&bytes, CU_POINTER_ATTRIBUTE_RANGE_SIZE, block + MIB));
    SEEN(TESTED(cuPointerGetAttribute)(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, block + MIB));
    SEEN(TESTED(cuPointerGetAttribute)(&device, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, block));
    printf("%zu %u %d\n", bytes, type, device);
}

static void attributes(void)
{
    size_t bytes = 0;
    unsigned type = 0;
    CUpointer_attribute which[] = {CU_POINTER_ATTRIBUTE_RANGE_SIZE,
                                   CU_POINTER_ATTRIBUTE_MEMORY_TYPE};
    void *values[] = {&bytes, &type};
    const CUdeviceptr block = make_block(1);
    SEEN(TESTED(cuPointerGetAttributes)(2, which, values, block + MIB));
    printf("%zu %u\n", bytes, type);
}

static void set_attribute(void)
{
    const unsigned on = 1;
    const CUdeviceptr block = make_block(1);
    SEEN(TESTED(cuPointerSetAttribute)(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, block));
}

static void shared_the_old_way(void)
{
    CUipcMemHandle handle;
    SEEN(TESTED(cuIpcGetMemHandle)(&handle, make_block(1)));
}

/* The memory is this process's own: the driver says so. */
static void opened_the_old_way(void)
{
    CUipcMemHandle handle;
    CUdeviceptr there;
    MUST(cuIpcGetMemHandle(&handle, make_block(1)));
    SEEN(TESTED(cuIpcOpenMemHandle)(&there, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    SEEN(cuIpcCloseMemHandle(make_block(2)));
}

static void opened_the_old_way_2(void)
{
    CUipcMemHandle handle;
    CUdeviceptr there;
    MUST(cuIpcGetMemHandle(&handle, make_block(1)));
    SEEN(TESTED(cuIpcOpenMemHandle_v2)(&there, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    SEEN(TESTED(cuIpcOpenMemHandle_v2)(&there, handle, 0));
}

static void retained(void)
{
    CUmemGenericAllocationHandle handle;
    const CUdeviceptr block = make_block(1);
    print_device("in memory", block, BLOCK_BYTES);
    SEEN(TESTED(cuMemRetainAllocationHandle)(&handle, (void *)(uintptr_t)block));
}

static void shared_by_range(void)
{
    int descriptor = -1;
    const CUdeviceptr block = make_block(1);
    SEEN(TESTED(cuMemGetHandleForAddressRange)(&descriptor, block, BLOCK_BYTES,
                                               CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0));
}

/* A block is mapped memory, which a switch writes to from then on. */
#define BOUND(name, call)                                                      \
    static void name(void)                                                     \
    {                                                                          \
        CUmemGenericAllocationHandle object;                                   \
        const unsigned stored = 0x01020304;                                    \
        const CUmulticastObjectProp prop = {.numDevices = 1, .size = 2 * MIB}; \
        const CUdeviceptr block = make_block(1);                               \
        MUST(cuMulticastCreate(&object, &prop));                               \
        MUST(cuMulticastAddDevice(object, 0));                                 \
        SEEN(call);                                                            \
        SEEN(simcuda_multicast_store(object, MIB, &stored, sizeof(stored)));   \
        print_device("block", block, BLOCK_BYTES);                             \
    }
BOUND(bound_to_a_switch, TESTED(cuMulticastBindAddr)(object, 0, block, 2 * MIB, 0))
BOUND(bound_to_a_switch_2, TESTED(cuMulticastBindAddr_v2)(object, 0, 0, block, 2 * MIB, 0))

static void bound_to_an_endpoint(void)
{
    void *block = (void *)(uintptr_t)make_block(1);
    SEEN(TESTED(cuLogicalEndpointBindAddr)(1, 0, 0, block, 2 * MIB, 0));
}

/* Memory of cuMemAlloc is no reservation of the program's. */
static void mapped(void)
{
    CUmemGenericAllocationHandle handle;
    const CUdeviceptr block = make_block(1);
    MUST(cuMemCreate(&handle, 2 * MIB, &on_device, 0));
    SEEN(TESTED(cuMemMap)(block, 2 * MIB, 0, handle, 0));
    print_device("still there", block, BLOCK_BYTES);
}

static void unmapped(void)
{
    const CUdeviceptr block = make_block(1);
    print_device("in memory", block, BLOCK_BYTES);
    SEEN(TESTED(cuMemUnmap)(block, BLOCK_BYTES));
    print_device("still there", block, BLOCK_BYTES);
}

static void access_set(void)
{
    const CUmemAccessDesc none = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE},
                                  .flags = CU_MEM_ACCESS_FLAGS_PROT_NONE};
    const CUdeviceptr block = make_block(1);
    print_device("in memory", block, BLOCK_BYTES);
    SEEN(TESTED(cuMemSetAccess)(block, BLOCK_BYTES, &none, 1));
    print_device("still there", block, BLOCK_BYTES);
}

static void access_asked(void)
{
    unsigned long long flags = 0;
    const CUmemLocation location = {.type = CU_MEM_LOCATION_TYPE_DEVICE};
    const CUdeviceptr block = make_block(1);
    print_device("in memory", block, BLOCK_BYTES);
    SEEN(TESTED(cuMemGetAccess)(&flags, &location, block));
}

/* The shim reserved the block between two guards, in whole areas (runtime/memory/addresses.c). */
static void addresses_freed(void)
{
    enum { GUARD = 2 * MIB, AREA = 32 * MIB };
    const CUdeviceptr block = make_block(1);
    const size_t reserved = (BLOCK_BYTES + 2 * GUARD + AREA - 1) / AREA * AREA;
    SEEN(TESTED(cuMemAddressFree)(block, BLOCK_BYTES));
    SEEN(TESTED(cuMemAddressFree)(block - GUARD, BLOCK_BYTES + 2 * GUARD));
    SEEN(TESTED(cuMemAddressFree)(block - GUARD, reserved));
    print_device("still there", block, BLOCK_BYTES);
}

/* A function that was asked for by name and version is ours too. */
static void asked_for_by_version(void)
{
    void *function = NULL;
    unsigned char *host = calloc(1, BLOCK_BYTES);
    const CUdeviceptr block = make_block(1);
    MUST(TESTED(cuGetProcAddress)("cuMemcpyDtoH", &function, 3020, CU_GET_PROC_ADDRESS_DEFAULT));
    SEEN(((__typeof__(&cuMemcpyDtoH_v2))function)(host, block, BLOCK_BYTES));
    print_host("read", host, BLOCK_BYTES);
}

static void asked_for_by_version_2(void)
{
    void *function = NULL;
    CUdriverProcAddressQueryResult status;
    unsigned char *host = calloc(1, BLOCK_BYTES);
    const CUdeviceptr block = make_block(1);
    MUST(TESTED(cuGetProcAddress_v2)("cuMemcpyDtoH", &function, 3020, CU_GET_PROC_ADDRESS_DEFAULT,
                                     &status));
    SEEN(((__typeof__(&cuMemcpyDtoH_v2))function)(host, block, BLOCK_BYTES));
    print_host("read", host, BLOCK_BYTES);
}

const struct scenario memory_scenarios[] = {
    {"cuMemAlloc_v2", is_deferred, NULL},
    {"cuInit", initialised, NULL},
    {"cuMemFree_v2", freed, NULL},
    TWINS_PTSZ("cuMemFreeAsync", "", freed_in_a_stream),
    {"cuMemAllocPitch_v2", room_for_pitched, NULL},
    TWINS_PTSZ("cuMemAllocAsync", "", room_in_a_stream),
    TWINS_PTSZ("cuMemAllocFromPoolAsync", "", room_in_a_pool),
    {"cuMemPoolCreate", pool_made, NULL},
    {"cuMemPoolDestroy", pool_destroyed, NULL},
    {"cuMemPoolGetAttribute", pool_asked, NULL},
    {"cuMemPoolSetAttribute", pool_set, NULL},
    {"cuMemPoolTrimTo", pool_trimmed, NULL},
    {"cuMemPoolSetAccess", pool_shared, NULL},
    {"cuMemCreate", room_for_a_handle, NULL},
    {"cuMemGetAddressRange_v2", address_range, NULL},
    {"cuMemGetInfo_v2", free_memory, NULL},
    {"cuPointerGetAttribute", attribute, NULL},
    {"cuPointerGetAttributes", attributes, NULL},
    {"cuPointerSetAttribute", set_attribute, NULL},
    {"cuIpcGetMemHandle", shared_the_old_way, NULL},
    {"cuIpcOpenMemHandle", opened_the_old_way, NULL},
    {"cuIpcOpenMemHandle_v2", opened_the_old_way_2, NULL},
    {"cuMemRetainAllocationHandle", retained, NULL},
    {"cuMemGetHandleForAddressRange", shared_by_range, NULL},
    {"cuMulticastBindAddr", bound_to_a_switch, NULL},
    {"cuMulticastBindAddr_v2", bound_to_a_switch_2, NULL},
    {"cuLogicalEndpointBindAddr", bound_to_an_endpoint, NULL},
    {"cuMemMap", mapped, NULL},
    {"cuMemUnmap", unmapped, NULL},
    {"cuMemSetAccess", access_set, NULL},
    {"cuMemGetAccess", access_asked, NULL},
    {"cuMemAddressFree", addresses_freed, NULL},
    {"cuGetProcAddress", asked_for_by_version, NULL},
    {"cuGetProcAddress_v2", asked_for_by_version_2, NULL},
    {NULL, NULL, NULL},
};
