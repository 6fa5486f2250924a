/* SPDX-License-Identifier: Apache-2.0 */
/* Settings and queries of a context. */
#include "tools/simcuda/driver/state.h"

enum { PRIORITY_LOWEST = 0, PRIORITY_HIGHEST = -5 };

/* NULL stands for the current context. */
static CUresult context_of(CUcontext handle, struct CUctx_st **context_out)
{
    if (handle == NULL)
        return sim_context_get(context_out);
    pthread_mutex_lock(&sim_lock);
    const CUresult result = sim_context_check_locked(handle);
    pthread_mutex_unlock(&sim_lock);
    *context_out = handle;
    return result;
}

#define CURRENT(context)                                        \
    struct CUctx_st *context;                                   \
    const CUresult current_result_ = sim_context_get(&context); \
    if (current_result_ != CUDA_SUCCESS)                        \
    return current_result_

CUresult cuCtxGetDevice(CUdevice *device)
{
    SIM_ENTER(cuCtxGetDevice);
    return device == NULL ? CUDA_ERROR_INVALID_VALUE : sim_current_device(device);
}

CUresult cuCtxGetDevice_v2(CUdevice *device, CUcontext ctx)
{
    SIM_ENTER(cuCtxGetDevice_v2);
    struct CUctx_st *context;
    if (device == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    const CUresult result = context_of(ctx, &context);
    if (result == CUDA_SUCCESS)
        *device = context->device;
    return result;
}

CUresult cuCtxGetId(CUcontext ctx, unsigned long long *ctxId)
{
    SIM_ENTER(cuCtxGetId);
    struct CUctx_st *context;
    if (ctxId == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    const CUresult result = context_of(ctx, &context);
    if (result == CUDA_SUCCESS)
        *ctxId = context->id;
    return result;
}

CUresult cuCtxGetApiVersion(CUcontext ctx, unsigned int *version)
{
    SIM_ENTER(cuCtxGetApiVersion);
    struct CUctx_st *context;
    if (version == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    const CUresult result = context_of(ctx, &context);
    if (result == CUDA_SUCCESS)
        *version = context->api_version;
    return result;
}

CUresult cuCtxGetFlags(unsigned int *flags)
{
    SIM_ENTER(cuCtxGetFlags);
    CURRENT(context);
    if (flags == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&sim_lock);
    *flags = context->flags;
    pthread_mutex_unlock(&sim_lock);
    return CUDA_SUCCESS;
}

CUresult cuCtxSetFlags(unsigned int flags)
{
    SIM_ENTER(cuCtxSetFlags);
    CURRENT(context);
    if ((flags & ~(unsigned)CU_CTX_FLAGS_MASK) != 0)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&sim_lock);
    context->flags = flags;
    pthread_mutex_unlock(&sim_lock);
    return CUDA_SUCCESS;
}

CUresult cuCtxSetLimit(CUlimit limit, size_t value)
{
    SIM_ENTER(cuCtxSetLimit);
    CURRENT(context);
    if ((int)limit < 0 || limit >= CU_LIMIT_MAX)
        return CUDA_ERROR_UNSUPPORTED_LIMIT;
    pthread_mutex_lock(&sim_lock);
    context->limits[limit] = value;
    pthread_mutex_unlock(&sim_lock);
    return CUDA_SUCCESS;
}

CUresult cuCtxGetLimit(size_t *pvalue, CUlimit limit)
{
    SIM_ENTER(cuCtxGetLimit);
    CURRENT(context);
    if (pvalue == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if ((int)limit < 0 || limit >= CU_LIMIT_MAX)
        return CUDA_ERROR_UNSUPPORTED_LIMIT;
    pthread_mutex_lock(&sim_lock);
    *pvalue = context->limits[limit];
    pthread_mutex_unlock(&sim_lock);
    return CUDA_SUCCESS;
}

CUresult cuCtxGetCacheConfig(CUfunc_cache *pconfig)
{
    SIM_ENTER(cuCtxGetCacheConfig);
    CURRENT(context);
    if (pconfig == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&sim_lock);
    *pconfig = context->cache_config;
    pthread_mutex_unlock(&sim_lock);
    return CUDA_SUCCESS;
}

CUresult cuCtxSetCacheConfig(CUfunc_cache config)
{
    SIM_ENTER(cuCtxSetCacheConfig);
    CURRENT(context);
    pthread_mutex_lock(&sim_lock);
    context->cache_config = config;
    pthread_mutex_unlock(&sim_lock);
    return CUDA_SUCCESS;
}

CUresult cuCtxGetSharedMemConfig(CUsharedconfig *pConfig)
{
    SIM_ENTER(cuCtxGetSharedMemConfig);
    CURRENT(context);
    if (pConfig == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&sim_lock);
    *pConfig = context->shared_config;
    pthread_mutex_unlock(&sim_lock);
    return CUDA_SUCCESS;
}

CUresult cuCtxSetSharedMemConfig(CUsharedconfig config)
{
    SIM_ENTER(cuCtxSetSharedMemConfig);
    CURRENT(context);
    pthread_mutex_lock(&sim_lock);
    context->shared_config = config;
    pthread_mutex_unlock(&sim_lock);
    return CUDA_SUCCESS;
}

CUresult cuCtxGetStreamPriorityRange(int *leastPriority, int *greatestPriority)
{
    SIM_ENTER(cuCtxGetStreamPriorityRange);
    CUdevice device;
    const CUresult result = sim_current_device(&device);
    if (result != CUDA_SUCCESS)
        return result;
    if (leastPriority != NULL)
        *leastPriority = PRIORITY_LOWEST;
    if (greatestPriority != NULL)
        *greatestPriority = PRIORITY_HIGHEST;
    return CUDA_SUCCESS;
}

CUresult cuCtxResetPersistingL2Cache(void)
{
    SIM_ENTER(cuCtxResetPersistingL2Cache);
    CUdevice device;
    return sim_current_device(&device);
}

CUresult cuFlushGPUDirectRDMAWrites(CUflushGPUDirectRDMAWritesTarget target,
                                    CUflushGPUDirectRDMAWritesScope scope)
{
    SIM_ENTER(cuFlushGPUDirectRDMAWrites);
    CUdevice device;
    if (target != CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX ||
        (scope != CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER &&
         scope != CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_ALL_DEVICES))
        return CUDA_ERROR_INVALID_VALUE;
    return sim_current_device(&device);
}
