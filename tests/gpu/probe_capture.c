/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which calls may the shim make while the program captures a stream? Each is made during a capture
 * of its own; afterwards: its result, and is the capture still valid?
 */
#include "tests/gpu/probe.h"

#include <pthread.h>
#include <unistd.h>

/* The objects of the calls; some use theirs up, so a part is made anew for each. */
static struct {
    CUdeviceptr reserved, mapped, device, block, new_address;
    CUmemGenericAllocationHandle handle, new_handle;
    CUstream captured, other, new_stream;
    CUevent event, new_event;
    void *new_host;
    char host[4096];
} it;

static void prepare_once(void)
{
    it.device = probe_alloc(MIB);
    it.other = probe_stream(CU_STREAM_NON_BLOCKING);
}

static void prepare(void)
{
    it.reserved = probe_reserve(GRANULE);
    it.mapped = probe_mapped(GRANULE);
    it.handle = probe_create(GRANULE);
    it.block = probe_alloc(MIB);
    it.captured = probe_stream(CU_STREAM_NON_BLOCKING);
}

/* --- a capture, on this thread or on one that waits meanwhile */

enum { MODE = 3, RELAXED_AROUND = 4, OTHER_THREAD = 8 };

static struct {
    CUstreamCaptureMode mode, outer_mode;
    bool relaxed_around; /* calls are made inside cuThreadExchangeStreamCaptureMode(RELAXED) */
    bool other_thread;   /* calls are made on another thread than the capture */
    pthread_t thread;
    pthread_barrier_t has_begun, was_asked;
    CUresult begun, captured_call, ended;
    const char *status;
} capture;

static void begin_capture(void)
{
    capture.begun = CU(cuStreamBeginCapture_v2, it.captured, capture.mode);
    capture.captured_call = CU(cuMemsetD8Async, it.device, 0, 4096, it.captured);
}

static void end_capture(void)
{
    static const char *const names[] = {"none", "active", "invalidated"};
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    CUgraph graph = NULL;
    const CUresult asked = CU(cuStreamIsCapturing, it.captured, &status);
    capture.status = asked == CUDA_SUCCESS ? names[status] : "not known";
    capture.ended = CU(cuStreamEndCapture, it.captured, &graph);
    if (graph != NULL)
        CU(cuGraphDestroy, graph);
}

static void *capture_while_asked(void *unused)
{
    CU(cuCtxSetCurrent, probe_context);
    begin_capture();
    pthread_barrier_wait(&capture.has_begun);
    pthread_barrier_wait(&capture.was_asked);
    end_capture();
    return NULL;
}

static void begin(void)
{
    prepare();
    if (!capture.other_thread) {
        begin_capture();
    } else if (pthread_create(&capture.thread, NULL, capture_while_asked, NULL) == 0) {
        pthread_barrier_wait(&capture.has_begun);
    } else {
        probe_fail("pthread_create");
    }
    capture.outer_mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    if (capture.relaxed_around)
        CU(cuThreadExchangeStreamCaptureMode, &capture.outer_mode);
}

static void end(const char *key, CUresult result)
{
    if (capture.relaxed_around)
        CU(cuThreadExchangeStreamCaptureMode, &capture.outer_mode);
    if (!capture.other_thread) {
        end_capture();
    } else {
        pthread_barrier_wait(&capture.was_asked);
        pthread_join(capture.thread, NULL);
    }
    probe_require("cuStreamBeginCapture_v2", capture.begun);
    probe_require("cuMemsetD8Async", capture.captured_call);
    js_open(key);
    js_result("result", result);
    js_string("capture", capture.status);
    js_result("end_capture", capture.ended);
    js_close();
}

/* One call during a capture. */
#define ASK_RESULT(key, ...) (begin(), end(key, __VA_ARGS__))
#define ASK(key, name, ...) ASK_RESULT(key, CU(name, __VA_ARGS__))

static void ask_all(void)
{
    const CUmemAllocationProp property = probe_property();
    size_t free_bytes, total_bytes;
    unsigned value[4];
    ASK_RESULT("nothing", CUDA_SUCCESS);
    ASK("cuMemAddressReserve", cuMemAddressReserve, &it.new_address, GRANULE, 0, 0, 0);
    ASK("cuMemCreate", cuMemCreate, &it.new_handle, GRANULE, &property, 0);
    ASK("cuMemMap", cuMemMap, it.reserved, GRANULE, 0, it.handle, 0);
    ASK_RESULT("cuMemSetAccess", probe_set_access(it.mapped, GRANULE));
    ASK("cuMemUnmap", cuMemUnmap, it.mapped, GRANULE);
    ASK("cuMemRelease", cuMemRelease, it.handle);
    ASK("cuMemAlloc", cuMemAlloc_v2, &it.new_address, MIB);
    ASK("cuMemFree", cuMemFree_v2, it.block);
    ASK("cuMemHostAlloc", cuMemHostAlloc, &it.new_host, MIB, 0);
    ASK("cuMemGetInfo", cuMemGetInfo_v2, &free_bytes, &total_bytes);
    ASK("cuPointerGetAttribute", cuPointerGetAttribute, value, CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
        it.device);
    ASK("cuMemcpyHtoD", cuMemcpyHtoD_v2, it.device, it.host, sizeof(it.host));
    ASK("cuMemsetD8", cuMemsetD8_v2, it.device, 1, 4096);
    ASK("cuMemcpyHtoDAsync_other_stream", cuMemcpyHtoDAsync_v2, it.device, it.host, sizeof(it.host),
        it.other);
    ASK("cuMemsetD8Async_other_stream", cuMemsetD8Async, it.device, 1, 4096, it.other);
    ASK("cuMemsetD8Async_captured_stream", cuMemsetD8Async, it.device, 1, 4096, it.captured);
    ASK("cuMemcpyHtoDAsync_pageable_captured_stream", cuMemcpyHtoDAsync_v2, it.device, it.host,
        sizeof(it.host), it.captured);
    ASK("cuStreamSynchronize_other_stream", cuStreamSynchronize, it.other);
    ASK("cuStreamQuery_other_stream", cuStreamQuery, it.other);
    ASK("cuStreamQuery_legacy", cuStreamQuery, NULL);
    ASK("cuStreamQuery_captured_stream", cuStreamQuery, it.captured);
    ASK("cuEventQuery_other_stream", cuEventQuery, it.event);
    ASK("cuEventSynchronize_other_stream", cuEventSynchronize, it.event);
    ASK_RESULT("cuCtxSynchronize", CU(cuCtxSynchronize));
    ASK("cuCtxRecordEvent", cuCtxRecordEvent, probe_context, it.event);
    ASK("cuStreamCreate", cuStreamCreate, &it.new_stream, CU_STREAM_NON_BLOCKING);
    ASK("cuEventCreate", cuEventCreate, &it.new_event, CU_EVENT_DISABLE_TIMING);
    if (busy_kernel_available())
        ASK("cuFuncGetParamInfo", cuFuncGetParamInfo, probe_kernel("probe_store"), 0, &free_bytes,
            &total_bytes);
}

static void try_way(size_t way)
{
    prepare_once();
    TRY(cuEventCreate, &it.event, CU_EVENT_DISABLE_TIMING);
    TRY(cuEventRecord, it.event, it.other);
    /* Loads the module now: loading is a call of its own kind. */
    busy_kernel_available();
    capture.mode = (CUstreamCaptureMode)(way & MODE);
    capture.relaxed_around = way & RELAXED_AROUND;
    capture.other_thread = way & OTHER_THREAD;
    pthread_barrier_init(&capture.has_begun, NULL, 2);
    pthread_barrier_init(&capture.was_asked, NULL, 2);
    ask_all();
}

/* --- a capture that begins while another thread waits in cuMemFree */

enum { BUSY_MS = 60, HEAD_START_US = 10000 };

static void *free_behind_work(void *result)
{
    CU(cuCtxSetCurrent, probe_context);
    *(CUresult *)result = CU(cuMemFree_v2, it.block);
    return NULL;
}

static void capture_during_a_free(size_t mode)
{
    CUresult freed = CUDA_ERROR_UNKNOWN;
    pthread_t thread;
    prepare_once();
    const enum busy_kind kind = busy_best();
    prepare();
    capture.mode = (CUstreamCaptureMode)mode;
    const int64_t start_ns = probe_clock_ns();
    busy_start(it.other, kind, BUSY_MS);
    if (pthread_create(&thread, NULL, free_behind_work, &freed) != 0)
        probe_fail("pthread_create");
    usleep(HEAD_START_US);
    begin_capture();
    /* A query of a stream would end the capture. */
    js_number("began_after_ms", (double)(probe_clock_ns() - start_ns) / 1e6);
    pthread_join(thread, NULL);
    end_capture();
    js_result("free", freed);
    js_result("begin", capture.begun);
    js_result("captured_call", capture.captured_call);
    js_string("capture", capture.status);
    js_result("end_capture", capture.ended);
    probe_wait(0);
}

enum { GLOBAL = CU_STREAM_CAPTURE_MODE_GLOBAL, LOCAL = CU_STREAM_CAPTURE_MODE_THREAD_LOCAL };
const struct probe_row section_capture[] = {
    {"global", try_way, GLOBAL, ALONE},
    {"global_relaxed_around", try_way, GLOBAL | RELAXED_AROUND, ALONE},
    {"global_other_thread", try_way, GLOBAL | OTHER_THREAD, ALONE},
    {"global_other_thread_relaxed_around", try_way, GLOBAL | RELAXED_AROUND | OTHER_THREAD, ALONE},
    {"thread_local", try_way, LOCAL, ALONE},
    {"thread_local_relaxed_around", try_way, LOCAL | RELAXED_AROUND, ALONE},
    {"thread_local_other_thread", try_way, LOCAL | OTHER_THREAD, ALONE},
    {"relaxed", try_way, CU_STREAM_CAPTURE_MODE_RELAXED, ALONE},
    {"global_during_a_free", capture_during_a_free, GLOBAL, ALONE},
    {"thread_local_during_a_free", capture_during_a_free, LOCAL, ALONE},
    {"relaxed_during_a_free", capture_during_a_free, CU_STREAM_CAPTURE_MODE_RELAXED, ALONE},
    {NULL},
};
