/* SPDX-License-Identifier: Apache-2.0 */
/*
 * torch.cat's kernel for dense inputs (aten/src/ATen/native/cuda/Shape.cu), with its name and its
 * parameters: (T *out, CatArrInputTensorMetadata, TensorSizeStride of out, int dimension, uint32
 * stride of it), 128 inputs at most.
 */
#pragma once

#include <cuda.h>
#include <stdbool.h>
#include <stdint.h>

#define TORCH_CAT \
    _ZN2at6native40_GLOBAL__N__a1b2c3d4_8_Shape_cu_49f7391c26CatArrayBatchedCopy_contigINS1_10OpaqueTypeILj4EEEjLi1ELi128ELi1EEEvPT_NS1_25CatArrInputTensorMetadataIS5_T0_XT2_EXT3_EEENS1_16TensorSizeStrideIS8_Lj4EEEiS8_

enum { CAT_INPUTS = 128, CAT_DIMS = 4 };

struct cat_shape {
    uint32_t size[CAT_DIMS], stride[CAT_DIMS];
};

struct cat_inputs {
    CUdeviceptr input[CAT_INPUTS];
    uint32_t offset[CAT_INPUTS], size[CAT_INPUTS], elements[CAT_INPUTS];
    bool is_contiguous[CAT_INPUTS];
    struct cat_shape strided; /* of inputs that are not dense */
};
