/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls that touch memory which is not there. Each is made in a process of its own, as an illegal
 * address can end all use of CUDA in it.
 */
#include "tests/gpu/probe.h"

#include <string.h>

/* The objects of the calls. */
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
#define BAD_CALL_RESULT(call, ...)                          \
    static CUresult call(CUdeviceptr address, size_t bytes) \
    {                                                       \
        return __VA_ARGS__;                                 \
    }
#define BAD_CALL(call, name, ...) BAD_CALL_RESULT(call, CU(name, __VA_ARGS__))

BAD_CALL(htod, cuMemcpyHtoD_v2, address, on.host, bytes)
BAD_CALL(htod_async, cuMemcpyHtoDAsync_v2, address, on.host, bytes, on.stream)
BAD_CALL(dtoh, cuMemcpyDtoH_v2, on.host, address, bytes)
BAD_CALL(dtoh_async, cuMemcpyDtoHAsync_v2, on.host, address, bytes, on.stream)
BAD_CALL(dtod_to, cuMemcpyDtoD_v2, address, on.device, bytes)
BAD_CALL(dtod_from, cuMemcpyDtoD_v2, on.device, address, bytes)
BAD_CALL(dtod_async_to, cuMemcpyDtoDAsync_v2, address, on.device, bytes, on.stream)
BAD_CALL(dtod_async_from, cuMemcpyDtoDAsync_v2, on.device, address, bytes, on.stream)
BAD_CALL(unified_to, cuMemcpy, address, (CUdeviceptr)(uintptr_t)on.host, bytes)
BAD_CALL(unified_from, cuMemcpy, (CUdeviceptr)(uintptr_t)on.host, address, bytes)
BAD_CALL(unified_async_to, cuMemcpyAsync, address, on.device, bytes, on.stream)
BAD_CALL(memset_8, cuMemsetD8_v2, address, 1, bytes)
BAD_CALL(memset_8_async, cuMemsetD8Async, address, 1, bytes, on.stream)
BAD_CALL(memset_2d, cuMemsetD2D8_v2, address, bytes / 4, 1, bytes / 4, 4)
BAD_CALL_RESULT(kernel_store, probe_kernel_store(address, 1, NULL))
BAD_CALL(ipc_handle, cuIpcGetMemHandle, &(CUipcMemHandle){{0}}, address)
BAD_CALL(dma_buf, cuMemGetHandleForAddressRange, &(int){-1}, address, bytes,
         CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0)
BAD_CALL(free_it, cuMemFree_v2, address)
BAD_CALL(free_async, cuMemFreeAsync, address, on.stream)
BAD_CALL(unmap, cuMemUnmap, address, bytes)
BAD_CALL_RESULT(set_access, probe_set_access(address, bytes))
BAD_CALL(advise, cuMemAdvise_v2, address, bytes, CU_MEM_ADVISE_SET_READ_MOSTLY, probe_location())
BAD_CALL(prefetch, cuMemPrefetchAsync_v2, address, bytes, probe_location(), 0, on.stream)

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

struct fault {
    probe_call *call;
    const CUdeviceptr *target; /* an address of the scene */
    size_t offset, bytes;
};

/* The call, then what is left of the process: is the error sticky? */
static void try_fault(size_t fault_)
{
    const struct fault *const fault = (const struct fault *)fault_;
    prepare();
    js_result("result", fault->call(*fault->target + fault->offset, fault->bytes));
    js_result("synchronize", CU(cuCtxSynchronize));
    js_result("synchronize_again", CU(cuCtxSynchronize));
    CUdeviceptr later = 0;
    const CUresult alloc = CU(cuMemAlloc_v2, &later, MIB);
    js_result("later_alloc", alloc);
    const CUresult copy = CU(cuMemcpyHtoD_v2, on.device, on.host, 4);
    js_result("later_copy", copy);
    js_bool("sticky", alloc != CUDA_SUCCESS || copy != CUDA_SUCCESS);
}

#define FAULT(key, call, target, offset, bytes)                                                 \
    {                                                                                           \
        key, try_fault, (size_t) & (const struct fault){call, &on.target, offset, bytes}, ALONE \
    }

const struct probe_row section_unmapped[] = {
    FAULT("cuMemcpyHtoD", htod, reserved, 0, 4096),
    FAULT("cuMemcpyHtoD_8_mib", htod, reserved, 0, 8 * MIB),
    FAULT("cuMemcpyHtoDAsync", htod_async, reserved, 0, 4096),
    FAULT("cuMemcpyDtoH", dtoh, reserved, 0, 4096),
    FAULT("cuMemcpyDtoHAsync", dtoh_async, reserved, 0, 4096),
    FAULT("cuMemcpyDtoD_to", dtod_to, reserved, 0, 4096),
    FAULT("cuMemcpyDtoD_from", dtod_from, reserved, 0, 4096),
    FAULT("cuMemcpyDtoDAsync_to", dtod_async_to, reserved, 0, 4096),
    FAULT("cuMemcpyDtoDAsync_from", dtod_async_from, reserved, 0, 4096),
    FAULT("cuMemcpy_to", unified_to, reserved, 0, 4096),
    FAULT("cuMemcpy_from", unified_from, reserved, 0, 4096),
    FAULT("cuMemcpyAsync_to", unified_async_to, reserved, 0, 4096),
    FAULT("cuMemcpy2D_to", copy_2d_to, reserved, 0, 4096),
    FAULT("cuMemsetD8", memset_8, reserved, 0, 4096),
    FAULT("cuMemsetD8Async", memset_8_async, reserved, 0, 4096),
    FAULT("cuMemsetD2D8", memset_2d, reserved, 0, 4096),
    FAULT("kernel_store", kernel_store, reserved, 0, 4),
    FAULT("cuMemcpyHtoD_of_0_bytes", htod, reserved, 0, 0),
    FAULT("cuMemsetD8_of_0_bytes", memset_8, reserved, 0, 0),
    FAULT("cuIpcGetMemHandle", ipc_handle, reserved, 0, 0),
    FAULT("cuMemGetHandleForAddressRange", dma_buf, reserved, 0, GRANULE),
    FAULT("cuMemFree", free_it, reserved, 0, 0),
    FAULT("cuMemFreeAsync", free_async, reserved, 0, 0),
    FAULT("cuMemUnmap", unmap, reserved, 0, GRANULE),
    FAULT("cuMemSetAccess", set_access, reserved, 0, GRANULE),
    FAULT("cuMemAdvise", advise, reserved, 0, GRANULE),
    FAULT("cuMemPrefetchAsync", prefetch, reserved, 0, GRANULE),
    FAULT("cuMemcpyHtoD_mapped_then_not", htod, mixed, MIB, 2 * MIB),
    FAULT("cuMemcpyDtoH_mapped_then_not", dtoh, mixed, MIB, 2 * MIB),
    FAULT("cuMemsetD8_mapped_then_not", memset_8, mixed, MIB, 2 * MIB),
    FAULT("cuMemSetAccess_mapped_then_not", set_access, mixed, 0, 2 * GRANULE),
    FAULT("cuMemUnmap_mapped_then_not", unmap, mixed, 0, 2 * GRANULE),
    {NULL},
};

const struct probe_row section_access_flags[] = {
    FAULT("read_only_cuMemcpyDtoH", dtoh, read_only, 0, 4096),
    FAULT("read_only_cuMemcpyHtoD", htod, read_only, 0, 4096),
    FAULT("read_only_cuMemsetD8", memset_8, read_only, 0, 4096),
    FAULT("read_only_kernel_store", kernel_store, read_only, 0, 4),
    FAULT("no_access_cuMemcpyDtoH", dtoh, no_access, 0, 4096),
    FAULT("no_access_cuMemcpyHtoD", htod, no_access, 0, 4096),
    FAULT("no_access_cuMemsetD8", memset_8, no_access, 0, 4096),
    FAULT("no_access_kernel_store", kernel_store, no_access, 0, 4),
    {NULL},
};

/* Blocks of 1 MiB share a granule with the next block, so their end is not the end of memory. */
const struct probe_row section_past_end[] = {
    FAULT("alloc_cuMemcpyHtoD_by_512_b", htod, first, 0, MIB + 512),
    FAULT("alloc_cuMemcpyHtoD_by_4_mib", htod, first, 0, 5 * MIB),
    FAULT("alloc_cuMemcpyHtoDAsync_by_512_b", htod_async, first, 0, MIB + 512),
    FAULT("alloc_cuMemcpyDtoH_by_512_b", dtoh, first, 0, MIB + 512),
    FAULT("alloc_cuMemcpyDtoD_to_by_512_b", dtod_to, first, 0, MIB + 512),
    FAULT("alloc_cuMemsetD8_by_512_b", memset_8, first, 0, MIB + 512),
    FAULT("alloc_cuMemsetD8_by_4_mib", memset_8, first, 0, 5 * MIB),
    FAULT("vmm_cuMemcpyHtoD_by_512_b", htod, mixed, 0, GRANULE + 512),
    FAULT("vmm_cuMemsetD8_by_512_b", memset_8, mixed, 0, GRANULE + 512),
    FAULT("alloc_cuMemFree_inside", free_it, first, 512, 0),
    FAULT("alloc_cuMemFreeAsync", free_async, first, 0, 0),
    FAULT("alloc_cuMemFreeAsync_inside", free_async, first, 512, 0),
    FAULT("vmm_cuMemFree", free_it, mixed, 0, 0),
    FAULT("vmm_cuMemFreeAsync", free_async, mixed, 0, 0),
    FAULT("alloc_cuMemUnmap", unmap, first, 0, GRANULE),
    FAULT("alloc_cuMemSetAccess", set_access, first, 0, GRANULE),
    {NULL},
};
