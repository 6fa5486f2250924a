/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls that touch memory which is not there. Each is made in a process of its own, as an illegal
 * address can end all use of CUDA in it.
 */
#include "tests/gpu/probe.h"

#include <string.h>

/* What the calls are made on. */
static struct {
    CUdeviceptr reserved;      /* 16 granules, nothing mapped */
    CUdeviceptr mixed;         /* 2 granules, the first one mapped */
    CUdeviceptr no_access;     /* 1 granule, mapped, no access set */
    CUdeviceptr read_only;     /* 1 granule, mapped, PROT_READ */
    CUdeviceptr device;        /* 8 MiB of cuMemAlloc */
    CUdeviceptr first, second; /* two blocks of 1 MiB of cuMemAlloc */
    void *host;                /* 8 MiB, pageable */
    CUstream stream;
} on;

static void prepare(void)
{
    probe_driver_start();
    on.reserved = probe_reserve(16 * GRANULE);
    on.mixed = probe_reserve(2 * GRANULE);
    probe_map(on.mixed, GRANULE, probe_create(GRANULE));
    probe_give_access(on.mixed, GRANULE);
    on.no_access = probe_reserve(GRANULE);
    probe_map(on.no_access, GRANULE, probe_create(GRANULE));
    on.read_only = probe_reserve(GRANULE);
    probe_map(on.read_only, GRANULE, probe_create(GRANULE));
    probe_require("cuMemSetAccess",
                  probe_set_access_to(on.read_only, GRANULE, CU_MEM_ACCESS_FLAGS_PROT_READ));
    on.device = probe_alloc(8 * MIB);
    on.first = probe_alloc(MIB);
    on.second = probe_alloc(MIB);
    on.host = memset(probe_malloc(8 * MIB), 0, 8 * MIB);
    on.stream = probe_stream(CU_STREAM_NON_BLOCKING);
}

/* One call on `address` with `bytes`; some use only the address. */
typedef CUresult probe_call(CUdeviceptr address, size_t bytes);
#define CALL_RESULT(call, ...)                              \
    static CUresult call(CUdeviceptr address, size_t bytes) \
    {                                                       \
        return __VA_ARGS__;                                 \
    }
#define CALL(call, name, ...) CALL_RESULT(call, CU(name, __VA_ARGS__))

CALL(htod, cuMemcpyHtoD_v2, address, on.host, bytes)
CALL(htod_async, cuMemcpyHtoDAsync_v2, address, on.host, bytes, on.stream)
CALL(dtoh, cuMemcpyDtoH_v2, on.host, address, bytes)
CALL(dtoh_async, cuMemcpyDtoHAsync_v2, on.host, address, bytes, on.stream)
CALL(dtod_to, cuMemcpyDtoD_v2, address, on.device, bytes)
CALL(dtod_from, cuMemcpyDtoD_v2, on.device, address, bytes)
CALL(dtod_async_to, cuMemcpyDtoDAsync_v2, address, on.device, bytes, on.stream)
CALL(dtod_async_from, cuMemcpyDtoDAsync_v2, on.device, address, bytes, on.stream)
CALL(unified_to, cuMemcpy, address, (CUdeviceptr)(uintptr_t)on.host, bytes)
CALL(unified_from, cuMemcpy, (CUdeviceptr)(uintptr_t)on.host, address, bytes)
CALL(unified_async_to, cuMemcpyAsync, address, on.device, bytes, on.stream)
CALL(memset_8, cuMemsetD8_v2, address, 1, bytes)
CALL(memset_8_async, cuMemsetD8Async, address, 1, bytes, on.stream)
CALL(memset_2d, cuMemsetD2D8_v2, address, bytes / 4, 1, bytes / 4, 4)
CALL_RESULT(kernel_store, probe_kernel_store(address, 1, NULL))
CALL(ipc_handle, cuIpcGetMemHandle, &(CUipcMemHandle){{0}}, address)
CALL(dma_buf, cuMemGetHandleForAddressRange, &(int){-1}, address, bytes,
     CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0)
CALL(free_it, cuMemFree_v2, address)
CALL(free_async, cuMemFreeAsync, address, on.stream)
CALL(unmap, cuMemUnmap, address, bytes)
CALL_RESULT(set_access, probe_set_access(address, bytes))
CALL(advise, cuMemAdvise_v2, address, bytes, CU_MEM_ADVISE_SET_READ_MOSTLY, probe_location())
CALL(prefetch, cuMemPrefetchAsync_v2, address, bytes, probe_location(), 0, on.stream)

static CUresult copy_2d_to(CUdeviceptr address, size_t bytes)
{
    const CUDA_MEMCPY2D copy = {
        .srcMemoryType = CU_MEMORYTYPE_HOST,
        .srcHost = on.host,
        .srcPitch = bytes / 4,
        .dstMemoryType = CU_MEMORYTYPE_DEVICE,
        .dstDevice = address,
        .dstPitch = bytes / 4,
        .WidthInBytes = bytes / 4,
        .Height = 4,
    };
    return CU(cuMemcpy2D_v2, &copy);
}

struct row {
    const char *key;
    probe_call *call;
    const CUdeviceptr *target; /* an address of the scene */
    size_t offset, bytes;
};

/* The call, then what is left of the process: is the error sticky? */
static void try_row(size_t row_)
{
    const struct row *const row = (const struct row *)row_;
    prepare();
    js_result("result", row->call(*row->target + row->offset, row->bytes));
    js_result("synchronize", CU(cuCtxSynchronize));
    js_result("synchronize_again", CU(cuCtxSynchronize));
    CUdeviceptr later = 0;
    const CUresult alloc = CU(cuMemAlloc_v2, &later, MIB);
    js_result("later_alloc", alloc);
    const CUresult copy = CU(cuMemcpyHtoD_v2, on.device, on.host, 4);
    js_result("later_copy", copy);
    js_bool("sticky", alloc != CUDA_SUCCESS || copy != CUDA_SUCCESS);
}

static void try_rows(const struct row *rows, size_t count)
{
    for (size_t i = 0; i < count; i++)
        probe_child(rows[i].key, 15, try_row, (size_t)&rows[i]);
}

void section_unmapped(size_t unused)
{
    static const struct row rows[] = {
        {"cuMemcpyHtoD", htod, &on.reserved, 0, 4096},
        {"cuMemcpyHtoD_8_mib", htod, &on.reserved, 0, 8 * MIB},
        {"cuMemcpyHtoDAsync", htod_async, &on.reserved, 0, 4096},
        {"cuMemcpyDtoH", dtoh, &on.reserved, 0, 4096},
        {"cuMemcpyDtoHAsync", dtoh_async, &on.reserved, 0, 4096},
        {"cuMemcpyDtoD_to", dtod_to, &on.reserved, 0, 4096},
        {"cuMemcpyDtoD_from", dtod_from, &on.reserved, 0, 4096},
        {"cuMemcpyDtoDAsync_to", dtod_async_to, &on.reserved, 0, 4096},
        {"cuMemcpyDtoDAsync_from", dtod_async_from, &on.reserved, 0, 4096},
        {"cuMemcpy_to", unified_to, &on.reserved, 0, 4096},
        {"cuMemcpy_from", unified_from, &on.reserved, 0, 4096},
        {"cuMemcpyAsync_to", unified_async_to, &on.reserved, 0, 4096},
        {"cuMemcpy2D_to", copy_2d_to, &on.reserved, 0, 4096},
        {"cuMemsetD8", memset_8, &on.reserved, 0, 4096},
        {"cuMemsetD8Async", memset_8_async, &on.reserved, 0, 4096},
        {"cuMemsetD2D8", memset_2d, &on.reserved, 0, 4096},
        {"kernel_store", kernel_store, &on.reserved, 0, 4},
        {"cuMemcpyHtoD_of_0_bytes", htod, &on.reserved, 0, 0},
        {"cuMemsetD8_of_0_bytes", memset_8, &on.reserved, 0, 0},
        {"cuIpcGetMemHandle", ipc_handle, &on.reserved, 0, 0},
        {"cuMemGetHandleForAddressRange", dma_buf, &on.reserved, 0, GRANULE},
        {"cuMemFree", free_it, &on.reserved, 0, 0},
        {"cuMemFreeAsync", free_async, &on.reserved, 0, 0},
        {"cuMemUnmap", unmap, &on.reserved, 0, GRANULE},
        {"cuMemSetAccess", set_access, &on.reserved, 0, GRANULE},
        {"cuMemAdvise", advise, &on.reserved, 0, GRANULE},
        {"cuMemPrefetchAsync", prefetch, &on.reserved, 0, GRANULE},
        {"cuMemcpyHtoD_mapped_then_not", htod, &on.mixed, MIB, 2 * MIB},
        {"cuMemcpyDtoH_mapped_then_not", dtoh, &on.mixed, MIB, 2 * MIB},
        {"cuMemsetD8_mapped_then_not", memset_8, &on.mixed, MIB, 2 * MIB},
        {"cuMemSetAccess_mapped_then_not", set_access, &on.mixed, 0, 2 * GRANULE},
        {"cuMemUnmap_mapped_then_not", unmap, &on.mixed, 0, 2 * GRANULE},
    };
    try_rows(rows, ARRAY_COUNT(rows));
}

void section_access_flags(size_t unused)
{
    static const struct row rows[] = {
        {"read_only_cuMemcpyDtoH", dtoh, &on.read_only, 0, 4096},
        {"read_only_cuMemcpyHtoD", htod, &on.read_only, 0, 4096},
        {"read_only_cuMemsetD8", memset_8, &on.read_only, 0, 4096},
        {"read_only_kernel_store", kernel_store, &on.read_only, 0, 4},
        {"no_access_cuMemcpyDtoH", dtoh, &on.no_access, 0, 4096},
        {"no_access_cuMemcpyHtoD", htod, &on.no_access, 0, 4096},
        {"no_access_cuMemsetD8", memset_8, &on.no_access, 0, 4096},
        {"no_access_kernel_store", kernel_store, &on.no_access, 0, 4},
    };
    try_rows(rows, ARRAY_COUNT(rows));
}

/* Blocks of 1 MiB share a granule with the next block, so their end is not the end of memory. */
void section_past_end(size_t unused)
{
    static const struct row rows[] = {
        {"alloc_cuMemcpyHtoD_by_512_b", htod, &on.first, 0, MIB + 512},
        {"alloc_cuMemcpyHtoD_by_4_mib", htod, &on.first, 0, 5 * MIB},
        {"alloc_cuMemcpyHtoDAsync_by_512_b", htod_async, &on.first, 0, MIB + 512},
        {"alloc_cuMemcpyDtoH_by_512_b", dtoh, &on.first, 0, MIB + 512},
        {"alloc_cuMemcpyDtoD_to_by_512_b", dtod_to, &on.first, 0, MIB + 512},
        {"alloc_cuMemsetD8_by_512_b", memset_8, &on.first, 0, MIB + 512},
        {"alloc_cuMemsetD8_by_4_mib", memset_8, &on.first, 0, 5 * MIB},
        {"vmm_cuMemcpyHtoD_by_512_b", htod, &on.mixed, 0, GRANULE + 512},
        {"vmm_cuMemsetD8_by_512_b", memset_8, &on.mixed, 0, GRANULE + 512},
        {"alloc_cuMemFree_inside", free_it, &on.first, 512, 0},
        {"alloc_cuMemFreeAsync", free_async, &on.first, 0, 0},
        {"alloc_cuMemFreeAsync_inside", free_async, &on.first, 512, 0},
        {"vmm_cuMemFree", free_it, &on.mixed, 0, 0},
        {"vmm_cuMemFreeAsync", free_async, &on.mixed, 0, 0},
        {"alloc_cuMemUnmap", unmap, &on.first, 0, GRANULE},
        {"alloc_cuMemSetAccess", set_access, &on.first, 0, GRANULE},
    };
    try_rows(rows, ARRAY_COUNT(rows));
}
