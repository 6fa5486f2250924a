/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kernels that PyTorch compiles at run time (jit_utils.cpp): of SIMCUDA_PTX_KERNELS, by the name
 * that their image has. It says no type: these are those of float.
 *
 *     erfinv_kernel_vectorized<N>_kernel(int numel, array<char *, 2> out and in, float)
 */
#include "tools/simcuda/torch/host.h"

#include <math.h>

/* The inverse of erf: Newton's steps, from where Winitzki's approximation begins. */
static double inverse_of_erf(double value)
{
    static const double slope = 1.1283791670955126, a = 0.147; /* 2 / sqrt(pi) */
    const double size = fabs(value);
    if (!(size < 1))
        return size == 1 ? copysign(INFINITY, value) : NAN;
    const double logarithm = log1p(-size * size), half = slope * slope / (2 * a) + logarithm / 2;
    double result = size < 0.5 ? size / slope : sqrt(sqrt(half * half - logarithm / a) - half);
    for (int i = 0; i < 5; i++) {
        const double rest = size < 0.5 ? erf(result) - size : (1 - size) - erfc(result);
        result -= rest / (slope * exp(-result * result));
    }
    return copysign(result, value);
}

static void erfinv(const struct simcuda_launch *launch, void **args)
{
    const size_t numel = (size_t)SIMCUDA_ARG(args, 0, int);
    const CUdeviceptr *addresses = (const CUdeviceptr *)args[1];
    const float *in = launch->touch(launch, addresses[1], numel * sizeof(float));
    float *out = in == NULL ? NULL : launch->touch(launch, addresses[0], numel * sizeof(float));
    for (size_t i = 0; out != NULL && i < numel; i++)
        out[i] = (float)inverse_of_erf(in[i]);
}

#define ERFINV(name)          \
    SIMCUDA_KERNEL(name)      \
    {                         \
        erfinv(launch, args); \
    }                         \
    SIMCUDA_PARAMS(name, {0, 4}, {8, 16}, {24, 4})
ERFINV(erfinv_kernel_vectorized2_kernel);
ERFINV(erfinv_kernel_vectorized4_kernel);
ERFINV(erfinv_kernel_vectorized8_kernel);
