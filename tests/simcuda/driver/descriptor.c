/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Descriptors that hide an address: tensor maps and texture objects over linear memory. What a real
 * one looks like is the driver's secret; here the address is there in a form that no scan for
 * addresses finds.
 */
#include "tests/simcuda/driver/kernel.h"
#include "tests/simcuda/driver/state.h"

#include <string.h>

enum { MAX_RANK = 5 };

static CUresult encode(CUtensorMap *map, void *address, uint32_t rank)
{
    if (map == NULL || address == NULL || (uintptr_t)address % 16 != 0 || rank == 0 ||
        rank > MAX_RANK)
        return CUDA_ERROR_INVALID_VALUE;
    memset(map, 0, sizeof(*map));
    map->opaque[0] = simcuda_hide((uintptr_t)address);
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
    (void)globalDim;
    (void)globalStrides;
    (void)boxDim;
    (void)elementStrides;
    (void)interleave;
    (void)swizzle;
    (void)l2Promotion;
    (void)oobFill;
    return encode(tensorMap, globalAddress, tensorRank);
}

CUresult cuTensorMapReplaceAddress(CUtensorMap *tensorMap, void *globalAddress)
{
    SIM_ENTER(cuTensorMapReplaceAddress);
    return encode(tensorMap, globalAddress, 1);
}

CUresult cuTexObjectCreate(CUtexObject *pTexObject, const CUDA_RESOURCE_DESC *pResDesc,
                           const CUDA_TEXTURE_DESC *pTexDesc,
                           const CUDA_RESOURCE_VIEW_DESC *pResViewDesc)
{
    SIM_ENTER(cuTexObjectCreate);
    if (pTexObject == NULL || pResDesc == NULL || pTexDesc == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (pResDesc->resType != CU_RESOURCE_TYPE_LINEAR || pResViewDesc != NULL)
        return CUDA_ERROR_NOT_SUPPORTED;
    *pTexObject = simcuda_hide(pResDesc->res.linear.devPtr);
    return CUDA_SUCCESS;
}

CUresult cuTexObjectDestroy(CUtexObject texObject)
{
    SIM_ENTER(cuTexObjectDestroy);
    (void)texObject;
    return CUDA_SUCCESS;
}
