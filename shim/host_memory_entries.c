/* SPDX-License-Identifier: Apache-2.0 */
/* Host memory that kernels can read: tracked, because it can hide addresses. */
#include "runtime/calls/host_memory.h"
#include "runtime/calls/pointer.h"
#include "runtime/driver/flags.h"
#include "shim/graphics.h"
#include "shim/quick.h"

/* Kernels may see registered or write-combined memory at another address (cuda.h). */
static CUresult published(CUresult result, void *const *address, size_t bytes)
{
    CUdeviceptr alias;
    if (result != CUDA_SUCCESS || !ms_is_started())
        return result;
    const CUdeviceptr host = (uintptr_t)*address;
    ms_host_memory_add(host, bytes);
    if (MS_REAL(cuMemHostGetDevicePointer_v2)(&alias, *address, 0) == CUDA_SUCCESS && alias != host)
        ms_host_memory_add_alias(host, alias, bytes);
    return result;
}

#define PUBLISHED(symbol, address, parameters, arguments)               \
    CUresult symbol parameters                                          \
    {                                                                   \
        return published(MS_REAL(symbol) arguments, address, bytesize); \
    }
PUBLISHED(cuMemAllocHost, pp, (void **pp, unsigned int bytesize), (pp, bytesize))
PUBLISHED(cuMemAllocHost_v2, pp, (void **pp, size_t bytesize), (pp, bytesize))
PUBLISHED(cuMemHostAlloc, pp, (void **pp, size_t bytesize, unsigned int Flags),
          (pp, bytesize, Flags))
PUBLISHED(cuMemHostRegister, &p, (void *p, size_t bytesize, unsigned int Flags),
          (p, bytesize, Flags))
PUBLISHED(cuMemHostRegister_v2, &p, (void *p, size_t bytesize, unsigned int Flags),
          (p, bytesize, Flags))

#define FORGET(symbol)                              \
    CUresult symbol(void *p)                        \
    {                                               \
        const CUresult result = MS_REAL(symbol)(p); \
        if (result == CUDA_SUCCESS)                 \
            ms_host_memory_forget((uintptr_t)p);    \
        return result;                              \
    }
FORGET(cuMemFreeHost)
FORGET(cuMemHostUnregister)

/* Memory of another API, which may write there at any time unseen. */
CUresult cuExternalMemoryGetMappedBuffer(CUdeviceptr *devPtr, CUexternalMemory extMem,
                                         const CUDA_EXTERNAL_MEMORY_BUFFER_DESC *bufferDesc)
{
    const CUresult result = MS_REAL(cuExternalMemoryGetMappedBuffer)(devPtr, extMem, bufferDesc);
    if (result == CUDA_SUCCESS && ms_is_started())
        ms_host_memory_add(*devPtr, bufferDesc->size);
    return result;
}

/* Outputs may be NULL. */
static CUresult mapped(CUresult result, const CUdeviceptr *address, const size_t *bytes)
{
    if (result == CUDA_SUCCESS && address != NULL && bytes != NULL && ms_is_started())
        ms_host_memory_add(*address, *bytes);
    return result;
}

#define MAPPED(symbol, address, bytes, parameters, arguments)       \
    CUresult symbol parameters                                      \
    {                                                               \
        return mapped(MS_REAL(symbol) arguments, (address), bytes); \
    }

/* cuMemFree frees managed memory. */
MAPPED(cuMemAllocManaged, dptr, &bytesize,
       (CUdeviceptr * dptr, size_t bytesize, unsigned int flags), (dptr, bytesize, flags))

/* Programs map and unmap this memory again and again, so it stays tracked. */
MAPPED(cuGraphicsResourceGetMappedPointer_v2, pDevPtr, pSize,
       (CUdeviceptr * pDevPtr, size_t *pSize, CUgraphicsResource resource),
       (pDevPtr, pSize, resource))
#define MAP_OBJECT(symbol)                                                               \
    MAPPED(symbol, dptr, size, (CUdeviceptr * dptr, size_t * size, unsigned int buffer), \
           (dptr, size, buffer))
MAP_OBJECT(cuGLMapBufferObject_v2)
MAP_OBJECT(cuGLMapBufferObject_v2_ptds)
#define MAP_OBJECT_ASYNC(symbol)                                                       \
    MAPPED(symbol, dptr, size,                                                         \
           (CUdeviceptr * dptr, size_t * size, unsigned int buffer, CUstream hStream), \
           (dptr, size, buffer, hStream))
MAP_OBJECT_ASYNC(cuGLMapBufferObjectAsync_v2)
MAP_OBJECT_ASYNC(cuGLMapBufferObjectAsync_v2_ptsz)

/* No later plane is larger than the first. */
CUresult cuGraphicsResourceGetMappedEglFrame(struct ms_egl_frame *eglFrame,
                                             CUgraphicsResource resource, unsigned int index,
                                             unsigned int mipLevel)
{
    const CUresult result =
        MS_REAL(cuGraphicsResourceGetMappedEglFrame)(eglFrame, resource, index, mipLevel);
    if (result != CUDA_SUCCESS || eglFrame->type != MS_FRAME_PITCH || !ms_is_started())
        return result;
    for (unsigned i = 0; i < eglFrame->plane_count && i < MS_FRAME_PLANES; i++)
        ms_host_memory_add((uintptr_t)eglFrame->planes[i],
                           (size_t)eglFrame->pitch * eglFrame->height);
    return result;
}

/* A global variable that the host can write too. Outputs may be NULL. */
static CUresult has_added_global(CUresult result, const CUdeviceptr *address)
{
    if (result == CUDA_SUCCESS && address != NULL && ms_is_started() &&
        ms_pointer_is(*address, MS_MANAGED))
        ms_host_memory_add_reach(MS_REASON_GLOBALS);
    return result;
}

CUresult cuModuleGetGlobal_v2(CUdeviceptr *dptr, size_t *bytes, CUmodule hmod, const char *name)
{
    return has_added_global(MS_REAL(cuModuleGetGlobal_v2)(dptr, bytes, hmod, name), dptr);
}

CUresult cuLibraryGetGlobal(CUdeviceptr *dptr, size_t *bytes, CUlibrary library, const char *name)
{
    return has_added_global(MS_REAL(cuLibraryGetGlobal)(dptr, bytes, library, name), dptr);
}

CUresult cuLibraryGetManaged(CUdeviceptr *dptr, size_t *bytes, CUlibrary library, const char *name)
{
    const CUresult result = MS_REAL(cuLibraryGetManaged)(dptr, bytes, library, name);
    if (result == CUDA_SUCCESS && ms_is_started())
        ms_host_memory_add_reach(MS_REASON_GLOBALS);
    return result;
}
