/* SPDX-License-Identifier: Apache-2.0 */
/* Captures, and work that can block a stream unseen by the shim. */
#include "runtime/fill/settle.h"
#include "runtime/order/order.h"
#include "shim/newer.h"
#include "shim/quick.h"

/* Captured work runs again unseen by the shim, so deferral ends before the capture. */
#define BEGIN_CAPTURE(symbol, parameters, arguments)       \
    CUresult symbol parameters                             \
    {                                                      \
        MS_ENTER("cuStreamBeginCapture");                  \
        ms_settle_now("a capture begins");                 \
        ms_order_set_capture(true);                        \
        const CUresult result = MS_REAL(symbol) arguments; \
        if (result != CUDA_SUCCESS)                        \
            ms_order_set_capture(false);                   \
        return result;                                     \
    }
BEGIN_CAPTURE(cuStreamBeginCapture, (CUstream hStream), (hStream))
BEGIN_CAPTURE(cuStreamBeginCapture_ptsz, (CUstream hStream), (hStream))
BEGIN_CAPTURE(cuStreamBeginCapture_v2, (CUstream hStream, CUstreamCaptureMode mode),
              (hStream, mode))
BEGIN_CAPTURE(cuStreamBeginCapture_v2_ptsz, (CUstream hStream, CUstreamCaptureMode mode),
              (hStream, mode))

#define BEGIN_TO_GRAPH(symbol)                                                        \
    BEGIN_CAPTURE(symbol,                                                             \
                  (CUstream hStream, CUgraph hGraph, const CUgraphNode *dependencies, \
                   const CUgraphEdgeData *dependencyData, size_t numDependencies,     \
                   CUstreamCaptureMode mode),                                         \
                  (hStream, hGraph, dependencies, dependencyData, numDependencies, mode))
BEGIN_TO_GRAPH(cuStreamBeginCaptureToGraph)
BEGIN_TO_GRAPH(cuStreamBeginCaptureToGraph_ptsz)

#define BEGIN_RECAPTURE(symbol)                                                \
    BEGIN_CAPTURE(symbol,                                                      \
                  (CUstream hStream, CUstreamCaptureMode mode, CUgraph hGraph, \
                   CUgraphRecaptureCallback callbackFunc, void *userData),     \
                  (hStream, mode, hGraph, callbackFunc, userData))
BEGIN_RECAPTURE(cuStreamBeginRecaptureToGraph)
BEGIN_RECAPTURE(cuStreamBeginRecaptureToGraph_ptsz)

/* A graphics API runs the captured work, and no call tells when: this capture counts for ever. */
#define BEGIN_TO_CIG(symbol)                                                                     \
    BEGIN_CAPTURE(symbol, (CUstream hStream, CUstreamCigCaptureParams * streamCigCaptureParams), \
                  (hStream, streamCigCaptureParams))
BEGIN_TO_CIG(cuStreamBeginCaptureToCig)
BEGIN_TO_CIG(cuStreamBeginCaptureToCig_ptsz)

/* Some failures end the capture and some do not, so the stream is queried after a failure; and
 * before the call, because the stream may not be capturing at all. */
#define END_CAPTURE(symbol, is_capturing)                                                       \
    CUresult symbol(CUstream hStream, CUgraph *phGraph)                                         \
    {                                                                                           \
        MS_INSIDE;                                                                              \
        CUstreamCaptureStatus status;                                                           \
        bool has_ended = MS_REAL(is_capturing)(hStream, &status) == CUDA_SUCCESS &&             \
                         status != CU_STREAM_CAPTURE_STATUS_NONE;                               \
        const CUresult result = MS_REAL(symbol)(hStream, phGraph);                              \
        if (result == CUDA_SUCCESS)                                                             \
            has_ended = true;                                                                   \
        else                                                                                    \
            has_ended = has_ended && MS_REAL(is_capturing)(hStream, &status) == CUDA_SUCCESS && \
                        status == CU_STREAM_CAPTURE_STATUS_NONE;                                \
        if (has_ended)                                                                          \
            ms_order_set_capture(false);                                                        \
        return result;                                                                          \
    }
END_CAPTURE(cuStreamEndCapture, cuStreamIsCapturing)
END_CAPTURE(cuStreamEndCapture_ptsz, cuStreamIsCapturing_ptsz)

/* Work that may block its stream. */
#define GATE(symbol, parameters, arguments) \
    CUresult symbol parameters              \
    {                                       \
        ms_order_add_gate();                \
        return MS_REAL(symbol) arguments;   \
    }
GATE(cuLaunchHostFunc, (CUstream hStream, CUhostFn fn, void *userData), (hStream, fn, userData))
GATE(cuLaunchHostFunc_ptsz, (CUstream hStream, CUhostFn fn, void *userData),
     (hStream, fn, userData))
#define LAUNCH_HOST(symbol)                                                              \
    GATE(symbol, (CUstream hStream, CUhostFn fn, void *userData, unsigned int syncMode), \
         (hStream, fn, userData, syncMode))
LAUNCH_HOST(cuLaunchHostFunc_v2)
LAUNCH_HOST(cuLaunchHostFunc_v2_ptsz)
GATE(cuStreamAddCallback,
     (CUstream hStream, CUstreamCallback callback, void *userData, unsigned int flags),
     (hStream, callback, userData, flags))
GATE(cuStreamAddCallback_ptsz,
     (CUstream hStream, CUstreamCallback callback, void *userData, unsigned int flags),
     (hStream, callback, userData, flags))
#define EXTERNAL_WAIT(symbol)                                                              \
    GATE(symbol,                                                                           \
         (const CUexternalSemaphore *extSemArray,                                          \
          const CUDA_EXTERNAL_SEMAPHORE_WAIT_PARAMS *paramsArray, unsigned int numExtSems, \
          CUstream stream),                                                                \
         (extSemArray, paramsArray, numExtSems, stream))
EXTERNAL_WAIT(cuWaitExternalSemaphoresAsync)
EXTERNAL_WAIT(cuWaitExternalSemaphoresAsync_ptsz)

/* A stream that waits for this event waits for another process, which may wait for this one. */
GATE(cuIpcOpenEventHandle, (CUevent * phEvent, CUipcEventHandle handle), (phEvent, handle))
