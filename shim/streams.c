/* SPDX-License-Identifier: Apache-2.0 */
/* Captures, and work that can block a stream unseen by the shim. */
#include "runtime/fill/settle.h"
#include "runtime/order/order.h"
#include "shim/newer.h"
#include "shim/quick.h"

/* An entry and its per-thread twin. */
#define TWINS(entry, symbol, parameters, arguments) \
    entry(symbol, parameters, arguments) entry(symbol##_ptsz, parameters, arguments)

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
TWINS(BEGIN_CAPTURE, cuStreamBeginCapture, (CUstream hStream), (hStream))
TWINS(BEGIN_CAPTURE, cuStreamBeginCapture_v2, (CUstream hStream, CUstreamCaptureMode mode),
      (hStream, mode))
TWINS(BEGIN_CAPTURE, cuStreamBeginCaptureToGraph,
      (CUstream hStream, CUgraph hGraph, const CUgraphNode *dependencies,
       const CUgraphEdgeData *dependencyData, size_t numDependencies, CUstreamCaptureMode mode),
      (hStream, hGraph, dependencies, dependencyData, numDependencies, mode))
TWINS(BEGIN_CAPTURE, cuStreamBeginRecaptureToGraph,
      (CUstream hStream, CUstreamCaptureMode mode, CUgraph hGraph,
       CUgraphRecaptureCallback callbackFunc, void *userData),
      (hStream, mode, hGraph, callbackFunc, userData))

/* A graphics API runs the captured work, and no call tells when: this capture counts for ever. */
TWINS(BEGIN_CAPTURE, cuStreamBeginCaptureToCig,
      (CUstream hStream, CUstreamCigCaptureParams *streamCigCaptureParams),
      (hStream, streamCigCaptureParams))

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
TWINS(GATE, cuLaunchHostFunc, (CUstream hStream, CUhostFn fn, void *userData),
      (hStream, fn, userData))
TWINS(GATE, cuLaunchHostFunc_v2,
      (CUstream hStream, CUhostFn fn, void *userData, unsigned int syncMode),
      (hStream, fn, userData, syncMode))
TWINS(GATE, cuStreamAddCallback,
      (CUstream hStream, CUstreamCallback callback, void *userData, unsigned int flags),
      (hStream, callback, userData, flags))
TWINS(GATE, cuWaitExternalSemaphoresAsync,
      (const CUexternalSemaphore *extSemArray,
       const CUDA_EXTERNAL_SEMAPHORE_WAIT_PARAMS *paramsArray, unsigned int numExtSems,
       CUstream stream),
      (extSemArray, paramsArray, numExtSems, stream))

/* A stream that waits for this event waits for another process, which may wait for this one. */
GATE(cuIpcOpenEventHandle, (CUevent * phEvent, CUipcEventHandle handle), (phEvent, handle))
