/* SPDX-License-Identifier: Apache-2.0 */
/* Functions of drivers of CUDA 13.1 to 13.5 that are simulated, for cuda.h of 13.0. Each is as
 * cuda.h of 13.5 has it. */
#pragma once

#ifndef __CUDA_API_VERSION_INTERNAL
#define __CUDA_API_VERSION_INTERNAL
#endif
#include <cuda.h>

#define SIM_NEWER __attribute__((visibility("default")))

#if CUDA_VERSION < 13010
SIM_NEWER CUresult cuMulticastBindMem_v2(CUmemGenericAllocationHandle mcHandle, CUdevice dev,
                                         size_t mcOffset, CUmemGenericAllocationHandle memHandle,
                                         size_t memOffset, size_t size, unsigned long long flags);
SIM_NEWER CUresult cuMulticastBindAddr_v2(CUmemGenericAllocationHandle mcHandle, CUdevice dev,
                                          size_t mcOffset, CUdeviceptr memptr, size_t size,
                                          unsigned long long flags);
#endif

#if CUDA_VERSION < 13020
#define TWINS(symbol, ...)                  \
    SIM_NEWER CUresult symbol(__VA_ARGS__); \
    SIM_NEWER CUresult symbol##_ptsz(__VA_ARGS__)
TWINS(cuLaunchHostFunc_v2, CUstream hStream, CUhostFn fn, void *userData, unsigned int syncMode);
TWINS(cuMemcpyWithAttributesAsync, CUdeviceptr dst, CUdeviceptr src, size_t size,
      CUmemcpyAttributes *attr, CUstream hStream);
TWINS(cuMemcpy3DWithAttributesAsync, CUDA_MEMCPY3D_BATCH_OP *op, unsigned long long flags,
      CUstream hStream);
#undef TWINS
#endif

#if CUDA_VERSION < 13030
typedef cuuint32_t CUlogicalEndpointId;
typedef CUresult (*CUgraphRecaptureCallback)(void);
SIM_NEWER CUresult cuLogicalEndpointBindAddr(CUlogicalEndpointId leId, CUdevice dev,
                                             cuuint64_t offset, void *ptr, cuuint64_t size,
                                             unsigned long long flags);
SIM_NEWER CUresult cuLogicalEndpointBindMem(CUlogicalEndpointId leId, CUdevice dev,
                                            cuuint64_t offset,
                                            CUmemGenericAllocationHandle memHandle,
                                            cuuint64_t memOffset, cuuint64_t size,
                                            unsigned long long flags);
SIM_NEWER CUresult cuStreamBeginRecaptureToGraph(CUstream hStream, CUstreamCaptureMode mode,
                                                 CUgraph hGraph,
                                                 CUgraphRecaptureCallback callbackFunc,
                                                 void *userData);
SIM_NEWER CUresult cuStreamBeginRecaptureToGraph_ptsz(CUstream hStream, CUstreamCaptureMode mode,
                                                      CUgraph hGraph,
                                                      CUgraphRecaptureCallback callbackFunc,
                                                      void *userData);
#endif

#if CUDA_VERSION < 13040
SIM_NEWER CUresult cuGraphAddNode_v3(CUgraphNode *phGraphNode, CUgraph hGraph,
                                     const CUgraphNode *dependencies,
                                     const CUgraphEdgeData *dependencyData, size_t numDependencies,
                                     CUgraphNodeParams *nodeParams);
SIM_NEWER CUresult cuGraphNodeSetParams_v2(CUgraphNode hNode, CUgraphNodeParams *nodeParams);
#endif
#undef SIM_NEWER
