/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/gpu/probe.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    const char *name;
    CUdevice_attribute attribute;
} device_attributes[] = {
    {"compute_major", CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR},
    {"compute_minor", CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR},
    {"unified_addressing", CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING},
    {"pageable_memory_access", CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS},
    {"pageable_memory_access_uses_host_page_tables",
     CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES},
    {"direct_managed_access_from_host", CU_DEVICE_ATTRIBUTE_DIRECT_MANAGED_MEM_ACCESS_FROM_HOST},
    {"concurrent_managed_access", CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS},
    {"async_engine_count", CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT},
    {"virtual_memory_management", CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED},
    {"handle_posix_fd", CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED},
    {"handle_fabric", CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED},
    {"gpu_direct_rdma", CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED},
    {"gpu_direct_rdma_with_vmm", CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED},
    {"dma_buf", CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED},
    {"generic_compression", CU_DEVICE_ATTRIBUTE_GENERIC_COMPRESSION_SUPPORTED},
    {"memory_pools", CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED},
    {"multicast", CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED},
    {"host_numa_id", CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID},
};

static void print_attributes(size_t unused)
{
    for (size_t i = 0; i < ARRAY_COUNT(device_attributes); i++) {
        int value = 0;
        const CUresult result =
            CU(cuDeviceGetAttribute, &value, device_attributes[i].attribute, probe_device);
        if (result == CUDA_SUCCESS)
            js_int(device_attributes[i].name, value);
        else
            js_result(device_attributes[i].name, result);
    }
}

static void print_granularity(size_t unused)
{
    CUmemAllocationProp property = probe_property();
    size_t bytes = 0;
    TRY(cuMemGetAllocationGranularity, &bytes, &property, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
    js_int("minimum", (long long)bytes);
    TRY(cuMemGetAllocationGranularity, &bytes, &property, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED);
    js_int("recommended", (long long)bytes);
    property.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    property.allocFlags.gpuDirectRDMACapable = 1;
    TRY(cuMemGetAllocationGranularity, &bytes, &property, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
    js_int("minimum_posix_fd_rdma", (long long)bytes);
}

static void print_device(size_t unused)
{
    char name[256] = "";
    int version = 0, count = 0;
    size_t total_bytes = 0;
    js_number("start_of_a_second_process_ms", (double)probe_start_ns / 1e6);
    TRY(cuDeviceGetName, name, sizeof(name), probe_device);
    js_string("name", name);
    TRY(cuDriverGetVersion, &version);
    js_int("driver_version", version);
    js_int("header_version", CUDA_VERSION);
    TRY(cuDeviceGetCount, &count);
    js_int("count", count);
    TRY(cuDeviceTotalMem_v2, &total_bytes, probe_device);
    js_int("total_bytes", (long long)total_bytes);
    js_int("free_bytes", probe_free_bytes());
}

const struct probe_row section_device[] = {
    {NULL, print_device},
    {"attributes", print_attributes},
    {"granularity", print_granularity},
    {NULL},
};

/* The memory that one size of cuMemAlloc takes: the first block, then a row of them. */
static void account_size(size_t bytes)
{
    enum { ROW = 32 };
    CUdeviceptr blocks[ROW], base = 0;
    size_t range_bytes = 0;
    const int64_t before = probe_free_bytes();
    blocks[0] = probe_alloc(bytes);
    const int64_t after_first = probe_free_bytes();
    for (int i = 1; i < ROW; i++)
        blocks[i] = probe_alloc(bytes);
    const int64_t after_row = probe_free_bytes();
    js_int("bytes", (long long)bytes);
    js_int("physical_first", before - after_first);
    js_int("physical_row_of_32", before - after_row);
    js_int("alignment", (long long)(blocks[0] & -blocks[0]));
    js_int("distance_to_next", (long long)(blocks[1] - blocks[0]));
    js_int("distance_last_two", (long long)(blocks[ROW - 1] - blocks[ROW - 2]));
    TRY(cuMemGetAddressRange_v2, &base, &range_bytes, blocks[1] + (bytes - 1));
    js_int("range_base_minus_address", (long long)(base - blocks[1]));
    js_int("range_bytes", (long long)range_bytes);
    for (int i = 0; i < ROW; i++)
        TRY(cuMemFree_v2, blocks[i]);
    js_int("kept_after_free", before - probe_free_bytes());
}

/* Does a handle cost its size, or page tables and bookkeeping too? */
static void account_vmm(size_t unused)
{
    enum { ROW = 64 };
    CUmemGenericAllocationHandle handles[ROW];
    const int64_t before = probe_free_bytes();
    const CUdeviceptr address = probe_reserve(GIB);
    js_int("reserve_of_1_gib", before - probe_free_bytes());
    for (int i = 0; i < ROW; i++)
        handles[i] = probe_create(GRANULE);
    js_int("create_64_granules", before - probe_free_bytes());
    for (size_t i = 0; i < ROW; i++)
        probe_map(address + i * GRANULE, GRANULE, handles[i]);
    probe_give_access(address, ROW * GRANULE);
    js_int("map_64_granules", before - probe_free_bytes());
    TRY(cuMemUnmap, address, ROW * GRANULE);
    js_int("after_unmap", before - probe_free_bytes());
    for (int i = 0; i < ROW; i++)
        TRY(cuMemRelease, handles[i]);
    TRY(cuMemAddressFree, address, GIB);
    js_int("kept_after_release", before - probe_free_bytes());
}

static void account_nothing(size_t unused)
{
    CUdeviceptr none = 0;
    js_result("alloc_of_zero_bytes", CU(cuMemAlloc_v2, &none, 0));
    js_result("free_of_null", CU(cuMemFree_v2, 0));
}

const struct probe_row section_accounting[] = {
    {"1_b", account_size, 1},
    {"512_kib", account_size, 512 * KIB},
    {"1_mib", account_size, MIB},
    {"1536_kib", account_size, 3 * MIB / 2},
    {"2_mib_and_1_b", account_size, 2 * MIB + 1},
    {"5632_kib", account_size, 11 * MIB / 2},
    {"20_mib", account_size, 20 * MIB},
    {"64_mib", account_size, 64 * MIB},
    {"vmm", account_vmm},
    {NULL, account_nothing},
    {NULL},
};

static void reserve_size(size_t bytes)
{
    CUdeviceptr address = 0;
    const int64_t free_before = probe_free_bytes();
    int64_t start_ns = probe_clock_ns();
    const CUresult result = CU(cuMemAddressReserve, &address, bytes, 0, 0, 0);
    const int64_t reserve_ns = probe_clock_ns() - start_ns;
    js_result("result", result);
    js_us("reserve_us", reserve_ns);
    if (result != CUDA_SUCCESS)
        return;
    js_address("address", address);
    js_int("alignment", (long long)(address & -address));
    js_int("physical", free_before - probe_free_bytes());
    start_ns = probe_clock_ns();
    const CUresult freed = CU(cuMemAddressFree, address, bytes);
    const int64_t free_ns = probe_clock_ns() - start_ns;
    js_result("free_result", freed);
    js_us("free_us", free_ns);
}

/* Hints: may the runtime choose an address, and is the alignment argument honoured? */
static void reserve_hints(size_t unused)
{
    const CUdeviceptr first = probe_reserve(64 * GIB);
    TRY(cuMemAddressFree, first, 64 * GIB);
    CUdeviceptr again = 0, busy = 0, aligned = 0;
    TRY(cuMemAddressReserve, &again, 64 * GIB, 0, first, 0);
    js_bool("free_hint_honoured", again == first);
    TRY(cuMemAddressReserve, &busy, 64 * MIB, 0, again + GIB, 0);
    js_bool("taken_hint_moved_elsewhere", busy != again + GIB);
    const CUresult result = CU(cuMemAddressReserve, &aligned, 4 * MIB, GIB, 0, 0);
    js_result("alignment_of_1_gib", result);
    if (result == CUDA_SUCCESS)
        js_bool("alignment_honoured", aligned % GIB == 0);
    js_result("size_not_of_granules",
              CU(cuMemAddressReserve, &aligned, GRANULE + 4 * KIB, 0, 0, 0));
    js_result("free_of_a_part", CU(cuMemAddressFree, again, GIB));
}

const struct probe_row section_reserve[] = {
    {"1_tib", reserve_size, TIB},
    {"2_tib", reserve_size, 2 * TIB},
    {"4_tib", reserve_size, 4 * TIB},
    {"8_tib", reserve_size, 8 * TIB},
    {"16_tib", reserve_size, 16 * TIB},
    {"32_tib", reserve_size, 32 * TIB},
    {"64_tib", reserve_size, 64 * TIB},
    {"hints", reserve_hints},
    {NULL},
};

static size_t fresh_bytes(void)
{
    return probe_quick ? 8 * MIB : 256 * MIB;
}

static long long count_nonzero(CUdeviceptr address, size_t bytes)
{
    uint64_t *const copy = probe_malloc(bytes);
    TRY(cuMemcpyDtoH_v2, copy, address, bytes);
    long long count = 0;
    for (size_t i = 0; i < bytes / 8; i++)
        count += copy[i] == 0 ? 0 : 8;
    free(copy);
    return count;
}

static void fill(CUdeviceptr address, size_t bytes)
{
    TRY(cuMemsetD8_v2, address, 0xa5, bytes);
    TRY(cuCtxSynchronize);
}

/* Ends without freeing: the next process may be given the same pages. */
static void dirty_and_exit(size_t unused)
{
    fill(probe_mapped(fresh_bytes()), fresh_bytes());
    fill(probe_alloc(fresh_bytes()), fresh_bytes());
}

static void look_at_fresh(size_t unused)
{
    const size_t bytes = fresh_bytes();
    const CUdeviceptr first = probe_mapped(bytes);
    js_int("bytes", (long long)bytes);
    js_int("create_nonzero", count_nonzero(first, bytes));
    fill(first, bytes);
    TRY(cuMemUnmap, first, bytes);
    const CUdeviceptr second = probe_mapped(bytes);
    js_int("create_again_nonzero", count_nonzero(second, bytes));
    const CUdeviceptr big = probe_alloc(bytes);
    js_int("alloc_nonzero", count_nonzero(big, bytes));
    fill(big, bytes);
    TRY(cuMemFree_v2, big);
    js_int("alloc_again_nonzero", count_nonzero(probe_alloc(bytes), bytes));
    const CUdeviceptr small = probe_alloc(256 * KIB);
    js_int("small_alloc_nonzero", count_nonzero(small, 256 * KIB));
    fill(small, 256 * KIB);
    TRY(cuMemFree_v2, small);
    js_int("small_alloc_again_nonzero", count_nonzero(probe_alloc(256 * KIB), 256 * KIB));
}

const struct probe_row section_fresh_memory[] = {
    {"first_process", dirty_and_exit, 0, ALONE},
    {"second_process", look_at_fresh, 0, ALONE},
    {NULL},
};
