/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kernels with the names and the parameters of those that PyTorch initialises tensors with
 * (aten/src/ATen/native/cuda: CUDALoops.cuh, DistributionTemplates.h, FillKernel.cu,
 * RangeFactories.cu): names as identifiers, and parameters as structs where they are passed as one.
 *
 * No kernel touches an element at or behind its count. Only the random ones look at the grid.
 */
#pragma once

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
    _ZN2at6native55_GLOBAL__N__a0b1c2d3_22_DistributionUniform_cu_4e5f607143distribution_elementwise_grid_stride_kernelIfLi4EZNS0_9templates4cuda21uniform_and_transformIffPNS_17CUDAGeneratorImplEZZZNS4_14uniform_kernelIS7_EEvRNS_18TensorIteratorBaseEddT_ENKUlvE_clEvENKUlvE0_clEvEUlfE_EEvSA_T1_T2_EUlP24curandStatePhilox4_32_10E0_ZNS1_27distribution_nullary_kernelIff6float4S7_SJ_SE_EEvSA_SG_RKT3_T4_EUlifE_EEvlNS_15PhiloxCudaStateESF_SG_
#define TORCH_UNIFORM_STRIDED \
    _ZN2at6native55_GLOBAL__N__a0b1c2d3_22_DistributionUniform_cu_4e5f607143distribution_elementwise_grid_stride_kernelIfLi4EZNS0_9templates4cuda21uniform_and_transformIffPNS_17CUDAGeneratorImplEZZZNS4_14uniform_kernelIS7_EEvRNS_18TensorIteratorBaseEddT_ENKUlvE_clEvENKUlvE0_clEvEUlfE_EEvSA_T1_T2_EUlP24curandStatePhilox4_32_10E0_ZNS1_27distribution_nullary_kernelIff6float4S7_SJ_SE_EEvSA_SG_RKT3_T4_EUlifE0_EEvlNS_15PhiloxCudaStateESF_SG_
#define TORCH_NORMAL \
    _ZN2at6native54_GLOBAL__N__d8ceb000_21_DistributionNormal_cu_0c5b6e8543distribution_elementwise_grid_stride_kernelIfLi4EZNS0_9templates4cuda20normal_and_transformIffPNS_17CUDAGeneratorImplEZZZNS4_13normal_kernelIS7_EEvRKNS_10TensorBaseEddT_ENKUlvE_clEvENKUlvE0_clEvEUlfE_EEvRNS_18TensorIteratorBaseET1_T2_EUlP24curandStatePhilox4_32_10E0_ZNS1_27distribution_nullary_kernelIff6float4S7_SM_SF_EEvSH_SJ_RKT3_T4_EUlifE_EEvlNS_15PhiloxCudaStateESI_SJ_
#define TORCH_NORMAL_STRIDED \
    _ZN2at6native54_GLOBAL__N__d8ceb000_21_DistributionNormal_cu_0c5b6e8543distribution_elementwise_grid_stride_kernelIfLi4EZNS0_9templates4cuda20normal_and_transformIffPNS_17CUDAGeneratorImplEZZZNS4_13normal_kernelIS7_EEvRKNS_10TensorBaseEddT_ENKUlvE_clEvENKUlvE0_clEvEUlfE_EEvRNS_18TensorIteratorBaseET1_T2_EUlP24curandStatePhilox4_32_10E0_ZNS1_27distribution_nullary_kernelIff6float4S7_SM_SF_EEvSH_SJ_RKT3_T4_EUlifE0_EEvlNS_15PhiloxCudaStateESI_SJ_

/* (int numel, float operand, array<char *, 2> {out, in}): vectorized, unrolled */
#define TORCH_MUL \
    _ZN2at6native29vectorized_elementwise_kernelILi4ENS0_13AUnaryFunctorIfffNS0_15binary_internal10MulFunctorIfEEEESt5arrayIPcLm2EEEEviT0_T1_
#define TORCH_ADD \
    _ZN2at6native27unrolled_elementwise_kernelINS0_21CUDAFunctorOnSelf_addIfEESt5arrayIPcLm2EELi8E23TrivialOffsetCalculatorILi1EjES8_NS0_6memory15LoadWithoutCastENS9_16StoreWithoutCastEEEviT_T0_T2_T3_T4_T5_

/* (int numel, torch_limits, array<char *, 2> {out, in}): vectorized, of dense tensors */
#define TORCH_CLAMP_DENSE \
    _ZN2at6native29vectorized_elementwise_kernelILi4EZZZNS0_19launch_clamp_scalarERNS_18TensorIteratorBaseEN3c106ScalarES5_NS0_6detail11ClampLimitsEENKUlvE_clEvENKUlvE5_clEvEUlfE_St5arrayIPcLm2EEEEviT0_T1_

/* (int numel, torch_clamp): plain */
#define TORCH_CLAMP \
    _ZN2at6native18elementwise_kernelILi128ELi4EZNS0_22gpu_kernel_impl_nocastIZZZNS0_19launch_clamp_scalarERNS_18TensorIteratorBaseEN3c106ScalarES6_NS0_6detail11ClampLimitsEENKUlvE_clEvENKUlvE5_clEvEUlfE_EEvS4_RKT_EUliE_EEviT1_

/* (int numel, torch_copy): in as it is, from where the offsets say */
#define TORCH_COPY \
    _ZN2at6native18elementwise_kernelILi128ELi4EZNS0_22gpu_kernel_impl_nocastIZZZNS0_23direct_copy_kernel_cudaERNS_18TensorIteratorBaseEENKUlvE1_clEvENKUlvE5_clEvEUlfE_EEvS4_RKT_EUliE_EEviT1_

/* (int numel, torch_range, char *out) */
#define TORCH_ARANGE \
    _ZN50_GLOBAL__N__b1c2d3e4_17_RangeFactories_cu_5f60718229elementwise_kernel_with_indexIiZZZN2at6native15arange_cuda_outERKN3c106ScalarES6_S6_RNS1_6TensorEENKUlvE_clEvENKUlvE5_clEvEUllE_EEvT_T0_PN15function_traitsISD_E11result_typeE

/* (char *out, const char *in, int rows, int columns): a reduction, which no rule names */
#define TORCH_ROW_SUM \
    _ZN2at6native13reduce_kernelILi512ELi1ENS0_8ReduceOpIfNS0_14func_wrapper_tIfEEEEEEvT1_

/* at::PhiloxCudaState: numbers, or the places of numbers when a graph is captured. */
struct torch_philox {
    union {
        uint64_t value;
        CUdeviceptr place; /* of an int64_t */
    } seed, offset;
    uint32_t offset_intragraph; /* with places only: added to the offset */
    bool captured;
};

/* OffsetCalculator: sizes, the fastest dimension first, and strides in bytes. */
enum { TORCH_MAX_DIMS = 25 };
struct torch_divider {
    uint32_t divisor, magic, shift; /* only the first is looked at */
};
struct torch_offsets {
    int dims;
    struct torch_divider sizes[TORCH_MAX_DIMS];
    uint32_t strides[TORCH_MAX_DIMS];
};
struct torch_offsets2 {
    int dims;
    struct torch_divider sizes[TORCH_MAX_DIMS];
    uint32_t strides[TORCH_MAX_DIMS][2]; /* of out, of in */
};

struct torch_transform {
    CUdeviceptr out;
    float low, high; /* mean and deviation of the normal distribution */
};

struct torch_strided_transform {
    CUdeviceptr out;
    struct torch_offsets offsets;
    float low, high;
};

struct torch_limits {
    float low, high;
};

struct torch_clamp {
    CUdeviceptr data[2]; /* out, in */
    struct torch_offsets2 offsets;
    float low, high;
};

struct torch_copy {
    CUdeviceptr data[2]; /* out, in */
    struct torch_offsets2 offsets;
};

struct torch_range {
    float start, step;
};

/* The calculator of two dense tensors. */
static inline struct torch_offsets2 torch_dense(uint32_t count)
{
    return (struct torch_offsets2){.dims = 1,
                                   .sizes[0].divisor = count,
                                   .strides[0] = {sizeof(float), sizeof(float)}};
}

/* One step of SplitMix64 (Vigna, public domain). */
static inline uint64_t torch_mix(uint64_t x)
{
    x += UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

/*
 * An element's value. In distribution_elementwise_grid_stride_kernel each thread has a sequence of
 * its own, begins at `offset` in it, and draws four numbers a step, for elements that lie a whole
 * grid apart. So a value depends on seed, offset, the number of threads, and the element.
 */
static inline float torch_draw(uint64_t seed, uint64_t offset, uint64_t threads, uint64_t element,
                               float low, float high, bool is_normal)
{
    const uint64_t thread = element % threads;
    const uint64_t place = offset + element / threads;
    const uint64_t word = torch_mix(torch_mix(seed ^ torch_mix(thread)) + place);
    const float uniform = (float)(word >> 40) * 0x1p-24F;
    /* A sum of two draws has at least the right shape. */
    const float normal = (uniform + (float)(word & 0xffffff) * 0x1p-24F - 1.0F) * 2.4494897F;
    return is_normal ? low + high * normal : low + (high - low) * uniform;
}

#define TORCH_NAME(kernel) TORCH_NAME_OF(kernel)
#define TORCH_NAME_OF(kernel) #kernel
