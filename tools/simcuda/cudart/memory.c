/* SPDX-License-Identifier: Apache-2.0 */
/* Device and host memory, copies and sets. */
#include "tools/simcuda/cudart/cudart.h"

static CUdeviceptr address_of(const void *pointer)
{
    return (CUdeviceptr)(uintptr_t)pointer;
}

cudaError_t cudaMalloc(void **pointer, size_t bytes)
{
    RT_RETURN(bytes == 0 ? (*pointer = NULL, CUDA_SUCCESS)
                         : rt.cuMemAlloc((CUdeviceptr *)pointer, bytes));
}

cudaError_t cudaFree(void *pointer)
{
    RT_RETURN(pointer == NULL ? CUDA_SUCCESS : rt.cuMemFree(address_of(pointer)));
}

cudaError_t cudaMallocManaged(void **pointer, size_t bytes, unsigned int flags)
{
    RT_RETURN(rt.cuMemAllocManaged((CUdeviceptr *)pointer, bytes, flags));
}

/* As CUDA 13 has it. */
cudaError_t cudaMemPrefetchAsync(const void *pointer, size_t bytes, struct cudaMemLocation to,
                                 unsigned int flags, cudaStream_t stream)
{
    const CUmemLocation location = {.type = (CUmemLocationType)to.type, .id = to.id};
    RT_RETURN(rt.cuMemPrefetchAsync(address_of(pointer), bytes, location, flags, stream));
}

cudaError_t cudaMemGetInfo(size_t *free, size_t *total)
{
    RT_RETURN(rt.cuMemGetInfo(free, total));
}

cudaError_t cudaHostAlloc(void **pointer, size_t bytes, unsigned int flags)
{
    RT_RETURN(rt.cuMemHostAlloc(pointer, bytes, flags));
}

cudaError_t cudaMallocHost(void **pointer, size_t bytes)
{
    RT_RETURN(rt.cuMemHostAlloc(pointer, bytes, CU_MEMHOSTALLOC_PORTABLE));
}

cudaError_t cudaFreeHost(void *pointer)
{
    RT_RETURN(pointer == NULL ? CUDA_SUCCESS : rt.cuMemFreeHost(pointer));
}

cudaError_t cudaHostRegister(void *pointer, size_t bytes, unsigned int flags)
{
    RT_RETURN(rt.cuMemHostRegister(pointer, bytes, flags));
}

cudaError_t cudaHostGetDevicePointer(void **on_device, void *pointer, unsigned int flags)
{
    RT_RETURN(rt.cuMemHostGetDevicePointer((CUdeviceptr *)on_device, pointer, flags));
}

cudaError_t cudaHostUnregister(void *pointer)
{
    RT_RETURN(rt.cuMemHostUnregister(pointer));
}

cudaError_t cudaMallocAsync(void **pointer, size_t bytes, cudaStream_t stream)
{
    RT_RETURN(rt.cuMemAllocAsync((CUdeviceptr *)pointer, bytes, stream));
}

cudaError_t cudaFreeAsync(void *pointer, cudaStream_t stream)
{
    RT_RETURN(rt.cuMemFreeAsync(address_of(pointer), stream));
}

cudaError_t cudaDeviceGetGraphMemAttribute(int device, enum cudaGraphMemAttributeType attribute,
                                           void *value)
{
    RT_RETURN(rt.cuDeviceGetGraphMemAttribute(device, (CUgraphMem_attribute)attribute, value));
}

cudaError_t cudaDeviceSetGraphMemAttribute(int device, enum cudaGraphMemAttributeType attribute,
                                           void *value)
{
    RT_RETURN(rt.cuDeviceSetGraphMemAttribute(device, (CUgraphMem_attribute)attribute, value));
}

cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t pool, enum cudaMemPoolAttr attribute, void *value)
{
    RT_RETURN(rt.cuMemPoolSetAttribute(pool, (CUmemPool_attribute)attribute, value));
}

cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t pool, enum cudaMemPoolAttr attribute, void *value)
{
    RT_RETURN(rt.cuMemPoolGetAttribute(pool, (CUmemPool_attribute)attribute, value));
}

cudaError_t cudaMemPoolTrimTo(cudaMemPool_t pool, size_t bytes)
{
    RT_RETURN(rt.cuMemPoolTrimTo(pool, bytes));
}

cudaError_t cudaMemPoolSetAccess(cudaMemPool_t pool, const struct cudaMemAccessDesc *access,
                                 size_t count)
{
    RT_RETURN(rt.cuMemPoolSetAccess(pool, (const CUmemAccessDesc *)access, count));
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind)
{
    RT_TRY(rt_enter());
    if (bytes == 0)
        return cudaSuccess;
    switch (kind) {
    case cudaMemcpyHostToDevice:
        return rt_done(rt.cuMemcpyHtoD(address_of(to), from, bytes));
    case cudaMemcpyDeviceToHost:
        return rt_done(rt.cuMemcpyDtoH(to, address_of(from), bytes));
    case cudaMemcpyDeviceToDevice:
        return rt_done(rt.cuMemcpyDtoD(address_of(to), address_of(from), bytes));
    default:
        return rt_done(rt.cuMemcpy(address_of(to), address_of(from), bytes));
    }
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind,
                            cudaStream_t stream)
{
    RT_TRY(rt_enter());
    if (bytes == 0)
        return cudaSuccess;
    switch (kind) {
    case cudaMemcpyHostToDevice:
        return rt_done(rt.cuMemcpyHtoDAsync(address_of(to), from, bytes, stream));
    case cudaMemcpyDeviceToHost:
        return rt_done(rt.cuMemcpyDtoHAsync(to, address_of(from), bytes, stream));
    case cudaMemcpyDeviceToDevice:
        return rt_done(rt.cuMemcpyDtoDAsync(address_of(to), address_of(from), bytes, stream));
    default:
        return rt_done(rt.cuMemcpyAsync(address_of(to), address_of(from), bytes, stream));
    }
}

static CUmemorytype type_of(enum cudaMemcpyKind kind, bool is_source)
{
    if (kind == cudaMemcpyDefault)
        return CU_MEMORYTYPE_UNIFIED;
    const bool is_host =
        is_source ? kind == cudaMemcpyHostToDevice : kind == cudaMemcpyDeviceToHost;
    return is_host || kind == cudaMemcpyHostToHost ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
}

cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch,
                              size_t width, size_t height, enum cudaMemcpyKind kind,
                              cudaStream_t stream)
{
    RT_TRY(rt_enter());
    const CUDA_MEMCPY2D copy = {.srcMemoryType = type_of(kind, true),
                                .srcHost = from,
                                .srcDevice = address_of(from),
                                .srcPitch = from_pitch,
                                .dstMemoryType = type_of(kind, false),
                                .dstHost = to,
                                .dstDevice = address_of(to),
                                .dstPitch = to_pitch,
                                .WidthInBytes = width,
                                .Height = height};
    return rt_done(rt.cuMemcpy2DAsync(&copy, stream));
}

cudaError_t cudaMemcpyPeerAsync(void *to, int to_device, const void *from, int from_device,
                                size_t bytes, cudaStream_t stream)
{
    RT_TRY(rt_enter());
    CUcontext to_context, from_context;
    RT_TRY(rt_done(rt.cuDevicePrimaryCtxRetain(&to_context, to_device)));
    RT_TRY(rt_done(rt.cuDevicePrimaryCtxRetain(&from_context, from_device)));
    return rt_done(rt.cuMemcpyPeerAsync(address_of(to), to_context, address_of(from), from_context,
                                        bytes, stream));
}

cudaError_t cudaMemset(void *pointer, int value, size_t bytes)
{
    RT_RETURN(rt.cuMemsetD8(address_of(pointer), (unsigned char)value, bytes));
}

cudaError_t cudaMemsetAsync(void *pointer, int value, size_t bytes, cudaStream_t stream)
{
    RT_RETURN(rt.cuMemsetD8Async(address_of(pointer), (unsigned char)value, bytes, stream));
}

static enum cudaMemoryType kind_of(unsigned type, int is_managed)
{
    if (is_managed)
        return cudaMemoryTypeManaged;
    return type == CU_MEMORYTYPE_HOST     ? cudaMemoryTypeHost
           : type == CU_MEMORYTYPE_DEVICE ? cudaMemoryTypeDevice
                                          : cudaMemoryTypeUnregistered;
}

/* Memory that the driver does not know is an answer too. */
cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *attributes, const void *pointer)
{
    RT_TRY(rt_enter());
    unsigned type = 0;
    int is_managed = 0, ordinal = -2;
    CUdeviceptr on_device = 0;
    void *on_host = NULL;
    CUpointer_attribute asked[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                   CU_POINTER_ATTRIBUTE_IS_MANAGED,
                                   CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
                                   CU_POINTER_ATTRIBUTE_DEVICE_POINTER,
                                   CU_POINTER_ATTRIBUTE_HOST_POINTER};
    void *answers[] = {&type, &is_managed, &ordinal, &on_device, &on_host};
    RT_TRY(rt_done(rt.cuPointerGetAttributes(5, asked, answers, address_of(pointer))));
    *attributes = (struct cudaPointerAttributes){.type = kind_of(type, is_managed),
                                                 .device = ordinal,
                                                 .devicePointer = (void *)(uintptr_t)on_device,
                                                 .hostPointer = on_host};
    if (attributes->type == cudaMemoryTypeUnregistered)
        attributes->hostPointer = (void *)(uintptr_t)pointer;
    return cudaSuccess;
}

cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t *handle, void *pointer)
{
    RT_RETURN(rt.cuIpcGetMemHandle((CUipcMemHandle *)handle, address_of(pointer)));
}

cudaError_t cudaIpcOpenMemHandle(void **pointer, cudaIpcMemHandle_t handle, unsigned int flags)
{
    RT_TRY(rt_enter());
    CUipcMemHandle same;
    __builtin_memcpy(&same, &handle, sizeof(same));
    return rt_done(rt.cuIpcOpenMemHandle((CUdeviceptr *)pointer, same, flags));
}

cudaError_t cudaIpcCloseMemHandle(void *pointer)
{
    RT_RETURN(rt.cuIpcCloseMemHandle(address_of(pointer)));
}

cudaError_t cudaIpcGetEventHandle(cudaIpcEventHandle_t *handle, cudaEvent_t event)
{
    RT_RETURN(rt.cuIpcGetEventHandle((CUipcEventHandle *)handle, event));
}

cudaError_t cudaIpcOpenEventHandle(cudaEvent_t *event, cudaIpcEventHandle_t handle)
{
    RT_TRY(rt_enter());
    CUipcEventHandle same;
    __builtin_memcpy(&same, &handle, sizeof(same));
    return rt_done(rt.cuIpcOpenEventHandle(event, same));
}
