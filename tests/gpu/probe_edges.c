/* SPDX-License-Identifier: Apache-2.0 */
/* The corners of calls that the shim takes over. None of these is expected to be sticky. */
#include "tests/gpu/probe.h"

#include <stdlib.h>
#include <unistd.h>

static CUresult dma_buf(CUdeviceptr address, size_t bytes)
{
    int descriptor = -1;
    const CUresult result = CU(cuMemGetHandleForAddressRange, &descriptor, address, bytes,
                               CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0);
    if (result == CUDA_SUCCESS)
        close(descriptor);
    return result;
}

static CUmemGenericAllocationHandle create_exportable(size_t bytes)
{
    CUmemAllocationProp property = probe_property();
    CUmemGenericAllocationHandle handle = 0;
    property.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    property.allocFlags.gpuDirectRDMACapable = 1;
    TRY(cuMemCreate, &handle, bytes, &property, 0);
    return handle;
}

static void dma_buf_ranges(size_t unused)
{
    const CUdeviceptr address = probe_reserve(4 * GRANULE);
    for (size_t i = 0; i < 2; i++)
        probe_map(address + i * GRANULE, GRANULE, create_exportable(GRANULE));
    probe_give_access(address, 2 * GRANULE);
    js_result("one_handle", dma_buf(address, GRANULE));
    js_result("part_of_a_handle", dma_buf(address + 4096, 8192));
    js_result("two_handles", dma_buf(address, 2 * GRANULE));
    js_result("across_two_handles", dma_buf(address + GRANULE / 2, GRANULE));
    js_result("mapped_and_hole", dma_buf(address + GRANULE, 2 * GRANULE));
    js_result("plain_vmm_without_rdma", dma_buf(probe_mapped(GRANULE), GRANULE));
    js_result("cuMemAlloc", dma_buf(probe_alloc(4 * MIB), 4 * MIB));
}

static void handle_exports(size_t unused)
{
    int descriptor = -1;
    js_result("not_requested", CU(cuMemExportToShareableHandle, &descriptor, probe_create(GRANULE),
                                  CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    js_result("requested", CU(cuMemExportToShareableHandle, &descriptor, create_exportable(GRANULE),
                              CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
}

/* Sizes and neighbours in map, unmap and set access. */
static void map_corners(size_t unused)
{
    const CUdeviceptr address = probe_reserve(16 * GRANULE);
    const CUmemGenericAllocationHandle handle = probe_create(2 * GRANULE);
    probe_map(address, 2 * GRANULE, handle);
    js_result("map_over_a_mapping", CU(cuMemMap, address + GRANULE, 2 * GRANULE, 0, handle, 0));
    js_result("map_outside_a_reservation",
              CU(cuMemMap, address + 64 * TIB, 2 * GRANULE, 0, handle, 0));
    js_result("set_access_on_a_part", probe_set_access(address, GRANULE));
    js_result("set_access_not_of_granules", probe_set_access(address, GRANULE / 2));
    js_result("unmap_a_part", CU(cuMemUnmap, address, GRANULE));
    js_result("unmap_with_a_hole_behind", CU(cuMemUnmap, address, 4 * GRANULE));
    TRY(cuMemMap, address, 2 * GRANULE, 0, handle, 0);
    js_result("address_free_while_mapped", CU(cuMemAddressFree, address, 16 * GRANULE));
    js_result("release_while_mapped", CU(cuMemRelease, handle));
    js_result("use_after_release", probe_set_access(address, 2 * GRANULE));
    js_result("memset_after_release", CU(cuMemsetD8_v2, address, 1, 2 * GRANULE));
    TRY(cuCtxSynchronize);
    js_result("unmap_at_last", CU(cuMemUnmap, address, 2 * GRANULE));
    const CUmemAllocationProp property = probe_property();
    js_result("create_not_of_granules",
              CU(cuMemCreate, &(CUmemGenericAllocationHandle){0}, MIB, &property, 0));
}

/* Memory of one reservation that two reservations' neighbourhood makes contiguous. */
static void neighbours(size_t unused)
{
    const CUdeviceptr whole = probe_reserve(8 * GRANULE);
    TRY(cuMemAddressFree, whole, 8 * GRANULE);
    CUdeviceptr left = 0, right = 0;
    TRY(cuMemAddressReserve, &left, 4 * GRANULE, 0, whole, 0);
    TRY(cuMemAddressReserve, &right, 4 * GRANULE, 0, whole + 4 * GRANULE, 0);
    js_bool("side_by_side", right == left + 4 * GRANULE);
    if (right != left + 4 * GRANULE)
        return;
    probe_map(left + 2 * GRANULE, 2 * GRANULE, probe_create(2 * GRANULE));
    probe_map(right, 2 * GRANULE, probe_create(2 * GRANULE));
    js_result("set_access_across", probe_set_access(left + 2 * GRANULE, 4 * GRANULE));
    js_result("memset_across", CU(cuMemsetD8_v2, left + 2 * GRANULE, 1, 4 * GRANULE));
    TRY(cuCtxSynchronize);
    js_result("map_across", CU(cuMemMap, left, 2 * GRANULE, 0, probe_create(2 * GRANULE), 0));
    js_result("unmap_across", CU(cuMemUnmap, left, 6 * GRANULE));
}

/* Is an overlapping device copy like memmove, like memcpy forwards, or neither? */
static void overlap(size_t from, size_t to)
{
    enum { WORDS = 4 << 20, BYTES = 12 << 20 };
    const CUdeviceptr device = probe_alloc(WORDS * sizeof(uint32_t));
    uint32_t *const words = probe_malloc(WORDS * sizeof(uint32_t));
    for (size_t i = 0; i < WORDS; i++)
        words[i] = (uint32_t)i;
    TRY(cuMemcpyHtoD_v2, device, words, WORDS * sizeof(uint32_t));
    js_result("result", CU(cuMemcpyDtoD_v2, device + to, device + from, BYTES));
    js_result("synchronize", CU(cuCtxSynchronize));
    TRY(cuMemcpyDtoH_v2, words, device, WORDS * sizeof(uint32_t));
    size_t unlike_memmove = 0;
    for (size_t i = 0; i < BYTES / 4; i++)
        unlike_memmove += words[to / 4 + i] != (uint32_t)(from / 4 + i);
    js_int("words_unlike_memmove", (long long)unlike_memmove);
    js_int("words", (long long)(BYTES / 4));
    free(words);
    TRY(cuMemFree_v2, device);
}

static void overlap_up(size_t distance)
{
    overlap(0, distance);
}

static void overlap_down(size_t distance)
{
    overlap(distance, 0);
}

static void free_corners(size_t unused)
{
    const CUdeviceptr block = probe_alloc(4 * MIB);
    js_result("free_inside", CU(cuMemFree_v2, block + 512));
    js_result("free", CU(cuMemFree_v2, block));
    js_result("free_twice", CU(cuMemFree_v2, block));
    js_result("memset_of_freed_0_bytes", CU(cuMemsetD8_v2, block, 0, 0));
    CUdeviceptr pool = 0;
    TRY(cuMemAllocAsync, &pool, 4 * MIB, NULL);
    js_result("cuMemFree_of_alloc_async", CU(cuMemFree_v2, pool));
}

const struct probe_row section_edges[] = {
    {"dma_buf", dma_buf_ranges},
    {"handle_exports", handle_exports},
    {"map_corners", map_corners},
    {"neighbour_reservations", neighbours},
    {"overlap_up_4_kib", overlap_up, 4096},
    {"overlap_up_4_b", overlap_up, 4},
    {"overlap_down_4_kib", overlap_down, 4096},
    {"overlap_same", overlap_up, 0},
    {"free_corners", free_corners},
    {NULL, probe_wait},
    {NULL},
};
