/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls that touch memory which is not there. Each is made in a process of its own, as an illegal
 * address can end all use of CUDA in it.
 */
#include "tests/gpu/probe.h"

#include <stdlib.h>

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
    probe_require("cuMemSetAccess",
                  probe_set_access(on.mixed, GRANULE, CU_MEM_ACCESS_FLAGS_PROT_READWRITE));
    on.no_access = probe_reserve(GRANULE);
    probe_map(on.no_access, GRANULE, probe_create(GRANULE));
    on.device = probe_alloc(8 * MIB);
    on.first = probe_alloc(MIB);
    on.second = probe_alloc(MIB);
    on.host = calloc(1, 8 * MIB);
    if (on.host == NULL)
        probe_fail("malloc");
    on.stream = probe_stream(CU_STREAM_NON_BLOCKING);
}

/* One call on `address` with `bytes`; some use only the address. */
typedef CUresult (*make_call)(CUdeviceptr address, size_t bytes);

static CUresult htod(CUdeviceptr address, size_t bytes)
{
    return CU(cuMemcpyHtoD_v2, address, on.host, bytes);
}

static CUresult htod_async(CUdeviceptr address, size_t bytes)
{
    return CU(cuMemcpyHtoDAsync_v2, address, on.host, bytes, on.stream);
}

static CUresult dtoh(CUdeviceptr address, size_t bytes)
{
    return CU(cuMemcpyDtoH_v2, on.host, address, bytes);
}

static CUresult dtoh_async(CUdeviceptr address, size_t bytes)
{
    return CU(cuMemcpyDtoHAsync_v2, on.host, address, bytes, on.stream);
}

static CUresult dtod_to(CUdeviceptr address, size_t bytes)
{
    return CU(cuMemcpyDtoD_v2, address, on.device, bytes);
}

static CUresult dtod_from(CUdeviceptr address, size_t bytes)
{
    return CU(cuMemcpyDtoD_v2, on.device, address, bytes);
}

static CUresult dtod_async_to(CUdeviceptr address, size_t bytes)
{
    return CU(cuMemcpyDtoDAsync_v2, address, on.device, bytes, on.stream);
}

static CUresult dtod_async_from(CUdeviceptr address, size_t bytes)
{
    return CU(cuMemcpyDtoDAsync_v2, on.device, address, bytes, on.stream);
}

static CUresult unified_to(CUdeviceptr address, size_t bytes)
{
    return CU(cuMemcpy, address, (CUdeviceptr)(uintptr_t)on.host, bytes);
}

static CUresult unified_from(CUdeviceptr address, size_t bytes)
{
    return CU(cuMemcpy, (CUdeviceptr)(uintptr_t)on.host, address, bytes);
}

static CUresult unified_async_to(CUdeviceptr address, size_t bytes)
{
    return CU(cuMemcpyAsync, address, on.device, bytes, on.stream);
}

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

static CUresult memset_8(CUdeviceptr address, size_t bytes)
{
    return CU(cuMemsetD8_v2, address, 1, bytes);
}

static CUresult memset_8_async(CUdeviceptr address, size_t bytes)
{
    return CU(cuMemsetD8Async, address, 1, bytes, on.stream);
}

static CUresult memset_2d(CUdeviceptr address, size_t bytes)
{
    return CU(cuMemsetD2D8_v2, address, bytes / 4, 1, bytes / 4, 4);
}

static CUresult kernel_store(CUdeviceptr address, size_t bytes)
{
    (void)bytes;
    return probe_kernel_store(address, 1);
}

static CUresult ipc_handle(CUdeviceptr address, size_t bytes)
{
    (void)bytes;
    CUipcMemHandle handle;
    return CU(cuIpcGetMemHandle, &handle, address);
}

static CUresult dma_buf(CUdeviceptr address, size_t bytes)
{
    int descriptor = -1;
    return CU(cuMemGetHandleForAddressRange, &descriptor, address, bytes,
              CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0);
}

static CUresult free_it(CUdeviceptr address, size_t bytes)
{
    (void)bytes;
    return CU(cuMemFree_v2, address);
}

static CUresult free_async(CUdeviceptr address, size_t bytes)
{
    (void)bytes;
    return CU(cuMemFreeAsync, address, on.stream);
}

static CUresult unmap(CUdeviceptr address, size_t bytes)
{
    return CU(cuMemUnmap, address, bytes);
}

static CUresult set_access(CUdeviceptr address, size_t bytes)
{
    return probe_set_access(address, bytes, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
}

static CUresult advise(CUdeviceptr address, size_t bytes)
{
    const CUmemLocation location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = probe_device};
    return CU(cuMemAdvise_v2, address, bytes, CU_MEM_ADVISE_SET_READ_MOSTLY, location);
}

static CUresult prefetch(CUdeviceptr address, size_t bytes)
{
    const CUmemLocation location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = probe_device};
    return CU(cuMemPrefetchAsync_v2, address, bytes, location, 0, on.stream);
}

/* Which address of the scene a row is about. */
enum target { RESERVED, MIXED, NO_ACCESS, READ_ONLY, FIRST, MAPPED_GRANULE };

struct row {
    const char *key;
    make_call call;
    enum target target;
    size_t offset, bytes;
};

static CUdeviceptr target_address(enum target target)
{
    switch (target) {
    case RESERVED:
        return on.reserved;
    case MIXED:
    case MAPPED_GRANULE:
        return on.mixed;
    case NO_ACCESS:
        return on.no_access;
    case READ_ONLY:
        on.read_only = probe_reserve(GRANULE);
        probe_map(on.read_only, GRANULE, probe_create(GRANULE));
        probe_require("cuMemSetAccess",
                      probe_set_access(on.read_only, GRANULE, CU_MEM_ACCESS_FLAGS_PROT_READ));
        return on.read_only;
    case FIRST:
        break;
    }
    return on.first;
}

/* The call, then what is left of the process: is the error sticky? */
static void try_row(void *row_)
{
    const struct row *const row = row_;
    prepare();
    const CUdeviceptr address = target_address(row->target) + row->offset;
    js_result("result", row->call(address, row->bytes));
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
        probe_child(rows[i].key, 15, try_row, (void *)&rows[i]);
}

static const struct row unmapped_rows[] = {
    {"cuMemcpyHtoD", htod, RESERVED, 0, 4096},
    {"cuMemcpyHtoD_8_mib", htod, RESERVED, 0, 8 * MIB},
    {"cuMemcpyHtoDAsync", htod_async, RESERVED, 0, 4096},
    {"cuMemcpyDtoH", dtoh, RESERVED, 0, 4096},
    {"cuMemcpyDtoHAsync", dtoh_async, RESERVED, 0, 4096},
    {"cuMemcpyDtoD_to", dtod_to, RESERVED, 0, 4096},
    {"cuMemcpyDtoD_from", dtod_from, RESERVED, 0, 4096},
    {"cuMemcpyDtoDAsync_to", dtod_async_to, RESERVED, 0, 4096},
    {"cuMemcpyDtoDAsync_from", dtod_async_from, RESERVED, 0, 4096},
    {"cuMemcpy_to", unified_to, RESERVED, 0, 4096},
    {"cuMemcpy_from", unified_from, RESERVED, 0, 4096},
    {"cuMemcpyAsync_to", unified_async_to, RESERVED, 0, 4096},
    {"cuMemcpy2D_to", copy_2d_to, RESERVED, 0, 4096},
    {"cuMemsetD8", memset_8, RESERVED, 0, 4096},
    {"cuMemsetD8Async", memset_8_async, RESERVED, 0, 4096},
    {"cuMemsetD2D8", memset_2d, RESERVED, 0, 4096},
    {"kernel_store", kernel_store, RESERVED, 0, 4},
    {"cuMemcpyHtoD_of_0_bytes", htod, RESERVED, 0, 0},
    {"cuMemsetD8_of_0_bytes", memset_8, RESERVED, 0, 0},
    {"cuIpcGetMemHandle", ipc_handle, RESERVED, 0, 0},
    {"cuMemGetHandleForAddressRange", dma_buf, RESERVED, 0, GRANULE},
    {"cuMemFree", free_it, RESERVED, 0, 0},
    {"cuMemFreeAsync", free_async, RESERVED, 0, 0},
    {"cuMemUnmap", unmap, RESERVED, 0, GRANULE},
    {"cuMemSetAccess", set_access, RESERVED, 0, GRANULE},
    {"cuMemAdvise", advise, RESERVED, 0, GRANULE},
    {"cuMemPrefetchAsync", prefetch, RESERVED, 0, GRANULE},
    {"cuMemcpyHtoD_mapped_then_not", htod, MIXED, MIB, 2 * MIB},
    {"cuMemcpyDtoH_mapped_then_not", dtoh, MIXED, MIB, 2 * MIB},
    {"cuMemsetD8_mapped_then_not", memset_8, MIXED, MIB, 2 * MIB},
    {"cuMemSetAccess_mapped_then_not", set_access, MIXED, 0, 2 * GRANULE},
    {"cuMemUnmap_mapped_then_not", unmap, MIXED, 0, 2 * GRANULE},
};

void section_unmapped(void *unused)
{
    (void)unused;
    try_rows(unmapped_rows, ARRAY_COUNT(unmapped_rows));
}

static const struct row access_rows[] = {
    {"read_only_cuMemcpyDtoH", dtoh, READ_ONLY, 0, 4096},
    {"read_only_cuMemcpyHtoD", htod, READ_ONLY, 0, 4096},
    {"read_only_cuMemsetD8", memset_8, READ_ONLY, 0, 4096},
    {"read_only_kernel_store", kernel_store, READ_ONLY, 0, 4},
    {"no_access_cuMemcpyDtoH", dtoh, NO_ACCESS, 0, 4096},
    {"no_access_cuMemcpyHtoD", htod, NO_ACCESS, 0, 4096},
    {"no_access_cuMemsetD8", memset_8, NO_ACCESS, 0, 4096},
    {"no_access_kernel_store", kernel_store, NO_ACCESS, 0, 4},
};

void section_access_flags(void *unused)
{
    (void)unused;
    try_rows(access_rows, ARRAY_COUNT(access_rows));
}

/* Blocks of 1 MiB share a granule with the next block, so their end is not the end of memory. */
static const struct row past_end_rows[] = {
    {"alloc_cuMemcpyHtoD_by_512_b", htod, FIRST, 0, MIB + 512},
    {"alloc_cuMemcpyHtoD_by_4_mib", htod, FIRST, 0, 5 * MIB},
    {"alloc_cuMemcpyHtoDAsync_by_512_b", htod_async, FIRST, 0, MIB + 512},
    {"alloc_cuMemcpyDtoH_by_512_b", dtoh, FIRST, 0, MIB + 512},
    {"alloc_cuMemcpyDtoD_to_by_512_b", dtod_to, FIRST, 0, MIB + 512},
    {"alloc_cuMemsetD8_by_512_b", memset_8, FIRST, 0, MIB + 512},
    {"alloc_cuMemsetD8_by_4_mib", memset_8, FIRST, 0, 5 * MIB},
    {"vmm_cuMemcpyHtoD_by_512_b", htod, MAPPED_GRANULE, 0, GRANULE + 512},
    {"vmm_cuMemsetD8_by_512_b", memset_8, MAPPED_GRANULE, 0, GRANULE + 512},
    {"alloc_cuMemFree_inside", free_it, FIRST, 512, 0},
    {"alloc_cuMemFreeAsync", free_async, FIRST, 0, 0},
    {"alloc_cuMemFreeAsync_inside", free_async, FIRST, 512, 0},
    {"vmm_cuMemFree", free_it, MAPPED_GRANULE, 0, 0},
    {"vmm_cuMemFreeAsync", free_async, MAPPED_GRANULE, 0, 0},
    {"alloc_cuMemUnmap", unmap, FIRST, 0, GRANULE},
    {"alloc_cuMemSetAccess", set_access, FIRST, 0, GRANULE},
};

void section_past_end(void *unused)
{
    (void)unused;
    try_rows(past_end_rows, ARRAY_COUNT(past_end_rows));
}
