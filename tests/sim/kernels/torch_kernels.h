/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kernels with the names and the parameters of those that PyTorch initialises tensors with
 * (aten/src/ATen/native/cuda: CUDALoops.cuh, DistributionTemplates.h, FillKernel.cu, RangeFactories.cu):
 * names as identifiers, and parameters as structs where they are passed as one.
 */
#ifndef METASHARD_TESTS_SIM_KERNELS_TORCH_KERNELS_H
#define METASHARD_TESTS_SIM_KERNELS_TORCH_KERNELS_H

#include <cuda.h>
#include <stdbool.h>
#include <stdint.h>

/* (int numel, float value, array<char *, 1>) and (int numel, int64_t value, array<char *, 1>) */
#define TORCH_FILL \
    _ZN2at6native29vectorized_elementwise_kernelILi4ENS0_11FillFunctorIfEESt5arrayIPcLm1EEEEviT0_T1_
#define TORCH_FILL_LONG \
    _ZN2at6native29vectorized_elementwise_kernelILi2ENS0_11FillFunctorIlEESt5arrayIPcLm1EEEEviT0_T1_

/* (int64_t numel, torch_philox, char dist, torch_transform or torch_strided_transform) */
#define TORCH_UNIFORM \
    _ZN2at6native12_GLOBAL__N_143distribution_elementwise_grid_stride_kernelIfLi4EZNS0_9templates4cuda21uniform_and_transformIffPNS_17CUDAGeneratorImplEEEvRNS_18TensorIteratorBaseET1_T2_EUlfE_EEvlNS_15PhiloxCudaStateET1_T2_
#define TORCH_NORMAL \
    _ZN2at6native12_GLOBAL__N_143distribution_elementwise_grid_stride_kernelIfLi4EZNS0_9templates4cuda20normal_and_transformIffPNS_17CUDAGeneratorImplEEEvRNS_18TensorIteratorBaseET1_T2_EUlfE_EEvlNS_15PhiloxCudaStateET1_T2_
#define TORCH_UNIFORM_STRIDED \
    _ZN2at6native12_GLOBAL__N_143distribution_elementwise_grid_stride_kernelIfLi4EZNS0_9templates4cuda21uniform_and_transformIffPNS_17CUDAGeneratorImplEEEvRNS_18TensorIteratorBaseET1_T2_EUlfE0_EEvlNS_15PhiloxCudaStateET1_T2_

/* (int numel, float operand, array<char *, 2> {out, in}) */
#define TORCH_MUL \
    _ZN2at6native29vectorized_elementwise_kernelILi4ENS0_13AUnaryFunctorIfffNS0_15binary_internal10MulFunctorIfEEEESt5arrayIPcLm2EEEEviT0_T1_
#define TORCH_ADD \
    _ZN2at6native27unrolled_elementwise_kernelINS0_22CUDAFunctorOnSelf_addIfEESt5arrayIPcLm2EELi4EEEviT_T0_

/* (int numel, torch_clamp) */
#define TORCH_CLAMP \
    _ZN2at6native18elementwise_kernelILi128ELi4EZNS0_22gpu_kernel_impl_nocastIZNS0_17clamp_scalar_implEEEvRNS_18TensorIteratorBaseERKT_EUliE_EEviT1_

/* (int numel, torch_range {start, step}, char *out) */
#define TORCH_ARANGE \
    _ZN2at6native12_GLOBAL__N_127elementwise_kernel_with_indexIiZNS0_15arange_cuda_outEEEvT_T0_PN15function_traitsIS3_E11result_typeE

/* (char *out, const char *in, int rows, int columns): a reduction, which no rule names */
#define TORCH_ROW_SUM \
    _ZN2at6native13reduce_kernelILi512ELi1ENS0_8ReduceOpIfNS0_14func_wrapper_tIfEEEEEEvT1_

/* at::PhiloxCudaState: numbers, or the places of numbers when a graph is captured. */
struct torch_philox {
    union {
        uint64_t value;
        CUdeviceptr place;
    } seed, offset;
    uint32_t offset_intragraph;
    bool captured;
};

struct torch_transform {
    CUdeviceptr out;
    float low, high; /* mean and deviation of the normal distribution */
};

/* With an OffsetCalculator, for tensors that are not dense; here they are. */
struct torch_strided_transform {
    CUdeviceptr out;
    uint32_t calculator[100];
    float low, high;
};

struct torch_clamp {
    CUdeviceptr data[2]; /* out, in */
    uint32_t calculator[100];
    float low, high;
};

struct torch_range {
    float start, step;
};

#define TORCH_NAME(kernel) TORCH_NAME_OF(kernel)
#define TORCH_NAME_OF(kernel) #kernel

#endif
