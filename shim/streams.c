/* SPDX-License-Identifier: Apache-2.0 */
/* Captures, and work that can block a stream in ways that the shim does not see. */
#include "runtime/calls/calls.h"
#include "runtime/fill/settle.h"
#include "shim/entries.h"

/* Captured work runs again unseen by the shim, so deferral ends before the capture. */
static void prepare_capture(void)
{
    ms_settle_now("a capture begins");
    ms_order_set_capture(true);
}

static CUresult published(CUresult begun)
{
    if (begun != CUDA_SUCCESS)
        ms_order_set_capture(false);
    return begun;
}

CUresult cuStreamBeginCapture(CUstream hStream)
{
    MS_ENTER("cuStreamBeginCapture");
    prepare_capture();
    return published(MS_REAL(cuStreamBeginCapture)(hStream));
}

CUresult cuStreamBeginCapture_ptsz(CUstream hStream)
{
    MS_ENTER("cuStreamBeginCapture");
    prepare_capture();
    return published(MS_REAL(cuStreamBeginCapture_ptsz)(hStream));
}

CUresult cuStreamBeginCapture_v2(CUstream hStream, CUstreamCaptureMode mode)
{
    MS_ENTER("cuStreamBeginCapture");
    prepare_capture();
    return published(MS_REAL(cuStreamBeginCapture_v2)(hStream, mode));
}

CUresult cuStreamBeginCapture_v2_ptsz(CUstream hStream, CUstreamCaptureMode mode)
{
    MS_ENTER("cuStreamBeginCapture");
    prepare_capture();
    return published(MS_REAL(cuStreamBeginCapture_v2_ptsz)(hStream, mode));
}

#define BEGIN_TO_GRAPH(symbol)                                                          \
    CUresult symbol(CUstream hStream, CUgraph hGraph, const CUgraphNode *dependencies,  \
                    const CUgraphEdgeData *dependencyData, size_t numDependencies,      \
                    CUstreamCaptureMode mode)                                           \
    {                                                                                   \
        MS_ENTER("cuStreamBeginCapture");                                               \
        prepare_capture();                                                              \
        return published(MS_REAL(symbol)(hStream, hGraph, dependencies, dependencyData, \
                                         numDependencies, mode));                       \
    }
BEGIN_TO_GRAPH(cuStreamBeginCaptureToGraph)
BEGIN_TO_GRAPH(cuStreamBeginCaptureToGraph_ptsz)

/* Some failures end the capture and some do not, so the stream is queried. */
#define END_CAPTURE(symbol, is_capturing)                                           \
    CUresult symbol(CUstream hStream, CUgraph *phGraph)                             \
    {                                                                               \
        MS_INSIDE;                                                                  \
        CUstreamCaptureStatus before, after;                                        \
        const bool known = MS_REAL(is_capturing)(hStream, &before) == CUDA_SUCCESS; \
        const CUresult result = MS_REAL(symbol)(hStream, phGraph);                  \
        if (known && before != CU_STREAM_CAPTURE_STATUS_NONE &&                     \
            MS_REAL(is_capturing)(hStream, &after) == CUDA_SUCCESS &&               \
            after == CU_STREAM_CAPTURE_STATUS_NONE)                                 \
            ms_order_set_capture(false);                                            \
        return result;                                                              \
    }
END_CAPTURE(cuStreamEndCapture, cuStreamIsCapturing)
END_CAPTURE(cuStreamEndCapture_ptsz, cuStreamIsCapturing_ptsz)

#define HOST_FUNCTION(symbol)                                      \
    CUresult symbol(CUstream hStream, CUhostFn fn, void *userData) \
    {                                                              \
        ms_order_add_gate();                                       \
        return MS_REAL(symbol)(hStream, fn, userData);             \
    }
HOST_FUNCTION(cuLaunchHostFunc)
HOST_FUNCTION(cuLaunchHostFunc_ptsz)

#define CALLBACK(symbol)                                                         \
    CUresult symbol(CUstream hStream, CUstreamCallback callback, void *userData, \
                    unsigned int flags)                                          \
    {                                                                            \
        ms_order_add_gate();                                                     \
        return MS_REAL(symbol)(hStream, callback, userData, flags);              \
    }
CALLBACK(cuStreamAddCallback)
CALLBACK(cuStreamAddCallback_ptsz)

#define EXTERNAL_WAIT(symbol)                                                 \
    CUresult symbol(const CUexternalSemaphore *extSemArray,                   \
                    const CUDA_EXTERNAL_SEMAPHORE_WAIT_PARAMS *paramsArray,   \
                    unsigned int numExtSems, CUstream stream)                 \
    {                                                                         \
        ms_order_add_gate();                                                  \
        return MS_REAL(symbol)(extSemArray, paramsArray, numExtSems, stream); \
    }
EXTERNAL_WAIT(cuWaitExternalSemaphoresAsync)
EXTERNAL_WAIT(cuWaitExternalSemaphoresAsync_ptsz)

/* A stream that waits for this event waits for another process, which may wait for this one. */
CUresult cuIpcOpenEventHandle(CUevent *phEvent, CUipcEventHandle handle)
{
    ms_order_add_gate();
    return MS_REAL(cuIpcOpenEventHandle)(phEvent, handle);
}
