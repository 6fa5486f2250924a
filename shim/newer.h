/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the entry table has and an older cuda.h lacks; 12.4 is the oldest supported. Sealed
 * functions need only their name: their thunks (trampoline_*.S) pass on any parameters. Functions
 * with a body need their prototype and its types.
 */
#pragma once

#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>

#define MS_NEWER(symbol) CUresult symbol(void)

#if CUDA_VERSION < 12080
MS_NEWER(cuCheckpointProcessCheckpoint);
MS_NEWER(cuCheckpointProcessLock);
MS_NEWER(cuCheckpointProcessRestore);
MS_NEWER(cuMemBatchDecompressAsync);
MS_NEWER(cuMemBatchDecompressAsync_ptsz);
#endif

#undef MS_NEWER

/* As in cuda.h of 12.8; types whose content the shim does not read have no members. */
#if CUDA_VERSION < 12080
typedef struct CUmemcpyAttributes_st CUmemcpyAttributes;
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

#define MS_BATCH(symbol, ...)                                                          \
    CUresult symbol(CUdeviceptr *dsts, CUdeviceptr *srcs, size_t *sizes, size_t count, \
                    CUmemcpyAttributes *attrs, size_t *attrsIdxs, size_t numAttrs, __VA_ARGS__)
#define MS_BATCH_3D(symbol, ...) \
    CUresult symbol(size_t numOps, CUDA_MEMCPY3D_BATCH_OP *opList, __VA_ARGS__)

#if CUDA_VERSION < 12080
MS_BATCH(cuMemcpyBatchAsync, size_t *failIdx, CUstream hStream);
MS_BATCH(cuMemcpyBatchAsync_ptsz, size_t *failIdx, CUstream hStream);
MS_BATCH_3D(cuMemcpy3DBatchAsync, size_t *failIdx, unsigned long long flags, CUstream hStream);
MS_BATCH_3D(cuMemcpy3DBatchAsync_ptsz, size_t *failIdx, unsigned long long flags, CUstream hStream);
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
MS_BATCH(cuMemcpyBatchAsync_v2_ptsz, CUstream hStream);
MS_BATCH_3D(cuMemcpy3DBatchAsync_v2, unsigned long long flags, CUstream hStream);
MS_BATCH_3D(cuMemcpy3DBatchAsync_v2_ptsz, unsigned long long flags, CUstream hStream);
#endif

#undef MS_BATCH_3D
#undef MS_BATCH
