/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A stand-in for the CUDA runtime, libcudart.so.13, over whichever libcuda.so.1 the process finds:
 * the part of the public runtime API that PyTorch imports, for tests on the simulated driver, on
 * which the real runtime does not start. Preloaded, its soname takes the place of the real one.
 * With the headers of CUDA 12 it is libcudart.so.12 (tests/frameworks/torch/run_releases.py).
 *
 * It reaches the driver as the real one does: dlopen, one dlsym for cuGetProcAddress_v2, the answer
 * of asking that for itself, and everything else through that pointer with versions and flags.
 */
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <stdbool.h>

/* Declared in cudaProfiler.h, which a toolkit has and the wheels of the headers lack. */
CUresult CUDAAPI cuProfilerStart(void);
CUresult CUDAAPI cuProfilerStop(void);

/* The driver's functions, complete when rt_enter has succeeded. */
struct rt_driver {
#define RT_DRIVER(name, version) __typeof__(name) *name;
#include "tools/simcuda/cudart/driver.def"
#undef RT_DRIVER
    CUresult (*getProcAddress)(const char *, void **, int, cuuint64_t,
                               CUdriverProcAddressQueryResult *);
};
extern struct rt_driver rt;

/* The driver is there and initialised; nothing is current yet. */
cudaError_t rt_enter_early(void);

/* A context is current: the thread's, or the primary one of its device. */
cudaError_t rt_enter(void);

/* The runtime's name for a driver's result, remembered for cudaGetLastError. */
cudaError_t rt_done(CUresult result);
cudaError_t rt_fail(cudaError_t error);

/* The device of the calling thread. */
int rt_current_device(void);

#define RT_TRY(call)                       \
    do {                                   \
        const cudaError_t error_ = (call); \
        if (error_ != cudaSuccess)         \
            return error_;                 \
    } while (0)

/* The body of an entry point that is one call of the driver. */
#define RT_RETURN(call)       \
    do {                      \
        RT_TRY(rt_enter());   \
        return rt_done(call); \
    } while (0)
