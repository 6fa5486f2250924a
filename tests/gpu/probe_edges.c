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

static void dma_buf_ranges(void *unused)
{
    (void)unused;
    const CUdeviceptr address = probe_reserve(4 * GRANULE);
    for (size_t i = 0; i < 2; i++)
        probe_map(address + i * GRANULE, GRANULE, create_exportable(GRANULE));
    probe_require("cuMemSetAccess",
                  probe_set_access(address, 2 * GRANULE, CU_MEM_ACCESS_FLAGS_PROT_READWRITE));
    js_result("one_handle", dma_buf(address, GRANULE));
    js_result("part_of_a_handle", dma_buf(address + 4096, 8192));
    js_result("two_handles", dma_buf(address, 2 * GRANULE));
    js_result("across_two_handles", dma_buf(address + GRANULE / 2, GRANULE));
    js_result("mapped_and_hole", dma_buf(address + GRANULE, 2 * GRANULE));
    js_result("plain_vmm_without_rdma", dma_buf(probe_mapped(GRANULE), GRANULE));
    js_result("cuMemAlloc", dma_buf(probe_alloc(4 * MIB), 4 * MIB));
}

static void handle_exports(void *unused)
{
    (void)unused;
    int descriptor = -1;
    js_result("not_requested", CU(cuMemExportToShareableHandle, &descriptor, probe_create(GRANULE),
                                  CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    js_result("requested", CU(cuMemExportToShareableHandle, &descriptor, create_exportable(GRANULE),
                              CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
}

/* Sizes and neighbours in map, unmap and set access. */
static void map_corners(void *unused)
{
    (void)unused;
    const CUdeviceptr address = probe_reserve(16 * GRANULE);
    const CUmemGenericAllocationHandle handle = probe_create(2 * GRANULE);
    probe_map(address, 2 * GRANULE, handle);
    js_result("map_over_a_mapping", CU(cuMemMap, address + GRANULE, 2 * GRANULE, 0, handle, 0));
    js_result("map_outside_a_reservation",
              CU(cuMemMap, address + 64 * TIB, 2 * GRANULE, 0, handle, 0));
    js_result("set_access_on_a_part",
              probe_set_access(address, GRANULE, CU_MEM_ACCESS_FLAGS_PROT_READWRITE));
    js_result("set_access_not_of_granules",
              probe_set_access(address, GRANULE / 2, CU_MEM_ACCESS_FLAGS_PROT_READWRITE));
    js_result("unmap_a_part", CU(cuMemUnmap, address, GRANULE));
    js_result("unmap_with_a_hole_behind", CU(cuMemUnmap, address, 4 * GRANULE));
    TRY(cuMemMap, address, 2 * GRANULE, 0, handle, 0);
    js_result("address_free_while_mapped", CU(cuMemAddressFree, address, 16 * GRANULE));
    js_result("release_while_mapped", CU(cuMemRelease, handle));
    js_result("use_after_release",
              probe_set_access(address, 2 * GRANULE, CU_MEM_ACCESS_FLAGS_PROT_READWRITE));
    js_result("memset_after_release", CU(cuMemsetD8_v2, address, 1, 2 * GRANULE));
    TRY(cuCtxSynchronize);
    js_result("unmap_at_last", CU(cuMemUnmap, address, 2 * GRANULE));
    js_result("create_not_of_granules",
              CU(cuMemCreate, &(CUmemGenericAllocationHandle){0}, MIB,
                 &(CUmemAllocationProp){.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE,
                                                     .id = probe_device}},
                 0));
}

/* Memory of one reservation that two reservations' neighbourhood makes contiguous. */
static void neighbours(void *unused)
{
    (void)unused;
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
    js_result("set_access_across", probe_set_access(left + 2 * GRANULE, 4 * GRANULE,
                                                    CU_MEM_ACCESS_FLAGS_PROT_READWRITE));
    js_result("memset_across", CU(cuMemsetD8_v2, left + 2 * GRANULE, 1, 4 * GRANULE));
    TRY(cuCtxSynchronize);
    js_result("map_across", CU(cuMemMap, left, 2 * GRANULE, 0, probe_create(2 * GRANULE), 0));
    js_result("unmap_across", CU(cuMemUnmap, left, 6 * GRANULE));
}

struct shift {
    size_t from, to, bytes;
};

/* Is an overlapping device copy like memmove, like memcpy forwards, or neither? */
static void overlap(void *shift_)
{
    const struct shift *const shift = shift_;
    enum { WORDS = 4 << 20 };
    const CUdeviceptr device = probe_alloc(WORDS * sizeof(uint32_t));
    uint32_t *const words = malloc(WORDS * sizeof(uint32_t));
    if (words == NULL)
        probe_fail("malloc");
    for (size_t i = 0; i < WORDS; i++)
        words[i] = (uint32_t)i;
    TRY(cuMemcpyHtoD_v2, device, words, WORDS * sizeof(uint32_t));
    js_result("result",
              CU(cuMemcpyDtoD_v2, device + shift->to, device + shift->from, shift->bytes));
    js_result("synchronize", CU(cuCtxSynchronize));
    TRY(cuMemcpyDtoH_v2, words, device, WORDS * sizeof(uint32_t));
    size_t unlike_memmove = 0;
    for (size_t i = 0; i < shift->bytes / 4; i++)
        unlike_memmove += words[shift->to / 4 + i] != (uint32_t)(shift->from / 4 + i);
    js_int("words_unlike_memmove", (long long)unlike_memmove);
    js_int("words", (long long)(shift->bytes / 4));
    free(words);
    TRY(cuMemFree_v2, device);
}

static void free_corners(void *unused)
{
    (void)unused;
    const CUdeviceptr block = probe_alloc(4 * MIB);
    js_result("free_inside", CU(cuMemFree_v2, block + 512));
    js_result("free", CU(cuMemFree_v2, block));
    js_result("free_twice", CU(cuMemFree_v2, block));
    js_result("memset_of_freed_0_bytes", CU(cuMemsetD8_v2, block, 0, 0));
    CUdeviceptr pool = 0;
    TRY(cuMemAllocAsync, &pool, 4 * MIB, NULL);
    js_result("cuMemFree_of_alloc_async", CU(cuMemFree_v2, pool));
}

void section_edges(void *unused)
{
    (void)unused;
    static struct shift up = {0, 4096, 12 << 20}, down = {4096, 0, 12 << 20};
    static struct shift up_by_word = {0, 4, 12 << 20}, same = {0, 0, 12 << 20};
    probe_driver_start();
    probe_step("dma_buf", dma_buf_ranges, NULL);
    probe_step("handle_exports", handle_exports, NULL);
    probe_step("map_corners", map_corners, NULL);
    probe_step("neighbour_reservations", neighbours, NULL);
    probe_step("overlap_up_4_kib", overlap, &up);
    probe_step("overlap_up_4_b", overlap, &up_by_word);
    probe_step("overlap_down_4_kib", overlap, &down);
    probe_step("overlap_same", overlap, &same);
    probe_step("free_corners", free_corners, NULL);
    js_result("synchronize_at_the_end", CU(cuCtxSynchronize));
}
