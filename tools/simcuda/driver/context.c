/* SPDX-License-Identifier: Apache-2.0 */
/* The life of contexts; current.c knows which there are. */
#include "tools/simcuda/driver/state.h"

static const unsigned flags_known = CU_CTX_FLAGS_MASK;

static struct sim_ender *enders; /* complete before the first call */

void sim_context_add_ender(struct sim_ender *ender)
{
    ender->next = enders;
    enders = ender;
}

static struct CUctx_st *create_locked(CUdevice device, unsigned flags, unsigned api_version)
{
    struct CUctx_st *context = sim_zalloc(sizeof(*context));
    context->region = (struct sim_region){(uint64_t)context, 1};
    context->device = device;
    context->flags = flags;
    context->api_version = api_version;
    context->id = sim_new_id_locked();
    context->limits[CU_LIMIT_STACK_SIZE] = 1024;
    context->limits[CU_LIMIT_PRINTF_FIFO_SIZE] = 1 << 20;
    context->limits[CU_LIMIT_MALLOC_HEAP_SIZE] = 8 << 20;
    context->limits[CU_LIMIT_MAX_L2_FETCH_GRANULARITY] = 64;
    context->memory_owner = context;
    context->legacy = sim_stream_create_locked(context, CU_STREAM_DEFAULT, 0);
    context->legacy->is_legacy = true;
    sim_table_add(&sim_contexts, &context->region);
    return context;
}

void sim_context_end_locked(struct CUctx_st *context)
{
    __atomic_store_n(&context->is_destroyed, true, __ATOMIC_RELEASE);
    while (context->streams != NULL)
        sim_stream_destroy_locked(context->streams);
    context->legacy = NULL;
    for (const struct sim_ender *ender = enders; ender != NULL; ender = ender->next)
        ender->end_locked(context);
}

void sim_context_drain(struct CUctx_st *context)
{
    pthread_mutex_lock(&sim_lock);
    for (size_t i = 0; i < sim_contexts.count; i++) {
        struct CUctx_st *each = (struct CUctx_st *)sim_contexts.rows[i];
        if (context != NULL && each != context)
            continue;
        for (;;) {
            struct CUstream_st *stream = each->streams;
            while (stream != NULL && !sim_stream_is_busy(stream))
                stream = stream->next;
            if (stream == NULL)
                break;
            sim_stream_wait_locked(stream);
        }
    }
    sim_marks_see_all_locked();
    pthread_mutex_unlock(&sim_lock);
}

/* --- creation and destruction */

static CUresult create(CUcontext *context_out, unsigned flags, CUdevice device, unsigned version)
{
    if (context_out == NULL || (flags & ~flags_known) != 0)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = sim_device_check(device);
    if (result == CUDA_SUCCESS)
        result = sim_capture_refuse_unsafe();
    if (result != CUDA_SUCCESS)
        return result;
    pthread_mutex_lock(&sim_lock);
    *context_out = create_locked(device, flags, version);
    pthread_mutex_unlock(&sim_lock);
    return sim_context_push(*context_out);
}

CUresult cuCtxCreate(CUcontext *pctx, unsigned int flags, CUdevice dev)
{
    SIM_ENTER(cuCtxCreate);
    return create(pctx, flags, dev, 3010);
}

CUresult cuCtxCreate_v2(CUcontext *pctx, unsigned int flags, CUdevice dev)
{
    SIM_ENTER(cuCtxCreate_v2);
    return create(pctx, flags, dev, 3020);
}

/* As cuCtxCreate: there is no other API. */
#define CREATE_FOR(symbol, version)                                                                \
    CUresult symbol(CUcontext *, unsigned, CUdevice);                                              \
    __attribute__((visibility("default"))) CUresult symbol(CUcontext *context_out, unsigned flags, \
                                                           CUdevice device)                        \
    {                                                                                              \
        SIM_ENTER(symbol);                                                                         \
        return create(context_out, flags, device, version);                                        \
    }
CREATE_FOR(cuGLCtxCreate, 3010)
CREATE_FOR(cuGLCtxCreate_v2, 3020)
CREATE_FOR(cuVDPAUCtxCreate, 3010)
CREATE_FOR(cuVDPAUCtxCreate_v2, 3020)

CUresult cuCtxCreate_v3(CUcontext *pctx, CUexecAffinityParam *paramsArray, int numParams,
                        unsigned int flags, CUdevice dev)
{
    SIM_ENTER(cuCtxCreate_v3);
    if (paramsArray != NULL || numParams != 0)
        return CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY;
    return create(pctx, flags, dev, 3020);
}

CUresult cuCtxCreate_v4(CUcontext *pctx, CUctxCreateParams *ctxCreateParams, unsigned int flags,
                        CUdevice dev)
{
    SIM_ENTER(cuCtxCreate_v4);
    if (ctxCreateParams != NULL &&
        (ctxCreateParams->numExecAffinityParams != 0 || ctxCreateParams->cigParams != NULL))
        return CUDA_ERROR_NOT_SUPPORTED;
    return create(pctx, flags, dev, 3020);
}

static CUresult destroy(CUcontext context)
{
    pthread_mutex_lock(&sim_lock);
    CUresult result = sim_context_check_locked(context);
    if (result == CUDA_SUCCESS && context->is_primary)
        result = CUDA_ERROR_INVALID_CONTEXT;
    pthread_mutex_unlock(&sim_lock);
    if (result == CUDA_SUCCESS)
        result = sim_capture_refuse_unsafe();
    if (result != CUDA_SUCCESS)
        return result;
    sim_context_drain(context);
    pthread_mutex_lock(&sim_lock);
    if (!context->is_destroyed)
        sim_context_end_locked(context);
    pthread_mutex_unlock(&sim_lock);
    sim_context_leave(context);
    return CUDA_SUCCESS;
}

CUresult cuCtxDestroy_v2(CUcontext ctx)
{
    SIM_ENTER(cuCtxDestroy_v2);
    return destroy(ctx);
}

CUresult cuCtxDestroy(CUcontext ctx)
{
    SIM_ENTER(cuCtxDestroy);
    return destroy(ctx);
}

/* Gives back the last reference to a context that cuCtxCreate made and nobody attached to. */
CUresult cuCtxDetach(CUcontext ctx)
{
    SIM_ENTER(cuCtxDetach);
    return destroy(ctx);
}

/* --- primary contexts */

CUresult cuDevicePrimaryCtxRetain(CUcontext *pctx, CUdevice dev)
{
    SIM_ENTER(cuDevicePrimaryCtxRetain);
    if (pctx == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    const CUresult result = sim_device_check(dev);
    if (result != CUDA_SUCCESS)
        return result;
    pthread_mutex_lock(&sim_lock);
    struct sim_device *device = &sim_devices[dev];
    if (device->primary == NULL) {
        device->primary = create_locked(dev, device->primary_flags, 3020);
        device->primary->is_primary = true;
    }
    device->primary_users++;
    *pctx = device->primary;
    pthread_mutex_unlock(&sim_lock);
    return CUDA_SUCCESS;
}

static CUresult end_primary(CUdevice ordinal, bool is_reset)
{
    CUresult result = sim_device_check(ordinal);
    if (result == CUDA_SUCCESS)
        result = sim_capture_refuse_unsafe();
    if (result != CUDA_SUCCESS)
        return result;
    pthread_mutex_lock(&sim_lock);
    struct sim_device *device = &sim_devices[ordinal];
    struct CUctx_st *context = device->primary;
    if (!is_reset && context == NULL) {
        result = CUDA_ERROR_INVALID_CONTEXT;
    } else if (context != NULL && (is_reset || --device->primary_users == 0)) {
        pthread_mutex_unlock(&sim_lock);
        sim_context_drain(context);
        pthread_mutex_lock(&sim_lock);
        if (device->primary == context && !context->is_destroyed) {
            sim_context_end_locked(context);
            device->primary = NULL;
            device->primary_users = 0;
        }
    }
    pthread_mutex_unlock(&sim_lock);
    return result;
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice dev)
{
    SIM_ENTER(cuDevicePrimaryCtxRelease_v2);
    return end_primary(dev, false);
}

CUresult cuDevicePrimaryCtxRelease(CUdevice dev)
{
    SIM_ENTER(cuDevicePrimaryCtxRelease);
    return end_primary(dev, false);
}

CUresult cuDevicePrimaryCtxReset_v2(CUdevice dev)
{
    SIM_ENTER(cuDevicePrimaryCtxReset_v2);
    return end_primary(dev, true);
}

CUresult cuDevicePrimaryCtxReset(CUdevice dev)
{
    SIM_ENTER(cuDevicePrimaryCtxReset);
    return end_primary(dev, true);
}

CUresult cuDevicePrimaryCtxGetState(CUdevice dev, unsigned int *flags, int *active)
{
    SIM_ENTER(cuDevicePrimaryCtxGetState);
    if (flags == NULL || active == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    const CUresult result = sim_device_check(dev);
    if (result != CUDA_SUCCESS)
        return result;
    pthread_mutex_lock(&sim_lock);
    *flags = sim_devices[dev].primary_flags;
    *active = sim_devices[dev].primary != NULL;
    pthread_mutex_unlock(&sim_lock);
    return CUDA_SUCCESS;
}

static CUresult set_primary_flags(CUdevice device, unsigned flags)
{
    const CUresult result = sim_device_check(device);
    if (result != CUDA_SUCCESS || (flags & ~flags_known) != 0)
        return result != CUDA_SUCCESS ? result : CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&sim_lock);
    sim_devices[device].primary_flags = flags;
    if (sim_devices[device].primary != NULL)
        sim_devices[device].primary->flags = flags;
    pthread_mutex_unlock(&sim_lock);
    return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice dev, unsigned int flags)
{
    SIM_ENTER(cuDevicePrimaryCtxSetFlags_v2);
    return set_primary_flags(dev, flags);
}

CUresult cuDevicePrimaryCtxSetFlags(CUdevice dev, unsigned int flags)
{
    SIM_ENTER(cuDevicePrimaryCtxSetFlags);
    return set_primary_flags(dev, flags);
}

/* --- peers */

static CUresult set_peer(CUcontext peer, bool enabled)
{
    struct CUctx_st *context;
    CUresult result = sim_context_get(&context);
    if (result != CUDA_SUCCESS)
        return result;
    pthread_mutex_lock(&sim_lock);
    result = sim_context_check_locked(peer);
    if (result == CUDA_SUCCESS && peer->device == context->device)
        result = enabled ? CUDA_ERROR_INVALID_DEVICE : CUDA_ERROR_PEER_ACCESS_NOT_ENABLED;
    else if (result == CUDA_SUCCESS && context->peers[peer->device] == enabled)
        result =
            enabled ? CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED : CUDA_ERROR_PEER_ACCESS_NOT_ENABLED;
    else if (result == CUDA_SUCCESS)
        context->peers[peer->device] = enabled;
    pthread_mutex_unlock(&sim_lock);
    return result;
}

CUresult cuCtxEnablePeerAccess(CUcontext peerContext, unsigned int Flags)
{
    SIM_ENTER(cuCtxEnablePeerAccess);
    return Flags != 0 ? CUDA_ERROR_INVALID_VALUE : set_peer(peerContext, true);
}

CUresult cuCtxDisablePeerAccess(CUcontext peerContext)
{
    SIM_ENTER(cuCtxDisablePeerAccess);
    return set_peer(peerContext, false);
}

/* --- waiting */

static CUresult synchronize(struct CUctx_st *context)
{
    CUresult result = sim_capture_refuse_unsafe();
    if (result != CUDA_SUCCESS)
        return result;
    pthread_mutex_lock(&sim_lock);
    result = sim_capture_refuse_context_locked(context);
    pthread_mutex_unlock(&sim_lock);
    if (result != CUDA_SUCCESS)
        return result;
    sim_context_drain(context);
    return sim_sticky_error();
}

CUresult cuCtxSynchronize(void)
{
    SIM_ENTER(cuCtxSynchronize);
    struct CUctx_st *context;
    const CUresult result = sim_context_get(&context);
    return result != CUDA_SUCCESS ? result : synchronize(context);
}

CUresult cuCtxSynchronize_v2(CUcontext ctx)
{
    SIM_ENTER(cuCtxSynchronize_v2);
    CUresult result = CUDA_SUCCESS;
    if (ctx == NULL) {
        result = sim_context_get(&ctx);
    } else {
        pthread_mutex_lock(&sim_lock);
        result = sim_context_check_locked(ctx);
        pthread_mutex_unlock(&sim_lock);
    }
    return result != CUDA_SUCCESS ? result : synchronize(ctx);
}

/* --- green contexts: of all of the device, one resource and one description */

enum { SM_COUNT = 4, SM_GROUP = 2 }; /* multiprocessors; those that are scheduled together */
static char description;

static CUdevResource sm_resource(unsigned count)
{
    return (CUdevResource){.type = CU_DEV_RESOURCE_TYPE_SM,
                           .sm = {.smCount = count,
                                  .minSmPartitionSize = SM_GROUP,
                                  .smCoscheduledAlignment = SM_GROUP}};
}

CUresult cuDeviceGetDevResource(CUdevice device, CUdevResource *resource, CUdevResourceType type)
{
    SIM_ENTER(cuDeviceGetDevResource);
    const CUresult result = sim_device_check(device);
    if (result != CUDA_SUCCESS)
        return result;
    if (resource == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (type != CU_DEV_RESOURCE_TYPE_SM)
        return CUDA_ERROR_INVALID_RESOURCE_TYPE;
    *resource = sm_resource(SM_COUNT);
    return CUDA_SUCCESS;
}

/* As many groups as were asked for, or as there are; all alike. The rest is what remains. */
CUresult cuDevSmResourceSplitByCount(CUdevResource *result, unsigned int *nbGroups,
                                     const CUdevResource *input, CUdevResource *remaining,
                                     unsigned int useFlags, unsigned int minCount)
{
    SIM_ENTER(cuDevSmResourceSplitByCount);
    const bool is_fine = (useFlags & CU_DEV_SM_RESOURCE_SPLIT_IGNORE_SM_COSCHEDULING) != 0;
    const unsigned unit = is_fine ? 1 : SM_GROUP;
    if (nbGroups == NULL || input == NULL ||
        (useFlags & ~(unsigned)(CU_DEV_SM_RESOURCE_SPLIT_IGNORE_SM_COSCHEDULING |
                                CU_DEV_SM_RESOURCE_SPLIT_MAX_POTENTIAL_CLUSTER_SIZE)) != 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (input->type != CU_DEV_RESOURCE_TYPE_SM)
        return CUDA_ERROR_INVALID_RESOURCE_TYPE;
    if (minCount > input->sm.smCount)
        return CUDA_ERROR_INVALID_VALUE;
    const unsigned size = minCount == 0 ? unit : (minCount + unit - 1) / unit * unit;
    unsigned groups = input->sm.smCount / size;
    if (groups == 0)
        return CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;
    if (result != NULL && *nbGroups < groups)
        groups = *nbGroups;
    for (unsigned i = 0; result != NULL && i < groups; i++)
        result[i] = sm_resource(size);
    if (remaining != NULL && groups * size < input->sm.smCount)
        *remaining = sm_resource(input->sm.smCount - groups * size);
    else if (remaining != NULL)
        *remaining = (CUdevResource){.type = CU_DEV_RESOURCE_TYPE_INVALID};
    *nbGroups = groups;
    return CUDA_SUCCESS;
}

CUresult cuDevResourceGenerateDesc(CUdevResourceDesc *phDesc, CUdevResource *resources,
                                   unsigned int nbResources)
{
    SIM_ENTER(cuDevResourceGenerateDesc);
    if (phDesc == NULL || resources == NULL || nbResources != 1 ||
        resources->type != CU_DEV_RESOURCE_TYPE_SM)
        return CUDA_ERROR_INVALID_VALUE;
    *phDesc = (CUdevResourceDesc)(void *)&description;
    return CUDA_SUCCESS;
}

/* The primary context must be there. A handle is the context itself. */
CUresult cuGreenCtxCreate(CUgreenCtx *phCtx, CUdevResourceDesc desc, CUdevice dev,
                          unsigned int flags)
{
    SIM_ENTER(cuGreenCtxCreate);
    const CUresult result = sim_device_check(dev);
    if (result != CUDA_SUCCESS)
        return result;
    if (phCtx == NULL || (void *)desc != &description || flags != CU_GREEN_CTX_DEFAULT_STREAM)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&sim_lock);
    struct CUctx_st *primary = sim_devices[dev].primary;
    if (primary != NULL) {
        struct CUctx_st *context = create_locked(dev, 0, 3020);
        context->memory_owner = primary;
        *phCtx = (CUgreenCtx)(void *)context;
    }
    pthread_mutex_unlock(&sim_lock);
    return primary != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

CUresult cuCtxFromGreenCtx(CUcontext *pContext, CUgreenCtx hCtx)
{
    SIM_ENTER(cuCtxFromGreenCtx);
    if (pContext == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&sim_lock);
    const CUresult result = sim_context_check_locked((CUcontext)(void *)hCtx);
    pthread_mutex_unlock(&sim_lock);
    if (result == CUDA_SUCCESS)
        *pContext = (CUcontext)(void *)hCtx;
    return result;
}

CUresult cuGreenCtxDestroy(CUgreenCtx hCtx)
{
    SIM_ENTER(cuGreenCtxDestroy);
    return destroy((CUcontext)(void *)hCtx);
}
