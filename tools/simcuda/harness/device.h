/* SPDX-License-Identifier: Apache-2.0 */
/* The beginning of tests that are linked with the driver. */
#pragma once

#include <cuda.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "tools/simcuda/harness/test.h"

#define MIB ((size_t)1 << 20)

/* The primary context of device 0, current. */
static inline CUcontext device_start(void)
{
    CUcontext context;
    CHECK_EQ(cuInit(0), CUDA_SUCCESS);
    CHECK_EQ(cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
    CHECK_EQ(cuCtxSetCurrent(context), CUDA_SUCCESS);
    return context;
}

static inline CUdeviceptr device_allocate(size_t bytes)
{
    CUdeviceptr address;
    CHECK_EQ(cuMemAlloc(&address, bytes), CUDA_SUCCESS);
    return address;
}
