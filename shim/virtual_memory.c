/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Physical memory and mappings. Those that the program makes are deferred (vmm.h). To unmap or
 * remap memory from cuMemAlloc is an error, as in the driver; to share it materialises the whole
 * allocation.
 */
#include "runtime/base/log.h"
#include "runtime/calls/host_memory.h"
#include "runtime/calls/ipc.h"
#include "runtime/calls/vmm.h"
#include "runtime/driver/flags.h"
#include "runtime/fill/access.h"
#include "runtime/memory/addresses.h"
#include "runtime/memory/space.h"
#include "shim/init.h"
#include "shim/nccl_wrappers.h"
#include "shim/newer.h"
#include "shim/observer.h"
#include "shim/quick.h"

/* The range meets memory from cuMemAlloc. */
static bool meets_block(CUdeviceptr address, size_t bytes)
{
    struct ms_allocation_facts facts;
    return ms_owns_any() && ms_space_first_behind(address, &facts) &&
           facts.address < address + bytes && !facts.is_programs;
}

/* Refuses to change mappings or addresses of memory from cuMemAlloc. */
static bool refuses(CUdeviceptr address, size_t bytes, CUresult *result_out)
{
    *result_out = CUDA_ERROR_INVALID_VALUE;
    return meets_block(address, bytes);
}

/* --- addresses */

CUresult cuMemAddressReserve(CUdeviceptr *ptr, size_t size, size_t alignment, CUdeviceptr addr,
                             unsigned long long flags)
{
    MS_ENTER("cuMemAddressReserve");
    const bool is_free = ms_is_started() && ptr != NULL && addr == 0 && flags == 0;
    const CUresult result = is_free
                                ? ms_addresses_reserve(ptr, size, alignment, true)
                                : MS_REAL(cuMemAddressReserve)(ptr, size, alignment, addr, flags);
    if (result == CUDA_SUCCESS && ms_is_started())
        ms_vmm_reserved(*ptr, size);
    return result;
}

MS_ANSWERED(cuMemAddressFree,
            refuses(ptr, size, &result) ||
                (ms_is_started() && ms_vmm_free_addresses(ptr, size, &result)),
            (CUdeviceptr ptr, size_t size), (ptr, size))

/* --- handles */

CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size,
                     const CUmemAllocationProp *prop, unsigned long long flags)
{
    CUresult result;
    MS_ENTER("cuMemCreate");
    if (ms_ready_to_defer() && flags == 0 && !ms_nccl_is_inside(__builtin_return_address(0)) &&
        ms_vmm_defer(size, prop, handle, &result)) {
        ms_observer_prepare(false);
        return result;
    }
    return MS_REAL_WITH_MEMORY(cuMemCreate, (handle, size, prop, flags));
}

MS_ANSWERED(cuMemRelease, ms_vmm_release(handle, &result), (CUmemGenericAllocationHandle handle),
            (handle))

MS_ANSWERED(cuMemGetAllocationPropertiesFromHandle, ms_vmm_handle_properties(handle, prop, &result),
            (CUmemAllocationProp * prop, CUmemGenericAllocationHandle handle), (prop, handle))

MS_PREPARED(cuMemExportToShareableHandle, ms_vmm_make_handle_real(&handle, &handleType),
            (void *shareableHandle, CUmemGenericAllocationHandle handle,
             CUmemAllocationHandleType handleType, unsigned long long flags),
            (shareableHandle, handle, handleType, flags))

MS_PREPARED(cuMulticastBindMem, ms_vmm_make_handle_real(&memHandle, NULL),
            (CUmemGenericAllocationHandle mcHandle, size_t mcOffset,
             CUmemGenericAllocationHandle memHandle, size_t memOffset, size_t size,
             unsigned long long flags),
            (mcHandle, mcOffset, memHandle, memOffset, size, flags))

MS_PREPARED(cuMulticastBindMem_v2, ms_vmm_make_handle_real(&memHandle, NULL),
            (CUmemGenericAllocationHandle mcHandle, CUdevice dev, size_t mcOffset,
             CUmemGenericAllocationHandle memHandle, size_t memOffset, size_t size,
             unsigned long long flags),
            (mcHandle, dev, mcOffset, memHandle, memOffset, size, flags))

MS_PREPARED(cuLogicalEndpointBindMem, ms_vmm_make_handle_real(&memHandle, NULL),
            (CUlogicalEndpointId leId, CUdevice dev, cuuint64_t offset,
             CUmemGenericAllocationHandle memHandle, cuuint64_t memOffset, cuuint64_t size,
             unsigned long long flags),
            (leId, dev, offset, memHandle, memOffset, size, flags))

/* --- mappings */

MS_ANSWERED(cuMemMap,
            refuses(ptr, size, &result) ||
                (ms_is_started() && ms_vmm_map(ptr, size, offset, handle, flags, &result)),
            (CUdeviceptr ptr, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
             unsigned long long flags),
            (ptr, size, offset, handle, flags))

CUresult cuMemUnmap(CUdeviceptr ptr, size_t size)
{
    CUresult result;
    MS_ENTER("cuMemUnmap");
    if (refuses(ptr, size, &result))
        return result;
    if (!ms_owns_any() || !ms_vmm_unmap(ptr, size, &result))
        result = MS_REAL(cuMemUnmap)(ptr, size);
    if (result == CUDA_SUCCESS)
        ms_host_memory_cut(ptr, size);
    return result;
}

/* True for mappings that the host can write, too: such memory can hide addresses. */
static bool host_may_write(const CUmemAccessDesc *desc, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (desc[i].location.type != CU_MEM_LOCATION_TYPE_DEVICE)
            return true;
    }
    return false;
}

CUresult cuMemSetAccess(CUdeviceptr ptr, size_t size, const CUmemAccessDesc *desc, size_t count)
{
    CUresult result;
    MS_ENTER("cuMemSetAccess");
    if (refuses(ptr, size, &result))
        return result;
    if (!ms_owns_any() || !ms_vmm_set_access(ptr, size, desc, count, &result))
        result = MS_REAL(cuMemSetAccess)(ptr, size, desc, count);
    if (result == CUDA_SUCCESS && ms_is_started() && host_may_write(desc, count))
        ms_host_memory_add(ptr, size);
    return result;
}

CUresult cuMemGetAccess(unsigned long long *flags, const CUmemLocation *location, CUdeviceptr ptr)
{
    CUresult result;
    if (meets_block(ptr, 1))
        return CUDA_ERROR_INVALID_VALUE;
    if (ms_owns_any() && ms_vmm_get_access(ptr, location, flags, &result))
        return result;
    return MS_REAL(cuMemGetAccess)(flags, location, ptr);
}

/* For NCCL, which registers the program's buffers, and would take a handle of a part of the
 * allocation for a handle of all. */
static CUresult retain_for_nccl(CUmemGenericAllocationHandle *handle, void *addr)
{
    MS_ENTER("cuMemRetainAllocationHandle");
    bool one_handle = true;
    CUresult result = ms_access_export((CUdeviceptr)(uintptr_t)addr, 1, &one_handle);
    if (result == CUDA_SUCCESS && !one_handle) {
        ms_log(MS_WARN,
               "the allocation at %p has several physical handles and cannot be "
               "shared by one",
               addr);
        result = CUDA_ERROR_INVALID_VALUE;
    }
    return result != CUDA_SUCCESS ? result : MS_REAL(cuMemRetainAllocationHandle)(handle, addr);
}

/* The driver gives programs no handle for memory from cuMemAlloc, nor for memory opened by IPC. */
CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *addr)
{
    CUresult result;
    if (meets_block((CUdeviceptr)(uintptr_t)addr, 1))
        return ms_nccl_is_inside(__builtin_return_address(0)) &&
                       !ms_ipc_is_opened((CUdeviceptr)(uintptr_t)addr)
                   ? retain_for_nccl(handle, addr)
                   : MS_REAL(cuMemRetainAllocationHandle)(handle, NULL);
    if (ms_owns_any() && ms_vmm_retain((CUdeviceptr)(uintptr_t)addr, handle, &result))
        return result;
    return MS_REAL(cuMemRetainAllocationHandle)(handle, addr);
}

/* Others will use the memory that the range has now. */
static CUresult pin(CUdeviceptr address, size_t bytes)
{
    if (!ms_owns_any())
        return CUDA_SUCCESS;
    const CUresult result = ms_vmm_make_real(address, bytes);
    return result != CUDA_SUCCESS || !meets_block(address, bytes)
               ? result
               : ms_access(address, bytes, MS_NEED_PIN);
}

MS_PREPARED(cuMemGetHandleForAddressRange, pin(dptr, size),
            (void *handle, CUdeviceptr dptr, size_t size, CUmemRangeHandleType handleType,
             unsigned long long flags),
            (handle, dptr, size, handleType, flags))

MS_PREPARED(cuMulticastBindAddr, pin(memptr, size),
            (CUmemGenericAllocationHandle mcHandle, size_t mcOffset, CUdeviceptr memptr,
             size_t size, unsigned long long flags),
            (mcHandle, mcOffset, memptr, size, flags))

MS_PREPARED(cuMulticastBindAddr_v2, pin(memptr, size),
            (CUmemGenericAllocationHandle mcHandle, CUdevice dev, size_t mcOffset,
             CUdeviceptr memptr, size_t size, unsigned long long flags),
            (mcHandle, dev, mcOffset, memptr, size, flags))

MS_PREPARED(cuLogicalEndpointBindAddr, pin((CUdeviceptr)(uintptr_t)ptr, size),
            (CUlogicalEndpointId leId, CUdevice dev, cuuint64_t offset, void *ptr, cuuint64_t size,
             unsigned long long flags),
            (leId, dev, offset, ptr, size, flags))
