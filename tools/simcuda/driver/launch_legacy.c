/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Launches as in CUDA 3: the arguments are set one by one in a buffer of the function, then
 * cuLaunch and relatives launch with what the buffer has.
 */
#include "tools/simcuda/driver/launch.h"

#include <string.h>

static CUresult set_bytes(const void *handle, int offset, const void *bytes, size_t size)
{
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&sim_lock);
    struct sim_function *function = sim_function_find_locked(handle);
    if (function == NULL) {
        result = CUDA_ERROR_INVALID_HANDLE;
    } else if (offset >= 0 && bytes != NULL && size <= sizeof function->legacy.bytes &&
               (size_t)offset <= sizeof function->legacy.bytes - size) {
        memcpy(function->legacy.bytes + offset, bytes, size);
        result = CUDA_SUCCESS;
    }
    pthread_mutex_unlock(&sim_lock);
    return result;
}

CUresult cuParamSetv(CUfunction hfunc, int offset, void *ptr, unsigned int numbytes)
{
    SIM_ENTER(cuParamSetv);
    return set_bytes(hfunc, offset, ptr, numbytes);
}

CUresult cuParamSeti(CUfunction hfunc, int offset, unsigned int value)
{
    SIM_ENTER(cuParamSeti);
    return set_bytes(hfunc, offset, &value, sizeof value);
}

CUresult cuParamSetf(CUfunction hfunc, int offset, float value)
{
    SIM_ENTER(cuParamSetf);
    return set_bytes(hfunc, offset, &value, sizeof value);
}

/* The settings that are no arguments; NULL keeps a value as it is. */
static CUresult set_shape(const void *handle, const unsigned *block, const unsigned *shared_bytes,
                          const unsigned *size)
{
    pthread_mutex_lock(&sim_lock);
    struct sim_function *function = sim_function_find_locked(handle);
    if (function != NULL && block != NULL)
        memcpy(function->legacy.block, block, sizeof function->legacy.block);
    if (function != NULL && shared_bytes != NULL)
        function->legacy.shared_bytes = *shared_bytes;
    if (function != NULL && size != NULL)
        function->legacy.size = *size;
    pthread_mutex_unlock(&sim_lock);
    return function != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult cuFuncSetBlockShape(CUfunction hfunc, int x, int y, int z)
{
    SIM_ENTER(cuFuncSetBlockShape);
    if (x <= 0 || y <= 0 || z <= 0)
        return CUDA_ERROR_INVALID_VALUE;
    const unsigned block[3] = {(unsigned)x, (unsigned)y, (unsigned)z};
    return set_shape(hfunc, block, NULL, NULL);
}

CUresult cuFuncSetSharedSize(CUfunction hfunc, unsigned int bytes)
{
    SIM_ENTER(cuFuncSetSharedSize);
    return set_shape(hfunc, NULL, &bytes, NULL);
}

CUresult cuParamSetSize(CUfunction hfunc, unsigned int numbytes)
{
    SIM_ENTER(cuParamSetSize);
    if (numbytes > sizeof((struct sim_legacy_args *)0)->bytes)
        return CUDA_ERROR_INVALID_VALUE;
    return set_shape(hfunc, NULL, NULL, &numbytes);
}

static CUresult launch_legacy(const void *handle, int width, int height, CUstream stream)
{
    struct sim_legacy_args args;
    if (width <= 0 || height <= 0)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&sim_lock);
    const struct sim_function *function = sim_function_find_locked(handle);
    if (function != NULL)
        args = function->legacy;
    pthread_mutex_unlock(&sim_lock);
    if (function == NULL)
        return CUDA_ERROR_INVALID_HANDLE;

    size_t size = args.size;
    void *extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, args.bytes, CU_LAUNCH_PARAM_BUFFER_SIZE, &size,
                     CU_LAUNCH_PARAM_END};
    const struct sim_launch_call call = {
        handle,
        {(unsigned)width, (unsigned)height, 1},
        {args.block[0], args.block[1], args.block[2]},
        args.shared_bytes,
        NULL,
        extra,
    };
    return sim_launch_submit(&call, stream, false);
}

CUresult cuLaunch(CUfunction f)
{
    SIM_ENTER(cuLaunch);
    return launch_legacy(f, 1, 1, NULL);
}

CUresult cuLaunchGrid(CUfunction f, int grid_width, int grid_height)
{
    SIM_ENTER(cuLaunchGrid);
    return launch_legacy(f, grid_width, grid_height, NULL);
}

CUresult cuLaunchGridAsync(CUfunction f, int grid_width, int grid_height, CUstream hStream)
{
    SIM_ENTER(cuLaunchGridAsync);
    return launch_legacy(f, grid_width, grid_height, hStream);
}
