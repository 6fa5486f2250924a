/* SPDX-License-Identifier: Apache-2.0 */
/* Profiler control: accepted, and nothing is profiled. The prototypes are not in cuda.h. */
#include "tools/simcuda/driver/sim.h"

#define EXPORT __attribute__((visibility("default")))

EXPORT CUresult cuProfilerStart(void);
EXPORT CUresult cuProfilerStop(void);

CUresult cuProfilerStart(void)
{
    SIM_ENTER(cuProfilerStart);
    return CUDA_SUCCESS;
}

CUresult cuProfilerStop(void)
{
    SIM_ENTER(cuProfilerStop);
    return CUDA_SUCCESS;
}
