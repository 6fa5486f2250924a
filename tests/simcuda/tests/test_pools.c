/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that is allocated and freed in the order of a stream, and the pools that it is from. */
#include "tests/simcuda/tests/program.h"

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
