/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels of PyTorch and others, as their wheels name them. */
#include "runtime/state/kernel_name.h"

#include <string.h>

#include "tools/simcuda/harness/test.h"

static void check_rows(const char *const rows[][2], size_t count)
{
    for (size_t i = 0; i < count; i++) {
        char seen[160];
        ms_kernel_name_shorten(rows[i][0], seen, sizeof(seen));
        if (strcmp(seen, rows[i][1]) != 0)
            ms_test_fail(__FILE__, __LINE__, "\"%s\" became \"%s\", expected \"%s\"", rows[i][0],
                         seen, rows[i][1]);
    }
}
#define CHECK_ROWS(rows) check_rows(rows, sizeof(rows) / sizeof((rows)[0]))

MS_TEST(a_function_and_what_tells_it_apart)
{
    static const char *const rows[][2] = {
        {"_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_"
         "11FillFunctorIfEESt5arrayIPcLm1EEEEviT0_T1_",
         "vectorized_elementwise_kernel<FillFunctor>"},
        {"_ZN2at6native13reduce_kernelILi512ELi1ENS0_8ReduceOpIdNS0_14func_wrapper_tIdEEEEEEvT1_",
         "reduce_kernel<ReduceOp>"},
        {"_ZN2at6native27unrolled_elementwise_kernelIZZZNS0_23direct_copy_kernel_cudaERNS_"
         "18TensorIteratorBaseEE",
         "unrolled_elementwise_kernel<direct_copy_kernel_cuda>"},
        {"_ZN2at6native55_GLOBAL__N__3bce53d0_22_DistributionUniform_cu_67fa25cf43distribution_"
         "elementwise_grid_"
         "stride_kernelIfLi4EZNS0_9templates4cuda21uniform_and_transformIffPNS_"
         "17CUDAGeneratorImplE",
         "distribution_elementwise_grid_stride_kernel<uniform_and_transform>"},
        {"_Z10add_kernelPKfS0_Pfi", "add_kernel"},
        {"_ZL10add_kernelPKfS0_Pfi", "add_kernel"},
        {"_ZN4vllm15rms_norm_kernelIN3c108BFloat16ELi8EEEvPT_PKS2_", "rms_norm_kernel<BFloat16>"},
        {"_Z11half_kernelIDF16_13SomethingElseEvv", "half_kernel<SomethingElse>"},
        {"_Z11null_kernelIDn13SomethingElseEvv", "null_kernel<SomethingElse>"},
        {"_ZSt6kernelv", "kernel"},
        {"_Z1kI3natE", "k<nat>"}, /* no more than the begin of a name that tells nothing */
        {"_Z1kI6nativeE", "k"},
        {"_Z1kI7nativesE", "k<natives>"},
        {"_Z1kI2$13AbcE", "k<Abc>"}, /* what begins with no letter is none */
        {"_Z1kI2_1E", "k<_1>"},
        {"_Z1kI9_GLOBAL_13AbcE", "k<Abc>"},
    };
    CHECK_ROWS(rows);
}

MS_TEST(names_in_a_text)
{
    static const char *const rows[][2] = {
        {"cuLaunchKernel of _Z10add_kernelPKf, twice", "cuLaunchKernel of add_kernel, twice"},
        {"fill32", "fill32"},
        {"triton_poi_fused_add_0", "triton_poi_fused_add_0"},
        {"model._Zeta.weight", "model._Zeta.weight"},
        {"", ""},
    };
    CHECK_ROWS(rows);
}

MS_TEST(a_name_that_was_cut_is_read_as_far_as_it_goes)
{
    static const char *const rows[][2] = {
        {"_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_11FillFun",
         "vectorized_elementwise_kernel<FillFun>"},
        {"_ZN2at6native29vectorized_eleme", "vectorized_eleme"},
        {"_Z99999999999999999999x", "x"},
        {"_Z29", "_Z29"},
        {"_Z", "_Z"},
        {"_ZN", "_ZN"},
        {"_ZNSx3abc", "abc"},
        {"_ZNS", "_ZNS"}, /* nothing of the name before */
    };
    CHECK_ROWS(rows);
}

MS_TEST(a_buffer_that_is_too_small_ends_the_text)
{
    char seen[8];
    ms_kernel_name_shorten("_Z10add_kernelPKfS0_Pfi, twice", seen, sizeof(seen));
    CHECK(strcmp(seen, "add_ker") == 0);
    ms_kernel_name_shorten("a launch", seen, 2);
    CHECK(strcmp(seen, "a") == 0);
}
