/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Launches. An entry with arguments on the stack begins with a thunk in assembly, because C cannot
 * jump on without copying the arguments. The thunk comes here only while something is deferred.
 */
#include "runtime/calls/launch.h"
#include "runtime/driver/flags.h"
#include "shim/nccl_wrappers.h"
#include "shim/quick.h"
#include "shim/stream.h"

/* Returns true if *result_out is the answer to the call. */
static bool launch(struct ms_call *call, CUstream default_stream, CUresult *result_out)
{
    /* NCCL's launches touch only NCCL's own memory and prepared buffers. */
    if (ms_is_quiet_but_counted())
        return false;
    call->is_prepared = ms_nccl_is_calling();
    call->stream = ms_stream(call->stream, default_stream);
    return ms_launch(call, result_out);
}

/* The function that the thunk jumps to. A cooperative launch has no `extra`. */
#define LAUNCH(symbol, default_stream, more_parameters, more, ...)                               \
    extern __typeof__(symbol) ms_guarded_##symbol;                                               \
    CUresult ms_guarded_##symbol(CUfunction f, unsigned int gridDimX, unsigned int gridDimY,     \
                                 unsigned int gridDimZ, unsigned int blockDimX,                  \
                                 unsigned int blockDimY, unsigned int blockDimZ,                 \
                                 unsigned int sharedMemBytes, CUstream hStream,                  \
                                 MS_UNPACK more_parameters)                                      \
    {                                                                                            \
        CUresult result;                                                                         \
        MS_ENTER(#symbol);                                                                       \
        struct ms_call call = {.function = f,                                                    \
                               .grid = {gridDimX, gridDimY, gridDimZ},                           \
                               .block = {blockDimX, blockDimY, blockDimZ},                       \
                               .shared_bytes = sharedMemBytes,                                   \
                               .stream = hStream,                                                \
                               .params = kernelParams,                                           \
                               __VA_ARGS__};                                                     \
        if (launch(&call, default_stream, &result))                                              \
            return result;                                                                       \
        return MS_REAL(symbol)(f, gridDimX, gridDimY, gridDimZ, blockDimX, blockDimY, blockDimZ, \
                               sharedMemBytes, hStream, MS_UNPACK more);                         \
    }
#define LAUNCH_ONE(symbol, default_stream)                                                     \
    LAUNCH(symbol, default_stream, (void **kernelParams, void **extra), (kernelParams, extra), \
           .extra = extra)
#define LAUNCH_COOPERATIVE(symbol, default_stream) \
    LAUNCH(symbol, default_stream, (void **kernelParams), (kernelParams), .cooperative = true)
MS_TWINS(_ptsz, LAUNCH_ONE, cuLaunchKernel)
MS_TWINS(_ptsz, LAUNCH_COOPERATIVE, cuLaunchCooperativeKernel)

static bool launch_ex(const CUlaunchConfig *config, CUfunction f, void **params, void **extra,
                      CUstream default_stream, CUresult *result_out)
{
    if (config == NULL)
        return false;
    struct ms_call call = {.function = f,
                           .grid = {config->gridDimX, config->gridDimY, config->gridDimZ},
                           .block = {config->blockDimX, config->blockDimY, config->blockDimZ},
                           .shared_bytes = config->sharedMemBytes,
                           .stream = config->hStream,
                           .attributes = config->attrs,
                           .attribute_count = config->numAttrs,
                           .params = params,
                           .extra = extra};
    return launch(&call, default_stream, result_out);
}

#define LAUNCH_EX(symbol, default_stream)                                                     \
    MS_QUICK(symbol,                                                                          \
             (const CUlaunchConfig *config, CUfunction f, void **kernelParams, void **extra), \
             (config, f, kernelParams, extra))                                                \
    {                                                                                         \
        CUresult result;                                                                      \
        if (launch_ex(config, f, kernelParams, extra, default_stream, &result))               \
            return result;                                                                    \
        return MS_REAL(symbol)(config, f, kernelParams, extra);                               \
    }
MS_TWINS(_ptsz, LAUNCH_EX, cuLaunchKernelEx)
