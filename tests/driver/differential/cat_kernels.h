/* SPDX-License-Identifier: Apache-2.0 */
/*
 * torch.cat's kernels (aten/src/ATen/native/cuda/Shape.cu) with the names and parameters that they
 * have in PyTorch's wheel: for dense inputs of 4-byte elements in 3 dimensions, the same in vectors
 * of 16 bytes when the dimensions behind the one of concatenation are folded into it (1 and 2 are
 * left), and for inputs with strides.
 */
#pragma once

#define CAT_CONTIG \
    _ZN2at6native40_GLOBAL__N__f1f992fe_8_Shape_cu_49f7391c26CatArrayBatchedCopy_contigINS1_10OpaqueTypeILj4EEEjLi3ELi128ELi1EEEvPT_NS1_25CatArrInputTensorMetadataIS5_T0_XT2_EXT3_EEENS1_16TensorSizeStrideIS8_Lj4EEEiS8_
#define CAT_VECTORIZED_1 \
    _ZN2at6native40_GLOBAL__N__f1f992fe_8_Shape_cu_49f7391c30CatArrayBatchedCopy_vectorizedINS1_10OpaqueTypeILj4EEEjLi1ELi128ELi1ELi16ELi4EEEvPcNS1_25CatArrInputTensorMetadataIT_T0_XT2_EXT3_EEENS1_16TensorSizeStrideIS8_Lj4EEEiS8_
#define CAT_VECTORIZED_2 \
    _ZN2at6native40_GLOBAL__N__f1f992fe_8_Shape_cu_49f7391c30CatArrayBatchedCopy_vectorizedINS1_10OpaqueTypeILj4EEEjLi2ELi128ELi1ELi16ELi4EEEvPcNS1_25CatArrInputTensorMetadataIT_T0_XT2_EXT3_EEENS1_16TensorSizeStrideIS8_Lj4EEEiS8_
#define CAT_STRIDED \
    _ZN2at6native40_GLOBAL__N__f1f992fe_8_Shape_cu_49f7391c19CatArrayBatchedCopyINS1_10OpaqueTypeILj4EEEjLi3ELi64ELi64EEEvPT_NS1_25CatArrInputTensorMetadataIS5_T0_XT2_EXT3_EEENS1_16TensorSizeStrideIS8_Lj4EEEiS8_

enum { CAT_DENSE_BYTES = 2720, CAT_STRIDED_BYTES = 3392, CAT_SHAPE_BYTES = 32 };

#define CAT_NAME(kernel) CAT_NAME_OF(kernel)
#define CAT_NAME_OF(kernel) #kernel
