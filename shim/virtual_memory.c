/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls on mappings and physical memory that meet an allocation. The program got it from
 * cuMemAlloc: to take its addresses apart is an error there, and here. To share its memory is not:
 * the allocation is then materialised whole.
 */
#include "runtime/base/log.h"
#include "runtime/calls/calls.h"
#include "runtime/calls/host_memory.h"
#include "runtime/calls/query.h"
#include "runtime/driver/flags.h"
#include "shim/entries.h"
#include "shim/nccl_wrappers.h"

static bool meets_block(CUdeviceptr address, size_t bytes)
{
    return ms_owns_any() && ms_meets_allocation(address, bytes);
}

CUresult cuMemMap(CUdeviceptr ptr, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
                  unsigned long long flags)
{
    if (meets_block(ptr, size))
        return CUDA_ERROR_INVALID_VALUE;
    return MS_REAL(cuMemMap)(ptr, size, offset, handle, flags);
}

CUresult cuMemUnmap(CUdeviceptr ptr, size_t size)
{
    if (meets_block(ptr, size))
        return CUDA_ERROR_INVALID_VALUE;
    const CUresult result = MS_REAL(cuMemUnmap)(ptr, size);
    if (result == CUDA_SUCCESS)
        ms_host_cut(ptr, size);
    return result;
}

CUresult cuMemAddressFree(CUdeviceptr ptr, size_t size)
{
    if (meets_block(ptr, size))
        return CUDA_ERROR_INVALID_VALUE;
    return MS_REAL(cuMemAddressFree)(ptr, size);
}

/* True for mappings that the host can write too: they can hide addresses. */
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
    if (meets_block(ptr, size))
        return CUDA_ERROR_INVALID_VALUE;
    const CUresult result = MS_REAL(cuMemSetAccess)(ptr, size, desc, count);
    if (result == CUDA_SUCCESS && ms_is_started() && host_may_write(desc, count))
        ms_host_add(ptr, size);
    return result;
}

CUresult cuMemGetAccess(unsigned long long *flags, const CUmemLocation *location, CUdeviceptr ptr)
{
    if (meets_block(ptr, 1))
        return CUDA_ERROR_INVALID_VALUE;
    return MS_REAL(cuMemGetAccess)(flags, location, ptr);
}

/* For NCCL, which registers what the program gives it, and would take a handle that holds a part of
 * the allocation for all of it. */
static CUresult retain_for_nccl(CUmemGenericAllocationHandle *handle, void *addr)
{
    MS_ENTER("cuMemRetainAllocationHandle");
    bool one_handle = true;
    CUresult result = ms_access_export((CUdeviceptr)(uintptr_t)addr, &one_handle);
    if (result == CUDA_SUCCESS && !one_handle) {
        ms_log(MS_WARN,
               "the allocation at %p has several physical handles and cannot be "
               "shared by one",
               addr);
        result = CUDA_ERROR_INVALID_VALUE;
    }
    return result != CUDA_SUCCESS ? result : MS_REAL(cuMemRetainAllocationHandle)(handle, addr);
}

/* Memory from cuMemAlloc has no handle that the program could get. */
CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *addr)
{
    if (meets_block((CUdeviceptr)(uintptr_t)addr, 1))
        return ms_nccl_is_inside(__builtin_return_address(0))
                   ? retain_for_nccl(handle, addr)
                   : MS_REAL(cuMemRetainAllocationHandle)(handle, NULL);
    return MS_REAL(cuMemRetainAllocationHandle)(handle, addr);
}

CUresult cuMemGetHandleForAddressRange(void *handle, CUdeviceptr dptr, size_t size,
                                       CUmemRangeHandleType handleType, unsigned long long flags)
{
    MS_ENTER("cuMemGetHandleForAddressRange");
    const CUresult result = ms_owns_any() ? ms_access(dptr, size, MS_NEED_PIN) : CUDA_SUCCESS;
    return result != CUDA_SUCCESS
               ? result
               : MS_REAL(cuMemGetHandleForAddressRange)(handle, dptr, size, handleType, flags);
}

CUresult cuMulticastBindAddr(CUmemGenericAllocationHandle mcHandle, size_t mcOffset,
                             CUdeviceptr memptr, size_t size, unsigned long long flags)
{
    MS_ENTER("cuMulticastBindAddr");
    const CUresult result = ms_owns_any() ? ms_access(memptr, size, MS_NEED_PIN) : CUDA_SUCCESS;
    return result != CUDA_SUCCESS
               ? result
               : MS_REAL(cuMulticastBindAddr)(mcHandle, mcOffset, memptr, size, flags);
}

CUresult cuIpcGetMemHandle(CUipcMemHandle *pHandle, CUdeviceptr dptr)
{
    if (ms_owns_any() && ms_is_owned(dptr)) {
        ms_log(MS_WARN,
               "cuIpcGetMemHandle: the allocation at 0x%llx is mapped memory and cannot be "
               "shared this way; METASHARD_EXCLUDE with its size leaves it to the driver",
               dptr);
    }
    return MS_REAL(cuIpcGetMemHandle)(pHandle, dptr);
}
