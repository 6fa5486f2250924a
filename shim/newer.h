/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Declarations for rows of the entry table that an older cuda.h lacks; 12.4 is the oldest
 * supported. Sealed functions need only a name: their thunks (trampoline_*.S) pass on any
 * parameters. Functions with a body need the prototype and its types.
 */
#pragma once

#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>

#define MS_NEWER(symbol) CUresult symbol(void)
#define MS_NEWER_TWINS(symbol, ...) \
    CUresult symbol(__VA_ARGS__);   \
    CUresult symbol##_ptsz(__VA_ARGS__)

#if CUDA_VERSION < 12080
MS_NEWER(cuCheckpointProcessCheckpoint);
MS_NEWER(cuCheckpointProcessLock);
MS_NEWER(cuCheckpointProcessRestore);
MS_NEWER_TWINS(cuMemBatchDecompressAsync, void);
#endif

#if CUDA_VERSION < 13040
MS_NEWER(cuCheckpointOperationComplete);
#endif

#if CUDA_VERSION < 13050
MS_NEWER_TWINS(cuFabricCpyBatchAsync, void);
#endif

/* As in cuda.h of 12.5. */
#if CUDA_VERSION < 12050
typedef struct CUctxCreateParams_st CUctxCreateParams;
CUresult cuCtxCreate_v4(CUcontext *pctx, CUctxCreateParams *ctxCreateParams, unsigned int flags,
                        CUdevice dev);
#endif

/* As in cuda.h of 12.8. */
#if CUDA_VERSION < 12080
typedef enum {
    CU_MEMCPY_SRC_ACCESS_ORDER_STREAM = 1,
    CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL = 2,
    CU_MEMCPY_SRC_ACCESS_ORDER_ANY = 3,
} CUmemcpySrcAccessOrder;
typedef struct {
    CUmemcpySrcAccessOrder srcAccessOrder;
    CUmemLocation srcLocHint, dstLocHint;
    unsigned flags;
} CUmemcpyAttributes;
typedef enum {
    CU_TENSOR_MAP_IM2COL_WIDE_MODE_W = 0,
} CUtensorMapIm2ColWideMode;
typedef enum {
    CU_MEMCPY_OPERAND_TYPE_POINTER = 1,
    CU_MEMCPY_OPERAND_TYPE_ARRAY = 2,
} CUmemcpy3DOperandType;
typedef struct {
    CUmemcpy3DOperandType type;
    union {
        struct {
            CUdeviceptr ptr;
            size_t rowLength, layerHeight; /* in elements */
            CUmemLocation locHint;
        } ptr;
        struct {
            CUarray array;
            size_t offset[3];
        } array;
    } op;
} CUmemcpy3DOperand;
typedef struct {
    CUmemcpy3DOperand src, dst;
    struct {
        size_t width, height, depth;
    } extent;
    unsigned srcAccessOrder, flags;
} CUDA_MEMCPY3D_BATCH_OP;
#endif

#define MS_BATCH(symbol, ...)                                                                 \
    MS_NEWER_TWINS(symbol, CUdeviceptr *dsts, CUdeviceptr *srcs, size_t *sizes, size_t count, \
                   CUmemcpyAttributes *attrs, size_t *attrsIdxs, size_t numAttrs, __VA_ARGS__)
#define MS_BATCH_3D(symbol, ...) \
    MS_NEWER_TWINS(symbol, size_t numOps, CUDA_MEMCPY3D_BATCH_OP *opList, __VA_ARGS__)

#if CUDA_VERSION < 12080
MS_BATCH(cuMemcpyBatchAsync, size_t *failIdx, CUstream hStream);
MS_BATCH_3D(cuMemcpy3DBatchAsync, size_t *failIdx, unsigned long long flags, CUstream hStream);
CUresult cuTensorMapEncodeIm2colWide(
    CUtensorMap *tensorMap, CUtensorMapDataType tensorDataType, cuuint32_t tensorRank,
    void *globalAddress, const cuuint64_t *globalDim, const cuuint64_t *globalStrides,
    int pixelBoxLowerCornerWidth, int pixelBoxUpperCornerWidth, cuuint32_t channelsPerPixel,
    cuuint32_t pixelsPerColumn, const cuuint32_t *elementStrides, CUtensorMapInterleave interleave,
    CUtensorMapIm2ColWideMode mode, CUtensorMapSwizzle swizzle, CUtensorMapL2promotion l2Promotion,
    CUtensorMapFloatOOBfill oobFill);
#endif

#if CUDA_VERSION < 13000
MS_BATCH(cuMemcpyBatchAsync_v2, CUstream hStream);
MS_BATCH_3D(cuMemcpy3DBatchAsync_v2, unsigned long long flags, CUstream hStream);
#endif

#undef MS_BATCH_3D
#undef MS_BATCH

#if CUDA_VERSION < 13010
CUresult cuMulticastBindMem_v2(CUmemGenericAllocationHandle mcHandle, CUdevice dev, size_t mcOffset,
                               CUmemGenericAllocationHandle memHandle, size_t memOffset,
                               size_t size, unsigned long long flags);
CUresult cuMulticastBindAddr_v2(CUmemGenericAllocationHandle mcHandle, CUdevice dev,
                                size_t mcOffset, CUdeviceptr memptr, size_t size,
                                unsigned long long flags);
#endif

/* The first two functions are of 13.1 (cudaTypedefs.h), whose cuda.h does not declare them. */
#if CUDA_VERSION < 13020
typedef struct CUstreamCigCaptureParams_st CUstreamCigCaptureParams;
MS_NEWER_TWINS(cuLaunchHostFunc_v2, CUstream hStream, CUhostFn fn, void *userData,
               unsigned int syncMode);
MS_NEWER_TWINS(cuStreamBeginCaptureToCig, CUstream hStream,
               CUstreamCigCaptureParams *streamCigCaptureParams);
MS_NEWER_TWINS(cuMemcpyWithAttributesAsync, CUdeviceptr dst, CUdeviceptr src, size_t size,
               CUmemcpyAttributes *attr, CUstream hStream);
MS_NEWER_TWINS(cuMemcpy3DWithAttributesAsync, CUDA_MEMCPY3D_BATCH_OP *op, unsigned long long flags,
               CUstream hStream);
#endif

#if CUDA_VERSION < 13030
typedef cuuint32_t CUlogicalEndpointId;
typedef CUresult (*CUgraphRecaptureCallback)(void); /* passed on, never called */
CUresult cuLogicalEndpointBindAddr(CUlogicalEndpointId leId, CUdevice dev, cuuint64_t offset,
                                   void *ptr, cuuint64_t size, unsigned long long flags);
CUresult cuLogicalEndpointBindMem(CUlogicalEndpointId leId, CUdevice dev, cuuint64_t offset,
                                  CUmemGenericAllocationHandle memHandle, cuuint64_t memOffset,
                                  cuuint64_t size, unsigned long long flags);
MS_NEWER_TWINS(cuStreamBeginRecaptureToGraph, CUstream hStream, CUstreamCaptureMode mode,
               CUgraph hGraph, CUgraphRecaptureCallback callbackFunc, void *userData);
#endif

#if CUDA_VERSION < 13040
CUresult cuGraphAddNode_v3(CUgraphNode *phGraphNode, CUgraph hGraph,
                           const CUgraphNode *dependencies, const CUgraphEdgeData *dependencyData,
                           size_t numDependencies, CUgraphNodeParams *nodeParams);
CUresult cuGraphNodeSetParams_v2(CUgraphNode hNode, CUgraphNodeParams *nodeParams);
#endif

#undef MS_NEWER_TWINS
#undef MS_NEWER
