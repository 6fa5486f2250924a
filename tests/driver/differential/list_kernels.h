/* SPDX-License-Identifier: Apache-2.0 */
/*
 * PyTorch's loops over lists of tensors (MultiTensorApply.cuh, with up to 4 KiB of parameters) and
 * over parts of tensors (CUDALoops.cuh), with the names that they have in its wheel.
 */
#pragma once

#include <cuda.h>
#include <stdint.h>

#include "tools/simcuda/kernels/torch_kernels.h"

/* (struct listed, functor, multiplies, float operand) */
#define LIST_SCALE \
    _ZN2at6native57_GLOBAL__N__7e105b8f_24_ForeachBinaryOpScalar_cu_86b9896c25multi_tensor_apply_kernelINS1_18TensorListMetadataILi1EEENS1_21BinaryOpScalarFunctorIfLi1ELi1ELi0EEEJSt10multipliesIfEfEEEvT_T0_DpT1_

/* (struct listed_pairs, functor, copy) */
#define LIST_COPY \
    _ZN2at6native55_GLOBAL__N__f86471ef_22_ForeachBinaryOpList_cu_a911ec4325multi_tensor_apply_kernelINS1_18TensorListMetadataILi2EEENS1_14UnaryOpFunctorIfLi2ELi1ELi1EEEJNS0_4CopyIffEEEEEvT_T0_DpT1_

/* (int numel, struct part_fill) and (int numel, struct part_scale) */
#define PART_FILL \
    _ZN2at6native18elementwise_kernelILi128ELi2EZNS0_22gpu_kernel_impl_nocastINS0_11FillFunctorIfEEEEvRNS_18TensorIteratorBaseERKT_EUliE_EEviT1_
#define PART_SCALE \
    _ZN2at6native18elementwise_kernelILi128ELi2EZNS0_22gpu_kernel_impl_nocastINS0_13AUnaryFunctorIfffNS0_15binary_internal10MulFunctorIfEEEEEEvRNS_18TensorIteratorBaseERKT_EUliE_EEviT1_

#define KERNEL_NAME(kernel) KERNEL_NAME_OF(kernel)
#define KERNEL_NAME_OF(kernel) #kernel

enum { LISTED = 110, LISTED_PAIRS = 64, LIST_BLOCKS = 320, LIST_CHUNK = 65536 };

struct listed {
    CUdeviceptr addresses[LISTED];
    int64_t numel[LISTED];
    uint8_t block_to_tensor[LIST_BLOCKS];
    int32_t block_to_chunk[LIST_BLOCKS], start_tensor;
};

struct listed_pairs {
    CUdeviceptr addresses[2][LISTED_PAIRS]; /* from, to */
    int64_t numel[LISTED_PAIRS];
    uint8_t block_to_tensor[LIST_BLOCKS];
    int32_t block_to_chunk[LIST_BLOCKS], start_tensor;
};

struct part_fill {
    struct torch_offsets offsets;
    int padding;
    CUdeviceptr out;
    float value, behind[3];
};

struct part_scale {
    struct torch_offsets2 offsets;
    CUdeviceptr data[2]; /* out, in */
    float operand, behind[3];
};
