/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tensor maps: descriptors through which kernels read and write a tensor (TMA). A map hides the
 * address, so no launch shows the bytes that the map reaches. So these bytes come into memory when
 * the map is made, and stay there until the allocation is freed.
 *
 *     address                                     address + extent
 *     | dims[0] elements |    | dims[0] ... |  ...  | dims[0] elements |
 *     |<---- strides[0] ---->|                      \ the last row
 */
#pragma once

#include <stddef.h>

#include "runtime/driver/driver.h"

/* The program is about to make a map over a tensor: `rank` dimensions, and the strides of all but
 * the first. If the tensor's bytes do not end in the allocation, or are not known, the block that
 * the address points to counts instead. CUDA_SUCCESS: the call may be forwarded. */
CUresult ms_tensor_map_access(CUdeviceptr address, CUtensorMapDataType type, uint32_t rank,
                              const cuuint64_t *dims, const cuuint64_t *strides,
                              CUtensorMapInterleave interleave);

/*
 * For tensor_map.c and its unit test: the bytes from a map's address to the end of its tensor.
 * Types of less than a byte count as a byte. SIZE_MAX: not known, because the layout is
 * interleaved, the type is new, the arguments are invalid, or the sum overflows.
 */
size_t ms_tensor_map_extent(CUtensorMapDataType type, uint32_t rank, const cuuint64_t *dims,
                            const cuuint64_t *strides, CUtensorMapInterleave interleave);
