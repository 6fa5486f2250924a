/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that is allocated and freed in the order of a stream, and memory pools. */
#include <string.h>

#include "runtime/calls/alloc.h"
#include "runtime/calls/host_memory.h"
#include "runtime/calls/pointer.h"
#include "runtime/calls/recurring.h"
#include "runtime/driver/flags.h"
#include "runtime/driver/pool.h"
#include "runtime/fill/delayed_free.h"
#include "shim/init.h"
#include "shim/nccl_wrappers.h"
#include "shim/observer.h"
#include "shim/quick.h"
#include "shim/stream.h"

static bool deferred(const void *caller, CUdeviceptr *address, size_t bytes, CUmemoryPool pool,
                     CUstream stream, CUresult *result_out)
{
    if (!ms_ready_to_defer())
        return false;
    if (!ms_alloc_wants_pooled()) {
        ms_pool_use_kept(pool, bytes);
        return false;
    }
    if (ms_nccl_is_inside(caller) || !ms_alloc_in_stream(bytes, pool, stream, address, result_out))
        return false;
    ms_observer_prepare(true);
    return true;
}

/* Tracks memory from pools of host or managed memory. */
static CUresult published(CUresult result, const CUdeviceptr *address, size_t bytes)
{
    if (result == CUDA_SUCCESS && ms_is_started() &&
        ms_pointer_is(*address, MS_PINNED | MS_MANAGED))
        ms_host_memory_add(*address, bytes);
    return result;
}

/* is_given: false for a null pool, which the driver refuses. */
#define ALLOCATE(symbol, parameters, arguments, is_given, pool, default_stream)       \
    CUresult symbol parameters                                                        \
    {                                                                                 \
        CUresult result;                                                              \
        MS_ENTER(#symbol);                                                            \
        if ((is_given) && deferred(__builtin_return_address(0), dptr, bytesize, pool, \
                                   ms_stream(hStream, default_stream), &result))      \
            return result;                                                            \
        result = MS_REAL_WITH_MEMORY(symbol, arguments);                              \
        return published(result, dptr, bytesize);                                     \
    }
#define ALLOCATE_IN_STREAM(symbol, default_stream)                            \
    ALLOCATE(symbol, (CUdeviceptr * dptr, size_t bytesize, CUstream hStream), \
             (dptr, bytesize, hStream), true, NULL, default_stream)
MS_TWINS(_ptsz, ALLOCATE_IN_STREAM, cuMemAllocAsync)

#define ALLOCATE_FROM_POOL(symbol, default_stream)                                               \
    ALLOCATE(symbol, (CUdeviceptr * dptr, size_t bytesize, CUmemoryPool pool, CUstream hStream), \
             (dptr, bytesize, pool, hStream), pool != NULL, pool, default_stream)
MS_TWINS(_ptsz, ALLOCATE_FROM_POOL, cuMemAllocFromPoolAsync)

static bool has_context(void)
{
    CUdevice current;
    return MS_REAL(cuCtxGetDevice)(&current) == CUDA_SUCCESS;
}

/* The driver refuses an invalid stream, and an address inside an allocation. Freeing address 0,
 * which does nothing, tells whether the driver needs a current context. */
#define FREE(symbol, get_flags, default_stream)                                             \
    CUresult symbol(CUdeviceptr dptr, CUstream hStream)                                     \
    {                                                                                       \
        CUresult result;                                                                    \
        unsigned flags;                                                                     \
        MS_ENTER(#symbol);                                                                  \
        if (ms_owns_any() && ms_pointer_is_owned(dptr) &&                                   \
            MS_REAL(get_flags)(hStream, &flags) == CUDA_SUCCESS &&                          \
            (has_context() || MS_REAL(symbol)(0, hStream) != CUDA_ERROR_INVALID_CONTEXT) && \
            ms_alloc_free_in_stream(dptr, ms_stream(hStream, default_stream), &result))     \
            return result;                                                                  \
        result = MS_REAL(symbol)(dptr, hStream);                                            \
        if (result == CUDA_SUCCESS && !(ms_is_started() && ms_recurring_free(dptr)))        \
            ms_host_memory_forget(dptr);                                                    \
        return result;                                                                      \
    }
FREE(cuMemFreeAsync, cuStreamGetFlags, CU_STREAM_LEGACY)
FREE(cuMemFreeAsync_ptsz, cuStreamGetFlags_ptsz, CU_STREAM_PER_THREAD)

/* True for a pool of the device's memory without any other property: nobody else can reach memory
 * from such a pool. */
static bool is_plain(const CUmemPoolProps *props)
{
    CUmemPoolProps plain;
    memset(&plain, 0, sizeof(plain));
    plain.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    plain.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    plain.location.id = props->location.id;
    return memcmp(&plain, props, sizeof(plain)) == 0;
}

CUresult cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *poolProps)
{
    const CUresult result = MS_REAL(cuMemPoolCreate)(pool, poolProps);
    if (result == CUDA_SUCCESS && ms_is_started() && is_plain(poolProps))
        ms_pool_add(*pool, poolProps->location.id);
    return result;
}

CUresult cuMemPoolDestroy(CUmemoryPool pool)
{
    return ms_pool_destroy(pool, MS_REAL(cuMemPoolDestroy));
}

CUresult cuMemPoolGetAttribute(CUmemoryPool pool, CUmemPool_attribute attr, void *value)
{
    MS_INSIDE;
    ms_delayed_free_pass(false);
    const CUresult result = MS_REAL(cuMemPoolGetAttribute)(pool, attr, value);
    if (result == CUDA_SUCCESS)
        ms_pool_add_figures(pool, attr, value);
    return result;
}

CUresult cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute attr, void *value)
{
    MS_INSIDE;
    ms_delayed_free_pass(false);
    const CUresult result = MS_REAL(cuMemPoolSetAttribute)(pool, attr, value);
    if (result == CUDA_SUCCESS)
        ms_pool_reset_high(pool, attr);
    return result;
}

CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t minBytesToKeep)
{
    MS_INSIDE;
    ms_delayed_free_pass(false);
    return MS_REAL(cuMemPoolTrimTo)(pool, ms_pool_trim(pool, minBytesToKeep));
}

CUresult cuMemPoolSetAccess(CUmemoryPool pool, const CUmemAccessDesc *map, size_t count)
{
    MS_ENTER("cuMemPoolSetAccess");
    return ms_is_started() && map != NULL
               ? ms_alloc_set_pool_access(pool, map, count, MS_REAL(cuMemPoolSetAccess))
               : MS_REAL(cuMemPoolSetAccess)(pool, map, count);
}
