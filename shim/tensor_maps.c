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

/* An entry with the parameters that all of them have, and with more. */
#define ENCODE(symbol, more_parameters, more)                                                     \
    MS_PREPARED(                                                                                  \
        symbol,                                                                                   \
        prepare(tensorDataType, tensorRank, globalAddress, globalDim, globalStrides, interleave), \
        (CUtensorMap * tensorMap, CUtensorMapDataType tensorDataType, cuuint32_t tensorRank,      \
         void *globalAddress, const cuuint64_t *globalDim, const cuuint64_t *globalStrides,       \
         MS_UNPACK more_parameters, CUtensorMapSwizzle swizzle,                                   \
         CUtensorMapL2promotion l2Promotion, CUtensorMapFloatOOBfill oobFill),                    \
        (tensorMap, tensorDataType, tensorRank, globalAddress, globalDim, globalStrides,          \
         MS_UNPACK more, swizzle, l2Promotion, oobFill))
ENCODE(cuTensorMapEncodeTiled,
       (const cuuint32_t *boxDim, const cuuint32_t *elementStrides,
        CUtensorMapInterleave interleave),
       (boxDim, elementStrides, interleave))
ENCODE(cuTensorMapEncodeIm2col,
       (const int *pixelBoxLowerCorner, const int *pixelBoxUpperCorner, cuuint32_t channelsPerPixel,
        cuuint32_t pixelsPerColumn, const cuuint32_t *elementStrides,
        CUtensorMapInterleave interleave),
       (pixelBoxLowerCorner, pixelBoxUpperCorner, channelsPerPixel, pixelsPerColumn, elementStrides,
        interleave))
ENCODE(cuTensorMapEncodeIm2colWide,
       (int pixelBoxLowerCornerWidth, int pixelBoxUpperCornerWidth, cuuint32_t channelsPerPixel,
        cuuint32_t pixelsPerColumn, const cuuint32_t *elementStrides,
        CUtensorMapInterleave interleave, CUtensorMapIm2ColWideMode mode),
       (pixelBoxLowerCornerWidth, pixelBoxUpperCornerWidth, channelsPerPixel, pixelsPerColumn,
        elementStrides, interleave, mode))

/* The map keeps the extent of its old tensor, which the driver does not tell, so the rank is 0. */
MS_PREPARED(cuTensorMapReplaceAddress, prepare(0, 0, globalAddress, NULL, NULL, 0),
            (CUtensorMap * tensorMap, void *globalAddress), (tensorMap, globalAddress))
