/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Descriptors that hide an address: tensor maps and texture objects over linear memory. A real
 * driver keeps their layout secret; these hold the address in a form that no scan for addresses
 * finds.
 */
#include "tools/simcuda/driver/kernel.h"
#include "tools/simcuda/driver/state.h"

#include <string.h>

enum { MAX_RANK = 5 };

/* The hidden address, and the words from there to the tensor's end: for elements of four bytes, and
 * rows that lie in order. */
static CUresult encode(CUtensorMap *map, void *address, uint32_t rank, uint32_t min_rank,
                       const cuuint64_t *dims, const cuuint64_t *strides)
{
    if (map == NULL || address == NULL || (uintptr_t)address % 16 != 0 || rank < min_rank ||
        rank > MAX_RANK || dims == NULL || (rank > 1 && strides == NULL))
        return CUDA_ERROR_INVALID_VALUE;
    memset(map, 0, sizeof(*map));
    map->opaque[0] = simcuda_hide((uintptr_t)address);
    map->opaque[1] = dims[0];
    for (uint32_t i = 1; i < rank; i++)
        map->opaque[1] += (dims[i] - 1) * (strides[i - 1] / 4);
    return CUDA_SUCCESS;
}

CUresult cuTensorMapEncodeTiled(CUtensorMap *tensorMap, CUtensorMapDataType tensorDataType,
                                cuuint32_t tensorRank, void *globalAddress,
                                const cuuint64_t *globalDim, const cuuint64_t *globalStrides,
                                const cuuint32_t *boxDim, const cuuint32_t *elementStrides,
                                CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                                CUtensorMapL2promotion l2Promotion, CUtensorMapFloatOOBfill oobFill)
{
    SIM_ENTER(cuTensorMapEncodeTiled);
    (void)tensorDataType;
    (void)boxDim;
    (void)elementStrides;
    (void)interleave;
    (void)swizzle;
    (void)l2Promotion;
    (void)oobFill;
    return encode(tensorMap, globalAddress, tensorRank, 1, globalDim, globalStrides);
}

CUresult cuTensorMapEncodeIm2col(CUtensorMap *tensorMap, CUtensorMapDataType tensorDataType,
                                 cuuint32_t tensorRank, void *globalAddress,
                                 const cuuint64_t *globalDim, const cuuint64_t *globalStrides,
                                 const int *pixelBoxLowerCorner, const int *pixelBoxUpperCorner,
                                 cuuint32_t channelsPerPixel, cuuint32_t pixelsPerColumn,
                                 const cuuint32_t *elementStrides, CUtensorMapInterleave interleave,
                                 CUtensorMapSwizzle swizzle, CUtensorMapL2promotion l2Promotion,
                                 CUtensorMapFloatOOBfill oobFill)
{
    SIM_ENTER(cuTensorMapEncodeIm2col);
    (void)tensorDataType;
    (void)pixelBoxLowerCorner;
    (void)pixelBoxUpperCorner;
    (void)channelsPerPixel;
    (void)pixelsPerColumn;
    (void)elementStrides;
    (void)interleave;
    (void)swizzle;
    (void)l2Promotion;
    (void)oobFill;
    return encode(tensorMap, globalAddress, tensorRank, 3, globalDim, globalStrides);
}

CUresult cuTensorMapEncodeIm2colWide(
    CUtensorMap *tensorMap, CUtensorMapDataType tensorDataType, cuuint32_t tensorRank,
    void *globalAddress, const cuuint64_t *globalDim, const cuuint64_t *globalStrides,
    int pixelBoxLowerCornerWidth, int pixelBoxUpperCornerWidth, cuuint32_t channelsPerPixel,
    cuuint32_t pixelsPerColumn, const cuuint32_t *elementStrides, CUtensorMapInterleave interleave,
    CUtensorMapIm2ColWideMode mode, CUtensorMapSwizzle swizzle, CUtensorMapL2promotion l2Promotion,
    CUtensorMapFloatOOBfill oobFill)
{
    SIM_ENTER(cuTensorMapEncodeIm2colWide);
    (void)tensorDataType;
    (void)pixelBoxLowerCornerWidth;
    (void)pixelBoxUpperCornerWidth;
    (void)channelsPerPixel;
    (void)pixelsPerColumn;
    (void)elementStrides;
    (void)interleave;
    (void)mode;
    (void)swizzle;
    (void)l2Promotion;
    (void)oobFill;
    return encode(tensorMap, globalAddress, tensorRank, 3, globalDim, globalStrides);
}

CUresult cuTensorMapReplaceAddress(CUtensorMap *tensorMap, void *globalAddress)
{
    SIM_ENTER(cuTensorMapReplaceAddress);
    if (tensorMap == NULL || globalAddress == NULL || (uintptr_t)globalAddress % 16 != 0)
        return CUDA_ERROR_INVALID_VALUE;
    tensorMap->opaque[0] = simcuda_hide((uintptr_t)globalAddress);
    return CUDA_SUCCESS;
}
