/* SPDX-License-Identifier: Apache-2.0 */
/* Which contexts there are, and which of them are current to a thread. */
#include "tools/simcuda/driver/state.h"

enum { STACK_MAX = 64 };

/* The contexts that are current to a thread, the last one on top. Slot 0 is the bottom. */
struct stack {
    struct CUctx_st *contexts[STACK_MAX];
    int depth;
};
static _Thread_local struct stack stack;

struct sim_table sim_contexts;

struct CUctx_st *sim_context_current(void)
{
    struct CUctx_st *context = stack.depth == 0 ? NULL : stack.contexts[stack.depth - 1];
    return context == NULL || __atomic_load_n(&context->is_destroyed, __ATOMIC_ACQUIRE) ? NULL
                                                                                        : context;
}

CUresult sim_context_get(struct CUctx_st **context_out)
{
    struct CUctx_st *top = stack.depth == 0 ? NULL : stack.contexts[stack.depth - 1];
    *context_out = sim_context_current();
    if (*context_out != NULL)
        return CUDA_SUCCESS;
    return top == NULL ? CUDA_ERROR_INVALID_CONTEXT : CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

CUresult sim_current_device(CUdevice *device_out)
{
    struct CUctx_st *context;
    const CUresult result = sim_context_get(&context);
    if (result == CUDA_SUCCESS)
        *device_out = context->device;
    return result;
}

CUresult sim_context_check_locked(CUcontext handle)
{
    const struct sim_region *row = sim_table_find(&sim_contexts, (uint64_t)handle);
    if (row == NULL || row != &handle->region)
        return CUDA_ERROR_INVALID_CONTEXT;
    return handle->is_destroyed ? CUDA_ERROR_CONTEXT_IS_DESTROYED : CUDA_SUCCESS;
}

CUresult sim_contexts_check(CUcontext one, CUcontext other)
{
    pthread_mutex_lock(&sim_lock);
    CUresult result = sim_context_check_locked(one);
    if (result == CUDA_SUCCESS)
        result = sim_context_check_locked(other);
    pthread_mutex_unlock(&sim_lock);
    return result;
}

/* --- the stack of current contexts */

CUresult sim_context_push(CUcontext context)
{
    if (context == NULL || stack.depth == STACK_MAX)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&sim_lock);
    const CUresult result = sim_context_check_locked(context);
    pthread_mutex_unlock(&sim_lock);
    if (result == CUDA_SUCCESS)
        stack.contexts[stack.depth++] = context;
    return result;
}

static CUresult pop(CUcontext *context_out)
{
    if (stack.depth == 0)
        return CUDA_ERROR_INVALID_CONTEXT;
    stack.depth--;
    if (context_out != NULL)
        *context_out = stack.contexts[stack.depth];
    return CUDA_SUCCESS;
}

void sim_context_leave(const struct CUctx_st *context)
{
    if (stack.depth > 0 && stack.contexts[stack.depth - 1] == context)
        stack.depth--;
}

CUresult cuCtxPushCurrent_v2(CUcontext ctx)
{
    SIM_ENTER(cuCtxPushCurrent_v2);
    return sim_context_push(ctx);
}

CUresult cuCtxPushCurrent(CUcontext ctx)
{
    SIM_ENTER(cuCtxPushCurrent);
    return sim_context_push(ctx);
}

CUresult cuCtxPopCurrent_v2(CUcontext *pctx)
{
    SIM_ENTER(cuCtxPopCurrent_v2);
    return pop(pctx);
}

CUresult cuCtxPopCurrent(CUcontext *pctx)
{
    SIM_ENTER(cuCtxPopCurrent);
    return pop(pctx);
}

CUresult cuCtxSetCurrent(CUcontext ctx)
{
    SIM_ENTER(cuCtxSetCurrent);
    if (ctx == NULL)
        return stack.depth == 0 ? CUDA_SUCCESS : pop(NULL);
    pthread_mutex_lock(&sim_lock);
    const CUresult result = sim_context_check_locked(ctx);
    pthread_mutex_unlock(&sim_lock);
    if (result != CUDA_SUCCESS)
        return result;
    if (stack.depth == 0)
        stack.depth = 1;
    stack.contexts[stack.depth - 1] = ctx;
    return CUDA_SUCCESS;
}

CUresult cuCtxGetCurrent(CUcontext *pctx)
{
    SIM_ENTER_QUERY(cuCtxGetCurrent);
    if (pctx == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *pctx = stack.depth == 0 ? NULL : stack.contexts[stack.depth - 1];
    return CUDA_SUCCESS;
}
