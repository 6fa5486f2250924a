/* SPDX-License-Identifier: Apache-2.0 */
/* Contexts: allocations end with their context; mapped memory needs explicit peer access. */
#include "runtime/calls/alloc.h"
#include "runtime/driver/flags.h"
#include "runtime/order/examining.h"
#include "shim/graphics.h"
#include "shim/newer.h"
#include "shim/quick.h"

static void destroyed(CUcontext context)
{
    if (ms_is_started())
        ms_alloc_end_context(context);
}

#define DESTROY(symbol)                               \
    CUresult symbol(CUcontext ctx)                    \
    {                                                 \
        MS_INSIDE;                                    \
        const CUresult result = MS_REAL(symbol)(ctx); \
        if (result == CUDA_SUCCESS)                   \
            destroyed(ctx);                           \
        return result;                                \
    }
DESTROY(cuCtxDestroy)
DESTROY(cuCtxDestroy_v2)

/* Detaching the last reference destroys the context. */
CUresult cuCtxDetach(CUcontext ctx)
{
    MS_INSIDE;
    unsigned version;
    const CUresult result = MS_REAL(cuCtxDetach)(ctx);
    if (result == CUDA_SUCCESS && ms_is_started() &&
        MS_REAL(cuCtxGetApiVersion)(ctx, &version) != CUDA_SUCCESS)
        destroyed(ctx);
    return result;
}

static CUresult created(CUresult result, const CUcontext *context, CUdevice device)
{
    if (result == CUDA_SUCCESS && ms_is_started())
        ms_examining_add_context(*context, device);
    return result;
}

#define CREATE(symbol, parameters, arguments)                 \
    CUresult symbol parameters                                \
    {                                                         \
        return created(MS_REAL(symbol) arguments, pctx, dev); \
    }
CREATE(cuCtxCreate_v2, (CUcontext * pctx, unsigned int flags, CUdevice dev), (pctx, flags, dev))
CREATE(cuCtxCreate_v3,
       (CUcontext * pctx, CUexecAffinityParam *paramsArray, int numParams, unsigned int flags,
        CUdevice dev),
       (pctx, paramsArray, numParams, flags, dev))
CREATE(cuCtxCreate_v4,
       (CUcontext * pctx, CUctxCreateParams *ctxCreateParams, unsigned int flags, CUdevice dev),
       (pctx, ctxCreateParams, flags, dev))
CREATE(cuCtxCreate, (CUcontext * pctx, unsigned int flags, CUdevice dev), (pctx, flags, dev))
CREATE(cuDevicePrimaryCtxRetain, (CUcontext * pctx, CUdevice dev), (pctx, dev))
CREATE(cuGLCtxCreate, (CUcontext * pctx, unsigned int flags, CUdevice dev), (pctx, flags, dev))
CREATE(cuGLCtxCreate_v2, (CUcontext * pctx, unsigned int flags, CUdevice dev), (pctx, flags, dev))
CREATE(cuVDPAUCtxCreate,
       (CUcontext * pctx, unsigned int flags, CUdevice dev, cuuint32_t vdpDevice,
        void *vdpGetProcAddress),
       (pctx, flags, dev, vdpDevice, vdpGetProcAddress))
CREATE(cuVDPAUCtxCreate_v2,
       (CUcontext * pctx, unsigned int flags, CUdevice dev, cuuint32_t vdpDevice,
        void *vdpGetProcAddress),
       (pctx, flags, dev, vdpDevice, vdpGetProcAddress))

static bool is_primary_active(CUdevice device)
{
    unsigned flags;
    int active = 0;
    return MS_REAL(cuDevicePrimaryCtxGetState)(device, &flags, &active) == CUDA_SUCCESS &&
           active != 0;
}

/* The handle of an active primary context. The driver gives it only with a reference. */
static CUcontext primary_context(CUdevice device)
{
    CUcontext context;
    if (!ms_is_started() || !is_primary_active(device) ||
        MS_REAL(cuDevicePrimaryCtxRetain)(&context, device) != CUDA_SUCCESS)
        return NULL;
    MS_REAL(cuDevicePrimaryCtxRelease_v2)(device);
    return context;
}

#define RELEASE_PRIMARY(symbol)                                                   \
    CUresult symbol(CUdevice dev)                                                 \
    {                                                                             \
        MS_INSIDE;                                                                \
        const CUcontext context = primary_context(dev);                           \
        const CUresult result = MS_REAL(symbol)(dev);                             \
        if (result == CUDA_SUCCESS && context != NULL && !is_primary_active(dev)) \
            destroyed(context);                                                   \
        return result;                                                            \
    }
RELEASE_PRIMARY(cuDevicePrimaryCtxRelease)
RELEASE_PRIMARY(cuDevicePrimaryCtxRelease_v2)
RELEASE_PRIMARY(cuDevicePrimaryCtxReset)
RELEASE_PRIMARY(cuDevicePrimaryCtxReset_v2)

CUresult cuCtxFromGreenCtx(CUcontext *pContext, CUgreenCtx hCtx)
{
    const CUresult result = MS_REAL(cuCtxFromGreenCtx)(pContext, hCtx);
    if (result == CUDA_SUCCESS && ms_is_started())
        ms_alloc_add_green_context(*pContext);
    return result;
}

/* Finds the device of a context that need not be current. */
static bool device_of(CUcontext context, CUdevice *device_out)
{
    CUcontext popped;
    if (MS_REAL(cuCtxPushCurrent_v2)(context) != CUDA_SUCCESS)
        return false;
    const CUresult result = MS_REAL(cuCtxGetDevice)(device_out);
    MS_REAL(cuCtxPopCurrent_v2)(&popped);
    return result == CUDA_SUCCESS;
}

static CUresult follow_peer(CUresult result, CUcontext owner, bool enabled)
{
    CUdevice device, peer;
    if (result != CUDA_SUCCESS || !ms_is_started() ||
        MS_REAL(cuCtxGetDevice)(&peer) != CUDA_SUCCESS || !device_of(owner, &device) ||
        device == peer)
        return result;
    return ms_alloc_set_peer_access(device, peer, enabled);
}

CUresult cuCtxEnablePeerAccess(CUcontext peerContext, unsigned int Flags)
{
    MS_INSIDE;
    return follow_peer(MS_REAL(cuCtxEnablePeerAccess)(peerContext, Flags), peerContext, true);
}

CUresult cuCtxDisablePeerAccess(CUcontext peerContext)
{
    MS_INSIDE;
    return follow_peer(MS_REAL(cuCtxDisablePeerAccess)(peerContext), peerContext, false);
}
