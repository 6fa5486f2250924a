/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that is allocated and freed in the order of a stream, and the pools that it is from. */
#include "tools/simcuda/tests/program.h"

#include <stdint.h>
#include <unistd.h>

MS_TEST(stream_ordered_memory)
{
    start();
    CUstream stream;
    CUdeviceptr address;
    unsigned char seen[100];
    CUmemoryPool pool;
    const size_t before = free_bytes();
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    OK(cuMemAllocAsync(&address, 4 * MIB, stream));
    OK(cuPointerGetAttribute(&pool, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, address));
    CHECK(pool != NULL);
    OK(cuMemsetD8Async(address, 3, 4 * MIB, stream));
    OK(cuMemcpyDtoHAsync(seen, address, sizeof(seen), stream));
    CHECK_EQ(seen[5], 3);
    struct gate gate;
    close_gate(&gate, stream);
    OK(cuMemFreeAsync(address, stream));
    FAILS(cuMemFreeAsync(address, stream), CUDA_ERROR_INVALID_VALUE);
    FAILS(cuMemsetD8Async(address, 3, 1, stream), CUDA_ERROR_INVALID_VALUE);
    CHECK_EQ(before - free_bytes(), 4 * MIB);
    open_gate(&gate);
    OK(cuStreamSynchronize(stream));
    CHECK_EQ(free_bytes(), before);
    OK(cuMemAllocAsync(&address, 100, stream));
    OK(cuMemFree(address));
    CHECK_EQ(free_bytes(), before);
}

MS_TEST(pools_keep_what_their_threshold_allows)
{
    start();
    const CUmemPoolProps props = {
        .allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0},
    };
    CUmemoryPool pool;
    CUdeviceptr first;
    CUdeviceptr second;
    uint64_t value = UINT64_MAX;
    const size_t before = free_bytes();
    OK(cuMemPoolCreate(&pool, &props));
    OK(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &value));
    OK(cuMemAllocFromPoolAsync(&first, 4 * MIB, pool, 0));
    OK(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &value));
    CHECK_EQ(value, 4 * MIB);
    OK(cuMemFreeAsync(first, 0));
    OK(cuCtxSynchronize());
    OK(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &value));
    CHECK_EQ(value, 0);
    OK(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &value));
    CHECK_EQ(value, 4 * MIB);
    OK(cuMemAllocFromPoolAsync(&second, 4 * MIB, pool, 0));
    OK(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH, &value));
    CHECK_EQ(value, 4 * MIB); /* of what was kept */
    OK(cuMemFreeAsync(second, 0));
    OK(cuCtxSynchronize());
    OK(cuMemPoolTrimTo(pool, 0));
    CHECK_EQ(free_bytes(), before);
    OK(cuMemPoolDestroy(pool));
    FAILS(cuMemPoolDestroy(pool), CUDA_ERROR_INVALID_VALUE);
    OK(cuDeviceGetDefaultMemPool(&pool, 0));
    FAILS(cuMemPoolDestroy(pool), CUDA_ERROR_INVALID_VALUE);
}

static CUmemoryPool make_pool(CUmemLocation location, CUmemAllocationType type)
{
    CUmemoryPool pool;
    const CUmemPoolProps props = {.allocType = type, .location = location};
    OK(cuMemPoolCreate(&pool, &props));
    return pool;
}

MS_TEST(pools_of_host_and_managed_memory)
{
    CUmemLocation host = {.type = CU_MEM_LOCATION_TYPE_HOST};
    CUmemLocation device = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0};
    CUmemLocation nowhere = {.type = CU_MEM_LOCATION_TYPE_NONE};
    const CUmemAllocationType pinned = CU_MEM_ALLOCATION_TYPE_PINNED;
    const CUmemAllocationType managed = CU_MEM_ALLOCATION_TYPE_MANAGED;
    CUmemoryPool first, second;
    CUdeviceptr address;
    int has_host_pools;
    start();
    OK(cuDeviceGetAttribute(&has_host_pools, CU_DEVICE_ATTRIBUTE_HOST_MEMORY_POOLS_SUPPORTED, 0));
    CHECK_EQ(has_host_pools, 1);
    OK(cuMemGetDefaultMemPool(&first, &host, pinned));
    OK(cuMemGetMemPool(&second, &host, pinned));
    CHECK(first == second);
    OK(cuMemGetMemPool(&second, &host, managed));
    CHECK(first != second);
    OK(cuMemGetMemPool(&second, &nowhere, managed));
    FAILS(cuMemGetMemPool(&second, &nowhere, pinned), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemGetMemPool(&second, &device, pinned));
    OK(cuDeviceGetMemPool(&first, 0));
    CHECK(first == second);
    const CUmemoryPool own = make_pool(host, pinned);
    OK(cuMemSetMemPool(&host, pinned, own));
    OK(cuMemGetMemPool(&second, &host, pinned));
    CHECK(second == own);
    FAILS(cuMemSetMemPool(&host, managed, own), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemAllocFromPoolAsync(&address, 4 * MIB, own, NULL));
    memset((void *)address, 7, 4 * MIB); /* the host's too */
    OK(cuMemFreeAsync(address, NULL));
    OK(cuCtxSynchronize());
    OK(cuMemPoolDestroy(own));
    OK(cuMemGetMemPool(&second, &host, pinned));
    OK(cuMemGetDefaultMemPool(&first, &host, pinned));
    CHECK(first == second);
}

static CUmemoryPool make_shareable(void)
{
    CUmemoryPool pool;
    const CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                                  .handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                  .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}};
    OK(cuMemPoolCreate(&pool, &props));
    return pool;
}

/* One process exports and imports, as two would. */
MS_TEST(pools_are_shared_by_descriptors)
{
    enum { BYTES = 3000 };
    const CUmemAllocationHandleType by_file = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    int file = -1;
    CUmemoryPool imported;
    CUmemPoolPtrExportData data;
    CUdeviceptr first, address, there;
    unsigned char seen[BYTES];
    start();
    const CUmemoryPool pool = make_shareable();
    OK(cuMemPoolExportToShareableHandle(&file, pool, by_file, 0));
    OK(cuMemPoolImportFromShareableHandle(&imported, (void *)(intptr_t)file, by_file, 0));
    close(file);
    OK(cuMemAllocFromPoolAsync(&first, BYTES, pool, NULL));
    OK(cuMemAllocFromPoolAsync(&address, BYTES, pool, NULL));
    OK(cuMemPoolExportPointer(&data, address));
    OK(cuMemPoolImportPointer(&there, imported, &data));
    CHECK(there != address);
    OK(cuMemsetD8(address, 0x5a, BYTES));
    OK(cuMemcpyDtoH(seen, there, BYTES));
    for (int i = 0; i < BYTES; i++)
        CHECK_EQ(seen[i], 0x5a);
    FAILS(cuMemAllocFromPoolAsync(&first, BYTES, imported, NULL), CUDA_ERROR_NOT_SUPPORTED);
    FAILS(cuMemPoolExportPointer(&data, there), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemFreeAsync(there, NULL));
    OK(cuMemFreeAsync(address, NULL));
    OK(cuCtxSynchronize());
    OK(cuMemPoolDestroy(imported));
    OK(cuMemPoolDestroy(pool));
}

MS_TEST(pools_without_descriptors_are_not_shared)
{
    int file;
    const CUmemLocation device = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0};
    CUmemPoolPtrExportData data;
    CUdeviceptr address;
    start();
    const CUmemoryPool pool = make_pool(device, CU_MEM_ALLOCATION_TYPE_PINNED);
    FAILS(cuMemPoolExportToShareableHandle(&file, pool, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                           0),
          CUDA_ERROR_INVALID_VALUE);
    OK(cuMemAllocFromPoolAsync(&address, 4 * MIB, pool, NULL));
    FAILS(cuMemPoolExportPointer(&data, address), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemFreeAsync(address, NULL));
}
