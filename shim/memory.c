/* SPDX-License-Identifier: Apache-2.0 */
/* Allocating and freeing memory, and queries about it. */
#include "runtime/base/log.h"
#include "runtime/calls/alloc.h"
#include "runtime/calls/host_memory.h"
#include "runtime/calls/pointer.h"
#include "runtime/calls/query.h"
#include "runtime/calls/recurring.h"
#include "runtime/driver/flags.h"
#include "runtime/fill/delayed_free.h"
#include "shim/init.h"
#include "shim/nccl_wrappers.h"
#include "shim/observer.h"
#include "shim/quick.h"

static bool serve_recurring(CUdeviceptr *address_out, size_t bytes)
{
    struct ms_recurring_size *const size = ms_recurring_take(bytes);
    if (size == NULL)
        return false;
    const bool is_served = MS_REAL(cuMemAlloc_v2)(address_out, bytes) == CUDA_SUCCESS;
    if (is_served)
        ms_recurring_serve(size, *address_out);
    else
        ms_recurring_put(size);
    return is_served;
}

CUresult cuMemAlloc_v2(CUdeviceptr *dptr, size_t bytesize)
{
    CUresult result;
    if (serve_recurring(dptr, bytesize))
        return CUDA_SUCCESS;
    MS_ENTER("cuMemAlloc_v2");
    if (ms_ready_to_defer() && !ms_nccl_is_inside(__builtin_return_address(0)) &&
        ms_alloc(bytesize, dptr, &result)) {
        ms_observer_prepare(false);
        return result;
    }
    return MS_REAL_WITH_MEMORY(cuMemAlloc_v2, (dptr, bytesize));
}

/* Never deferred: the driver allocates, after eviction if necessary. */
CUresult cuMemAllocPitch_v2(CUdeviceptr *dptr, size_t *pPitch, size_t WidthInBytes, size_t Height,
                            unsigned int ElementSizeBytes)
{
    MS_ENTER("cuMemAllocPitch_v2");
    return MS_REAL_WITH_MEMORY(cuMemAllocPitch_v2,
                               (dptr, pPitch, WidthInBytes, Height, ElementSizeBytes));
}

/* True if the driver frees memory for this thread: some drivers do without a current context, too
 * (NVIDIA/cuda-python#2750). Freeing address 0, which does nothing, tells. */
static bool may_free(void)
{
    CUdevice current;
    return MS_REAL(cuCtxGetDevice)(&current) == CUDA_SUCCESS ||
           MS_REAL(cuMemFree_v2)(0) == CUDA_SUCCESS;
}

CUresult cuMemFree_v2(CUdeviceptr dptr)
{
    CUresult result;
    if (ms_is_started() && ms_recurring_free(dptr))
        return MS_REAL(cuMemFree_v2)(dptr);
    MS_ENTER("cuMemFree_v2");
    if (ms_owns_any() && may_free() && ms_alloc_free(dptr, &result))
        return result;
    result = MS_REAL(cuMemFree_v2)(dptr);
    if (result == CUDA_SUCCESS)
        ms_host_memory_forget(dptr); /* managed memory, or memory from a pool or another API */
    return result;
}

CUresult cuMemGetInfo_v2(size_t *free, size_t *total)
{
    MS_INSIDE;
    if (ms_owns_any())
        ms_delayed_free_pass(false);
    const CUresult result = MS_REAL(cuMemGetInfo_v2)(free, total);
    if (result == CUDA_SUCCESS && free != NULL && ms_is_started())
        return ms_query_free_memory(free);
    return result;
}

CUresult cuMemGetAddressRange_v2(CUdeviceptr *pbase, size_t *psize, CUdeviceptr dptr)
{
    CUresult result;
    MS_INSIDE;
    if (ms_owns_any() && ms_query_address_range(dptr, pbase, psize, &result))
        return result;
    return MS_REAL(cuMemGetAddressRange_v2)(pbase, psize, ms_bounded(dptr, 1));
}

CUresult cuPointerGetAttribute(void *data, CUpointer_attribute attribute, CUdeviceptr ptr)
{
    CUresult result;
    MS_ENTER("cuPointerGetAttribute");
    if (ms_owns_any() && ms_query_pointer_attribute(data, attribute, ptr, &result)) {
        if (attribute == CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE &&
            ms_nccl_is_inside(__builtin_return_address(0)))
            *(unsigned *)data = 0; /* NCCL then shares the driver's handle */
        return result;
    }
    return MS_REAL(cuPointerGetAttribute)(data, attribute, ms_bounded(ptr, 1));
}

/* The driver zeroes attributes that do not apply. For an allocation, each attribute is a query of
 * its own. */
CUresult cuPointerGetAttributes(unsigned int numAttributes, CUpointer_attribute *attributes,
                                void **data, CUdeviceptr ptr)
{
    MS_ENTER("cuPointerGetAttributes");
    if (!ms_owns_any() || !ms_pointer_is_owned(ptr) || attributes == NULL || data == NULL)
        return MS_REAL(cuPointerGetAttributes)(numAttributes, attributes, data, ms_bounded(ptr, 1));
    for (unsigned i = 0; i < numAttributes; i++) {
        CUresult result;
        if (attributes[i] == CU_POINTER_ATTRIBUTE_HOST_POINTER) {
            *(void **)data[i] = NULL;
            continue;
        }
        if (!ms_query_pointer_attribute(data[i], attributes[i], ptr, &result))
            result = MS_REAL(cuPointerGetAttributes)(1, &attributes[i], &data[i], ptr);
        if (attributes[i] == CU_POINTER_ATTRIBUTE_DEVICE_POINTER)
            continue;
        if (result != CUDA_SUCCESS)
            return result;
    }
    return CUDA_SUCCESS;
}

CUresult cuPointerSetAttribute(const void *value, CUpointer_attribute attribute, CUdeviceptr ptr)
{
    /* Mapped memory cannot have this attribute; accepting it would be a silent difference. */
    if (ms_owns_any() && attribute == CU_POINTER_ATTRIBUTE_SYNC_MEMOPS &&
        ms_pointer_is_owned(ptr)) {
        ms_log(MS_WARN,
               "cuPointerSetAttribute: the allocation at 0x%llx is mapped memory and cannot have "
               "SYNC_MEMOPS; METASHARD_EXCLUDE with its size leaves it to the driver",
               ptr);
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    return MS_REAL(cuPointerSetAttribute)(value, attribute, ptr);
}
