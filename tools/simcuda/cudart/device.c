/* SPDX-License-Identifier: Apache-2.0 */
/* Devices, streams, events and graphs. */
#include "tools/simcuda/cudart/cudart.h"

#include <string.h>

cudaError_t cudaGetDeviceCount(int *count)
{
    RT_TRY(rt_enter_early());
    return rt_done(rt.cuDeviceGetCount(count));
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device)
{
    RT_TRY(rt_enter_early());
    return rt_done(rt.cuDeviceGetAttribute(value, (CUdevice_attribute)attribute, device));
}

/* Fields of cudaDeviceProp that are one attribute each. */
struct field {
    size_t offset;
    CUdevice_attribute attribute;
    bool is_size; /* a size_t, else an int */
};
#define INT_FIELD(name, attribute)                              \
    {                                                           \
        offsetof(struct cudaDeviceProp, name), attribute, false \
    }
#define SIZE_FIELD(name, attribute)                            \
    {                                                          \
        offsetof(struct cudaDeviceProp, name), attribute, true \
    }
static const struct field fields[] = {
    SIZE_FIELD(sharedMemPerBlock, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK),
    INT_FIELD(regsPerBlock, CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK),
    INT_FIELD(warpSize, CU_DEVICE_ATTRIBUTE_WARP_SIZE),
    SIZE_FIELD(memPitch, CU_DEVICE_ATTRIBUTE_MAX_PITCH),
    INT_FIELD(maxThreadsPerBlock, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK),
    INT_FIELD(maxThreadsDim[0], CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X),
    INT_FIELD(maxThreadsDim[1], CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y),
    INT_FIELD(maxThreadsDim[2], CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z),
    INT_FIELD(maxGridSize[0], CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X),
    INT_FIELD(maxGridSize[1], CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y),
    INT_FIELD(maxGridSize[2], CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z),
    SIZE_FIELD(totalConstMem, CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY),
    INT_FIELD(major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR),
    INT_FIELD(minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR),
    INT_FIELD(multiProcessorCount, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT),
    INT_FIELD(l2CacheSize, CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE),
    INT_FIELD(maxThreadsPerMultiProcessor, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR),
    SIZE_FIELD(sharedMemPerMultiprocessor,
               CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR),
    INT_FIELD(regsPerMultiprocessor, CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR),
    SIZE_FIELD(sharedMemPerBlockOptin, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN),
    INT_FIELD(unifiedAddressing, CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING),
    INT_FIELD(managedMemory, CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY),
    INT_FIELD(concurrentKernels, CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS),
    INT_FIELD(asyncEngineCount, CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT),
    INT_FIELD(integrated, CU_DEVICE_ATTRIBUTE_INTEGRATED),
    INT_FIELD(canMapHostMemory, CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY),
};

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *prop, int device)
{
    RT_TRY(rt_enter_early());
    memset(prop, 0, sizeof(*prop));
    RT_TRY(rt_done(rt.cuDeviceGetName(prop->name, sizeof(prop->name), device)));
    RT_TRY(rt_done(rt.cuDeviceGetUuid((CUuuid *)&prop->uuid, device)));
    RT_TRY(rt_done(rt.cuDeviceTotalMem(&prop->totalGlobalMem, device)));
    for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]); i++) {
        int value = 0;
        RT_TRY(rt_done(rt.cuDeviceGetAttribute(&value, fields[i].attribute, device)));
        if (fields[i].is_size)
            *(size_t *)((char *)prop + fields[i].offset) = (size_t)value;
        else
            *(int *)((char *)prop + fields[i].offset) = value;
    }
    return cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char *id, int length, int device)
{
    RT_TRY(rt_enter_early());
    return rt_done(rt.cuDeviceGetPCIBusId(id, length, device));
}

cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer)
{
    RT_TRY(rt_enter_early());
    return rt_done(rt.cuDeviceCanAccessPeer(can, device, peer));
}

cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned int flags)
{
    RT_TRY(rt_enter());
    CUcontext context;
    RT_TRY(rt_done(rt.cuDevicePrimaryCtxRetain(&context, peer)));
    return rt_done(rt.cuCtxEnablePeerAccess(context, flags));
}

cudaError_t cudaDeviceSynchronize(void)
{
    RT_RETURN(rt.cuCtxSynchronize());
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
    RT_RETURN(rt.cuCtxGetStreamPriorityRange(least, greatest));
}

cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t *pool, int device)
{
    RT_RETURN(rt.cuDeviceGetDefaultMemPool(pool, device));
}

cudaError_t cudaProfilerStart(void)
{
    RT_RETURN(rt.cuProfilerStart());
}

cudaError_t cudaProfilerStop(void)
{
    RT_RETURN(rt.cuProfilerStop());
}

/* --- streams */

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned int flags, int priority)
{
    RT_RETURN(rt.cuStreamCreateWithPriority(stream, flags, priority));
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned int flags)
{
    RT_RETURN(rt.cuStreamCreateWithPriority(stream, flags, 0));
}

cudaError_t cudaStreamCreate(cudaStream_t *stream)
{
    RT_RETURN(rt.cuStreamCreateWithPriority(stream, CU_STREAM_DEFAULT, 0));
}

cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    RT_RETURN(rt.cuStreamDestroy(stream));
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    RT_RETURN(rt.cuStreamSynchronize(stream));
}

/* Not ready is an answer, and not kept as an error by its callers. */
cudaError_t cudaStreamQuery(cudaStream_t stream)
{
    RT_RETURN(rt.cuStreamQuery(stream));
}

cudaError_t cudaStreamGetPriority(cudaStream_t stream, int *priority)
{
    RT_RETURN(rt.cuStreamGetPriority(stream, priority));
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned int flags)
{
    RT_RETURN(rt.cuStreamWaitEvent(stream, event, flags));
}

cudaError_t cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t callback, void *data,
                                  unsigned int flags)
{
    RT_RETURN(rt.cuStreamAddCallback(stream, (CUstreamCallback)callback, data, flags));
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void *data)
{
    RT_RETURN(rt.cuLaunchHostFunc(stream, function, data));
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode)
{
    RT_RETURN(rt.cuStreamBeginCapture(stream, (CUstreamCaptureMode)mode));
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph)
{
    RT_RETURN(rt.cuStreamEndCapture(stream, graph));
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *status)
{
    RT_RETURN(rt.cuStreamIsCapturing(stream, (CUstreamCaptureStatus *)status));
}

#if CUDART_VERSION < 13000
/* Nodes that a capture waits for have no edges in this ABI. */
cudaError_t cudaStreamGetCaptureInfo_v2(cudaStream_t stream, enum cudaStreamCaptureStatus *status,
                                        unsigned long long *id, cudaGraph_t *graph,
                                        const cudaGraphNode_t **nodes, size_t *count)
{
    RT_RETURN(rt.cuStreamGetCaptureInfo(stream, (CUstreamCaptureStatus *)status, (cuuint64_t *)id,
                                        graph, nodes, NULL, count));
}
#else
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, enum cudaStreamCaptureStatus *status,
                                     unsigned long long *id, cudaGraph_t *graph,
                                     const cudaGraphNode_t **nodes, const cudaGraphEdgeData **edges,
                                     size_t *count)
{
    RT_RETURN(rt.cuStreamGetCaptureInfo(stream, (CUstreamCaptureStatus *)status, (cuuint64_t *)id,
                                        graph, nodes, (const CUgraphEdgeData **)edges, count));
}
#endif

cudaError_t cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode *mode)
{
    RT_RETURN(rt.cuThreadExchangeStreamCaptureMode((CUstreamCaptureMode *)mode));
}

/* --- events */

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned int flags)
{
    RT_RETURN(rt.cuEventCreate(event, flags));
}

cudaError_t cudaEventCreate(cudaEvent_t *event)
{
    RT_RETURN(rt.cuEventCreate(event, CU_EVENT_DEFAULT));
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    RT_RETURN(rt.cuEventRecord(event, stream));
}

cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned int flags)
{
    RT_RETURN(rt.cuEventRecordWithFlags(event, stream, flags));
}

cudaError_t cudaEventQuery(cudaEvent_t event)
{
    RT_RETURN(rt.cuEventQuery(event));
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    RT_RETURN(rt.cuEventSynchronize(event));
}

cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t start, cudaEvent_t end)
{
    RT_RETURN(rt.cuEventElapsedTime(ms, start, end));
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    RT_RETURN(rt.cuEventDestroy(event));
}

/* --- graphs */

cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t *exec, cudaGraph_t graph,
                                          unsigned long long flags)
{
    RT_RETURN(rt.cuGraphInstantiateWithFlags(exec, graph, flags));
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t graph, unsigned long long flags)
{
    RT_RETURN(rt.cuGraphInstantiateWithFlags(exec, graph, flags));
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream)
{
    RT_RETURN(rt.cuGraphLaunch(exec, stream));
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec)
{
    RT_RETURN(rt.cuGraphExecDestroy(exec));
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
    RT_RETURN(rt.cuGraphDestroy(graph));
}

cudaError_t cudaUserObjectCreate(cudaUserObject_t *object, void *data, cudaHostFn_t destroy,
                                 unsigned int count, unsigned int flags)
{
    RT_RETURN(rt.cuUserObjectCreate(object, data, destroy, count, flags));
}

cudaError_t cudaUserObjectRelease(cudaUserObject_t object, unsigned int count)
{
    RT_RETURN(rt.cuUserObjectRelease(object, count));
}

cudaError_t cudaGraphRetainUserObject(cudaGraph_t graph, cudaUserObject_t object,
                                      unsigned int count, unsigned int flags)
{
    RT_RETURN(rt.cuGraphRetainUserObject(graph, object, count, flags));
}

cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t *nodes, size_t *count)
{
    RT_RETURN(rt.cuGraphGetNodes(graph, nodes, count));
}
