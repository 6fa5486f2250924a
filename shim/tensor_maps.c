/* SPDX-License-Identifier: Apache-2.0 */
/* Tensor maps, which hide the addresses that kernels reach through them. */
#include "runtime/calls/tensor_map.h"

#include "runtime/driver/flags.h"
#include "runtime/state/caller.h"
#include "shim/newer.h"
#include "shim/quick.h"

/* Materialises the bytes that a map with these arguments reaches. */
static CUresult prepare(CUtensorMapDataType type, uint32_t rank, void *address,
                        const cuuint64_t *dims, const cuuint64_t *strides,
                        CUtensorMapInterleave interleave)
{
    return ms_owns_any() ? ms_tensor_map_access((CUdeviceptr)(uintptr_t)address, type, rank, dims,
                                                strides, interleave)
                         : CUDA_SUCCESS;
}

MS_PREPARED(cuTensorMapEncodeTiled,
            prepare(tensorDataType, tensorRank, globalAddress, globalDim, globalStrides,
                    interleave),
            (CUtensorMap * tensorMap, CUtensorMapDataType tensorDataType, cuuint32_t tensorRank,
             void *globalAddress, const cuuint64_t *globalDim, const cuuint64_t *globalStrides,
             const cuuint32_t *boxDim, const cuuint32_t *elementStrides,
             CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
             CUtensorMapL2promotion l2Promotion, CUtensorMapFloatOOBfill oobFill),
            (tensorMap, tensorDataType, tensorRank, globalAddress, globalDim, globalStrides, boxDim,
             elementStrides, interleave, swizzle, l2Promotion, oobFill))

MS_PREPARED(cuTensorMapEncodeIm2col,
            prepare(tensorDataType, tensorRank, globalAddress, globalDim, globalStrides,
                    interleave),
            (CUtensorMap * tensorMap, CUtensorMapDataType tensorDataType, cuuint32_t tensorRank,
             void *globalAddress, const cuuint64_t *globalDim, const cuuint64_t *globalStrides,
             const int *pixelBoxLowerCorner, const int *pixelBoxUpperCorner,
             cuuint32_t channelsPerPixel, cuuint32_t pixelsPerColumn,
             const cuuint32_t *elementStrides, CUtensorMapInterleave interleave,
             CUtensorMapSwizzle swizzle, CUtensorMapL2promotion l2Promotion,
             CUtensorMapFloatOOBfill oobFill),
            (tensorMap, tensorDataType, tensorRank, globalAddress, globalDim, globalStrides,
             pixelBoxLowerCorner, pixelBoxUpperCorner, channelsPerPixel, pixelsPerColumn,
             elementStrides, interleave, swizzle, l2Promotion, oobFill))

MS_PREPARED(cuTensorMapEncodeIm2colWide,
            prepare(tensorDataType, tensorRank, globalAddress, globalDim, globalStrides,
                    interleave),
            (CUtensorMap * tensorMap, CUtensorMapDataType tensorDataType, cuuint32_t tensorRank,
             void *globalAddress, const cuuint64_t *globalDim, const cuuint64_t *globalStrides,
             int pixelBoxLowerCornerWidth, int pixelBoxUpperCornerWidth,
             cuuint32_t channelsPerPixel, cuuint32_t pixelsPerColumn,
             const cuuint32_t *elementStrides, CUtensorMapInterleave interleave,
             CUtensorMapIm2ColWideMode mode, CUtensorMapSwizzle swizzle,
             CUtensorMapL2promotion l2Promotion, CUtensorMapFloatOOBfill oobFill),
            (tensorMap, tensorDataType, tensorRank, globalAddress, globalDim, globalStrides,
             pixelBoxLowerCornerWidth, pixelBoxUpperCornerWidth, channelsPerPixel, pixelsPerColumn,
             elementStrides, interleave, mode, swizzle, l2Promotion, oobFill))

/* The map keeps the extent of its old tensor, which the driver does not tell, so the rank is 0. */
MS_PREPARED(cuTensorMapReplaceAddress, prepare(0, 0, globalAddress, NULL, NULL, 0),
            (CUtensorMap * tensorMap, void *globalAddress), (tensorMap, globalAddress))
