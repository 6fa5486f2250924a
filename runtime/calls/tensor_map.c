/* SPDX-License-Identifier: Apache-2.0 */

#include "runtime/calls/tensor_map.h"

#include "runtime/fill/access.h"
#include "runtime/memory/space.h"

static const unsigned char element_bytes[] = {
    [CU_TENSOR_MAP_DATA_TYPE_UINT8] = 1,
    [CU_TENSOR_MAP_DATA_TYPE_UINT16] = 2,
    [CU_TENSOR_MAP_DATA_TYPE_UINT32] = 4,
    [CU_TENSOR_MAP_DATA_TYPE_INT32] = 4,
    [CU_TENSOR_MAP_DATA_TYPE_UINT64] = 8,
    [CU_TENSOR_MAP_DATA_TYPE_INT64] = 8,
    [CU_TENSOR_MAP_DATA_TYPE_FLOAT16] = 2,
    [CU_TENSOR_MAP_DATA_TYPE_FLOAT32] = 4,
    [CU_TENSOR_MAP_DATA_TYPE_FLOAT64] = 8,
    [CU_TENSOR_MAP_DATA_TYPE_BFLOAT16] = 2,
    [CU_TENSOR_MAP_DATA_TYPE_FLOAT32_FTZ] = 4,
    [CU_TENSOR_MAP_DATA_TYPE_TFLOAT32] = 4,
    [CU_TENSOR_MAP_DATA_TYPE_TFLOAT32_FTZ] = 4,
    [13] = 1, /* of CUDA 12.8: 16U4_ALIGN8B, 16U4_ALIGN16B, 16U6_ALIGN16B */
    [14] = 1,
    [15] = 1,
};

size_t ms_tensor_map_extent(CUtensorMapDataType type, uint32_t rank, const cuuint64_t *dims,
                            const cuuint64_t *strides, CUtensorMapInterleave interleave)
{
    enum { MAX_RANK = 5 };
    size_t extent, to_last;
    if ((size_t)type >= sizeof(element_bytes) || rank == 0 || rank > MAX_RANK || dims == NULL ||
        (rank > 1 && strides == NULL) || interleave != CU_TENSOR_MAP_INTERLEAVE_NONE ||
        __builtin_mul_overflow(dims[0], element_bytes[type], &extent))
        return SIZE_MAX;
    for (uint32_t i = 1; i < rank; i++) {
        if (dims[i] == 0 || __builtin_mul_overflow(dims[i] - 1, strides[i - 1], &to_last) ||
            __builtin_add_overflow(extent, to_last, &extent))
            return SIZE_MAX;
    }
    return extent;
}

static bool ends_in_allocation(CUdeviceptr address, size_t bytes)
{
    struct ms_allocation_facts facts;
    return ms_space_look_up(address, &facts) &&
           bytes <= facts.bytes - (size_t)(address - facts.address);
}

CUresult ms_tensor_map_access(CUdeviceptr address, CUtensorMapDataType type, uint32_t rank,
                              const cuuint64_t *dims, const cuuint64_t *strides,
                              CUtensorMapInterleave interleave)
{
    const size_t bytes = ms_tensor_map_extent(type, rank, dims, strides, interleave);
    struct ms_allocation_facts block;
    if (ends_in_allocation(address, bytes))
        return ms_access(address, bytes, MS_NEED_DESCRIBE);
    CUresult result = CUDA_SUCCESS;
    bool is_found = ms_space_find_pointed(address, &block);
    if (!is_found) {
        /* Either nothing is deferred, and this access pins the memory; or the address lies in no
         * block, and means the whole allocation from now on, because the program uses it. */
        result = ms_access(address, 1, MS_NEED_DESCRIBE);
        is_found = result == CUDA_SUCCESS && ms_space_find_pointed(address, &block);
    }
    return is_found ? ms_access(block.address, block.bytes, MS_NEED_DESCRIBE) : result;
}
