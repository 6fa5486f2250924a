/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which calls may the shim make while the program captures a stream? Each is made during a capture
 * of its own; afterwards: its result, and is the capture still valid?
 */
#include "tests/gpu/probe.h"

#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

static struct {
    CUdeviceptr reserved, mapped, device, block, new_address;
    CUmemGenericAllocationHandle handle, new_handle;
    CUstream captured, other;
    CUevent event;
    char host[4096];
} it;

static CUresult call_nothing(void)
{
    return CUDA_SUCCESS;
}

static CUresult call_reserve(void)
{
    return CU(cuMemAddressReserve, &it.new_address, GRANULE, 0, 0, 0);
}

static CUresult call_create(void)
{
    const CUmemAllocationProp property = probe_property();
    return CU(cuMemCreate, &it.new_handle, GRANULE, &property, 0);
}

static CUresult call_map(void)
{
    return CU(cuMemMap, it.reserved, GRANULE, 0, it.handle, 0);
}

static CUresult call_set_access(void)
{
    return probe_set_access(it.mapped, GRANULE, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
}

static CUresult call_unmap(void)
{
    return CU(cuMemUnmap, it.mapped, GRANULE);
}

static CUresult call_release(void)
{
    return CU(cuMemRelease, it.handle);
}

static CUresult call_alloc(void)
{
    return CU(cuMemAlloc_v2, &it.new_address, MIB);
}

static CUresult call_free(void)
{
    return CU(cuMemFree_v2, it.block);
}

static CUresult call_host_alloc(void)
{
    void *host;
    return CU(cuMemHostAlloc, &host, MIB, 0);
}

static CUresult call_get_info(void)
{
    size_t free_bytes, total_bytes;
    return CU(cuMemGetInfo_v2, &free_bytes, &total_bytes);
}

static CUresult call_pointer_attribute(void)
{
    unsigned value[4];
    return CU(cuPointerGetAttribute, value, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, it.device);
}

static CUresult call_copy_in(void)
{
    return CU(cuMemcpyHtoD_v2, it.device, it.host, sizeof(it.host));
}

static CUresult call_memset(void)
{
    return CU(cuMemsetD8_v2, it.device, 1, 4096);
}

static CUresult call_copy_other_stream(void)
{
    return CU(cuMemcpyHtoDAsync_v2, it.device, it.host, sizeof(it.host), it.other);
}

static CUresult call_memset_other_stream(void)
{
    return CU(cuMemsetD8Async, it.device, 1, 4096, it.other);
}

static CUresult call_memset_captured(void)
{
    return CU(cuMemsetD8Async, it.device, 1, 4096, it.captured);
}

static CUresult call_pageable_copy_captured(void)
{
    return CU(cuMemcpyHtoDAsync_v2, it.device, it.host, sizeof(it.host), it.captured);
}

static CUresult call_synchronize_other(void)
{
    return CU(cuStreamSynchronize, it.other);
}

static CUresult call_query_other(void)
{
    return CU(cuStreamQuery, it.other);
}

static CUresult call_query_legacy(void)
{
    return CU(cuStreamQuery, NULL);
}

static CUresult call_query_captured(void)
{
    return CU(cuStreamQuery, it.captured);
}

static CUresult call_event_query(void)
{
    return CU(cuEventQuery, it.event);
}

static CUresult call_event_synchronize(void)
{
    return CU(cuEventSynchronize, it.event);
}

static CUresult call_context_synchronize(void)
{
    return CU(cuCtxSynchronize);
}

static CUresult call_context_record(void)
{
    return CU(cuCtxRecordEvent, probe_context, it.event);
}

static CUresult call_stream_create(void)
{
    CUstream stream;
    return CU(cuStreamCreate, &stream, CU_STREAM_NON_BLOCKING);
}

static CUresult call_event_create(void)
{
    CUevent event;
    return CU(cuEventCreate, &event, CU_EVENT_DISABLE_TIMING);
}

static CUresult call_param_info(void)
{
    size_t offset, bytes;
    return CU(cuFuncGetParamInfo, probe_kernel("probe_store"), 0, &offset, &bytes);
}

static const struct call {
    const char *name;
    CUresult (*make)(void);
} calls[] = {
    {"nothing", call_nothing},
    {"cuMemAddressReserve", call_reserve},
    {"cuMemCreate", call_create},
    {"cuMemMap", call_map},
    {"cuMemSetAccess", call_set_access},
    {"cuMemUnmap", call_unmap},
    {"cuMemRelease", call_release},
    {"cuMemAlloc", call_alloc},
    {"cuMemFree", call_free},
    {"cuMemHostAlloc", call_host_alloc},
    {"cuMemGetInfo", call_get_info},
    {"cuPointerGetAttribute", call_pointer_attribute},
    {"cuMemcpyHtoD", call_copy_in},
    {"cuMemsetD8", call_memset},
    {"cuMemcpyHtoDAsync_other_stream", call_copy_other_stream},
    {"cuMemsetD8Async_other_stream", call_memset_other_stream},
    {"cuMemsetD8Async_captured_stream", call_memset_captured},
    {"cuMemcpyHtoDAsync_pageable_captured_stream", call_pageable_copy_captured},
    {"cuStreamSynchronize_other_stream", call_synchronize_other},
    {"cuStreamQuery_other_stream", call_query_other},
    {"cuStreamQuery_legacy", call_query_legacy},
    {"cuStreamQuery_captured_stream", call_query_captured},
    {"cuEventQuery_other_stream", call_event_query},
    {"cuEventSynchronize_other_stream", call_event_synchronize},
    {"cuCtxSynchronize", call_context_synchronize},
    {"cuCtxRecordEvent", call_context_record},
    {"cuStreamCreate", call_stream_create},
    {"cuEventCreate", call_event_create},
    {"cuFuncGetParamInfo", call_param_info},
};

/* Made anew for every call, as several of them use things up. */
static void prepare(void)
{
    it.reserved = probe_reserve(GRANULE);
    it.mapped = probe_mapped(GRANULE);
    it.handle = probe_create(GRANULE);
    it.block = probe_alloc(MIB);
    it.captured = probe_stream(CU_STREAM_NON_BLOCKING);
}

struct way {
    CUstreamCaptureMode mode;
    bool relaxed_around; /* the call is made inside cuThreadExchangeStreamCaptureMode(RELAXED) */
    bool other_thread;
};

struct attempt {
    const struct call *call;
    bool relaxed_around;
    CUresult result;
};

static void *make_attempt(void *attempt_)
{
    struct attempt *const attempt = attempt_;
    CU(cuCtxSetCurrent, probe_context);
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    if (attempt->relaxed_around)
        CU(cuThreadExchangeStreamCaptureMode, &mode);
    attempt->result = attempt->call->make();
    if (attempt->relaxed_around)
        CU(cuThreadExchangeStreamCaptureMode, &mode);
    return NULL;
}

static const char *status_name(CUstreamCaptureStatus status)
{
    return status == CU_STREAM_CAPTURE_STATUS_ACTIVE        ? "active"
           : status == CU_STREAM_CAPTURE_STATUS_INVALIDATED ? "invalidated"
                                                            : "none";
}

static void try_call(const struct call *call, const struct way *way)
{
    struct attempt attempt = {.call = call, .relaxed_around = way->relaxed_around};
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    CUgraph graph = NULL;
    prepare();
    TRY(cuStreamBeginCapture_v2, it.captured, way->mode);
    TRY(cuMemsetD8Async, it.device, 0, 4096, it.captured);
    pthread_t thread;
    if (!way->other_thread)
        make_attempt(&attempt);
    else if (pthread_create(&thread, NULL, make_attempt, &attempt) == 0)
        pthread_join(thread, NULL);
    const CUresult asked = CU(cuStreamIsCapturing, it.captured, &status);
    const CUresult ended = CU(cuStreamEndCapture, it.captured, &graph);
    js_open(call->name);
    js_result("result", attempt.result);
    js_string("capture", asked == CUDA_SUCCESS ? status_name(status) : "not known");
    js_result("end_capture", ended);
    js_close();
    if (graph != NULL)
        CU(cuGraphDestroy, graph);
}

static void try_way(void *way_)
{
    probe_driver_start();
    it.device = probe_alloc(MIB);
    it.other = probe_stream(CU_STREAM_NON_BLOCKING);
    TRY(cuEventCreate, &it.event, CU_EVENT_DISABLE_TIMING);
    TRY(cuEventRecord, it.event, it.other);
    /* Loads the module now: loading is a call of its own kind. */
    const bool has_kernels = busy_kernel_available();
    for (size_t i = 0; i < ARRAY_COUNT(calls); i++)
        if (has_kernels || calls[i].make != call_param_info)
            try_call(&calls[i], way_);
}

/* --- a capture that begins while another thread waits in cuMemFree */

enum { BUSY_MS = 60, HEAD_START_US = 10000 };

static void *free_behind_work(void *result)
{
    CU(cuCtxSetCurrent, probe_context);
    *(CUresult *)result = call_free();
    return NULL;
}

static void capture_during_a_free(void *mode_)
{
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    CUresult freed = CUDA_ERROR_UNKNOWN;
    CUgraph graph = NULL;
    pthread_t thread;
    probe_driver_start();
    it.device = probe_alloc(MIB);
    it.other = probe_stream(CU_STREAM_NON_BLOCKING);
    const bool has_kernels = busy_kernel_available();
    prepare();
    const int64_t start_ns = probe_clock_ns();
    busy_start(it.other, has_kernels ? BUSY_KERNEL : BUSY_HOST_FUNCTION, BUSY_MS);
    if (pthread_create(&thread, NULL, free_behind_work, &freed) != 0)
        probe_fail("pthread_create");
    usleep(HEAD_START_US);
    const CUresult began =
        CU(cuStreamBeginCapture_v2, it.captured, *(const CUstreamCaptureMode *)mode_);
    const CUresult captured = CU(cuMemsetD8Async, it.device, 0, 4096, it.captured);
    /* A query of a stream would end the capture. */
    js_number("began_after_ms", (double)(probe_clock_ns() - start_ns) / 1e6);
    pthread_join(thread, NULL);
    const CUresult asked = CU(cuStreamIsCapturing, it.captured, &status);
    const CUresult ended = CU(cuStreamEndCapture, it.captured, &graph);
    js_result("free", freed);
    js_result("begin", began);
    js_result("captured_call", captured);
    js_string("capture", asked == CUDA_SUCCESS ? status_name(status) : "not known");
    js_result("end_capture", ended);
    if (graph != NULL)
        CU(cuGraphDestroy, graph);
    js_result("synchronize_at_the_end", CU(cuCtxSynchronize));
}

void section_capture(void *unused)
{
    (void)unused;
    static struct {
        const char *key;
        struct way way;
    } ways[] = {
        {"global", {CU_STREAM_CAPTURE_MODE_GLOBAL, false, false}},
        {"global_relaxed_around", {CU_STREAM_CAPTURE_MODE_GLOBAL, true, false}},
        {"global_other_thread", {CU_STREAM_CAPTURE_MODE_GLOBAL, false, true}},
        {"global_other_thread_relaxed_around", {CU_STREAM_CAPTURE_MODE_GLOBAL, true, true}},
        {"thread_local", {CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, false, false}},
        {"thread_local_relaxed_around", {CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, true, false}},
        {"thread_local_other_thread", {CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, false, true}},
        {"relaxed", {CU_STREAM_CAPTURE_MODE_RELAXED, false, false}},
    };
    static struct {
        const char *key;
        CUstreamCaptureMode mode;
    } modes[] = {
        {"global_during_a_free", CU_STREAM_CAPTURE_MODE_GLOBAL},
        {"thread_local_during_a_free", CU_STREAM_CAPTURE_MODE_THREAD_LOCAL},
        {"relaxed_during_a_free", CU_STREAM_CAPTURE_MODE_RELAXED},
    };
    for (size_t i = 0; i < ARRAY_COUNT(ways); i++)
        probe_child(ways[i].key, 15, try_way, &ways[i].way);
    for (size_t i = 0; i < ARRAY_COUNT(modes); i++)
        probe_child(modes[i].key, 15, capture_during_a_free, &modes[i].mode);
}
