/* SPDX-License-Identifier: Apache-2.0 */
/* Stream capture: what is recorded, what is not allowed meanwhile. */
#include "tools/simcuda/tests/program.h"

#include <pthread.h>

#define GLOBAL CU_STREAM_CAPTURE_MODE_GLOBAL
#define THREAD_LOCAL CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
#define RELAXED CU_STREAM_CAPTURE_MODE_RELAXED
#define UNSUPPORTED CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED

static CUstream make_stream(unsigned flags)
{
    CUstream stream;
    OK(cuStreamCreate(&stream, flags));
    return stream;
}

static CUdeviceptr allocate(size_t bytes)
{
    CUdeviceptr address;
    OK(cuMemAlloc(&address, bytes));
    OK(cuMemsetD8(address, 0, bytes));
    OK(cuCtxSynchronize());
    return address;
}

static CUstreamCaptureStatus status_of(CUstream stream)
{
    CUstreamCaptureStatus status;
    OK(cuStreamIsCapturing(stream, &status));
    return status;
}

static void check_invalidated(CUstream stream)
{
    CUgraph graph = (CUgraph)stream;
    CHECK_EQ(status_of(stream), CU_STREAM_CAPTURE_STATUS_INVALIDATED);
    FAILS(cuStreamEndCapture(stream, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    CHECK(graph == NULL);
    CHECK_EQ(status_of(stream), CU_STREAM_CAPTURE_STATUS_NONE);
}

static unsigned char first_byte(CUdeviceptr address)
{
    unsigned char byte;
    OK(cuMemcpyDtoH(&byte, address, 1));
    return byte;
}

MS_TEST(captured_work_runs_when_the_graph_is_launched)
{
    start();
    const CUstream stream = make_stream(CU_STREAM_NON_BLOCKING);
    const CUdeviceptr address = allocate(100);
    CUgraph graph;
    CUgraphExec executable;
    CUstreamCaptureStatus status;
    cuuint64_t id = 0;
    OK(cuStreamBeginCapture(stream, GLOBAL));
    CHECK_EQ(status_of(stream), CU_STREAM_CAPTURE_STATUS_ACTIVE);
    OK(cuMemsetD8Async(address, 1, 50, stream));
    OK(cuMemcpyDtoDAsync(address + 50, address, 50, stream));
    OK(cuStreamGetCaptureInfo(stream, &status, &id, NULL, NULL, NULL, NULL));
    CHECK(id != 0);
    OK(cuStreamEndCapture(stream, &graph));
    CHECK_EQ(first_byte(address), 0);
    OK(cuGraphInstantiate(&executable, graph, 0));
    for (int i = 0; i < 2; i++) {
        OK(cuGraphLaunch(executable, stream));
        OK(cuStreamSynchronize(stream));
        CHECK_EQ(first_byte(address + 99), 1);
        OK(cuMemsetD8(address, 0, 100));
        OK(cuCtxSynchronize());
    }
    OK(cuGraphExecDestroy(executable));
    OK(cuGraphDestroy(graph));
}

MS_TEST(pageable_memory_is_read_at_every_launch)
{
    start();
    const CUstream stream = make_stream(CU_STREAM_NON_BLOCKING);
    const CUdeviceptr address = allocate(100);
    static unsigned char host[100];
    CUgraph graph;
    CUgraphExec executable;
    memset(host, 1, sizeof(host));
    OK(cuStreamBeginCapture(stream, GLOBAL));
    OK(cuMemcpyHtoDAsync(address, host, sizeof(host), stream));
    OK(cuStreamEndCapture(stream, &graph));
    OK(cuGraphInstantiate(&executable, graph, 0));
    memset(host, 2, sizeof(host));
    OK(cuGraphLaunch(executable, stream));
    OK(cuStreamSynchronize(stream));
    CHECK_EQ(first_byte(address), 2);
    OK(cuGraphExecDestroy(executable));
    OK(cuGraphDestroy(graph));
}

MS_TEST(wrong_beginnings_and_ends)
{
    start();
    const CUstream stream = make_stream(CU_STREAM_NON_BLOCKING);
    CUgraph graph;
    FAILS(cuStreamBeginCapture(NULL, GLOBAL), UNSUPPORTED);
    FAILS(cuStreamBeginCapture(CU_STREAM_LEGACY, GLOBAL), UNSUPPORTED);
    FAILS(cuStreamEndCapture(stream, &graph), CUDA_ERROR_ILLEGAL_STATE);
    FAILS(cuStreamBeginCapture(stream, (CUstreamCaptureMode)9), CUDA_ERROR_INVALID_VALUE);
    OK(cuStreamBeginCapture(stream, GLOBAL));
    FAILS(cuStreamBeginCapture(stream, GLOBAL), CUDA_ERROR_ILLEGAL_STATE);
    OK(cuStreamEndCapture(stream, &graph));
    OK(cuGraphDestroy(graph));
}

/* Does the call fail and spoil a capture of this mode? */
#define SPOILS(mode, call)                      \
    do {                                        \
        OK(cuStreamBeginCapture(stream, mode)); \
        FAILS(call, UNSUPPORTED);               \
        check_invalidated(stream);              \
    } while (0)

MS_TEST(unsafe_calls_spoil_a_capture)
{
    start();
    const CUstream stream = make_stream(CU_STREAM_NON_BLOCKING);
    const CUstream other = make_stream(CU_STREAM_NON_BLOCKING);
    CUdeviceptr address = allocate(100);
    CUdeviceptr more;
    CUevent event;
    OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    const CUstreamCaptureMode modes[] = {GLOBAL, THREAD_LOCAL};
    for (int i = 0; i < 2; i++) {
        SPOILS(modes[i], cuMemAlloc(&more, 100));
        SPOILS(modes[i], cuMemFree(address));
        SPOILS(modes[i], cuCtxSynchronize());
        SPOILS(modes[i], cuStreamSynchronize(stream));
        SPOILS(modes[i], cuStreamQuery(stream));
        SPOILS(modes[i], cuEventQuery(event));
        SPOILS(modes[i], cuEventSynchronize(event));
        SPOILS(modes[i], cuMemHostRegister(&more, 8, 0));
        SPOILS(modes[i], cuStreamSynchronize(other));
        SPOILS(modes[i], cuStreamQuery(other));
        SPOILS(modes[i], cuStreamQuery(NULL));
    }
    /* The failed calls did nothing. */
    OK(cuMemFree(address));
}

/* Virtual memory, and copies and sets that are not asynchronous. */
MS_TEST(safe_calls_leave_captures_alone)
{
    start();
    const CUstream stream = make_stream(CU_STREAM_NON_BLOCKING);
    const CUdeviceptr address = allocate(100);
    const CUmemAllocationProp prop = device_prop(0);
    const CUmemAccessDesc access = {prop.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    const CUstreamCaptureMode modes[] = {GLOBAL, THREAD_LOCAL};
    for (int i = 0; i < 2; i++) {
        CUmemGenericAllocationHandle handle;
        CUgraph graph;
        char byte;
        OK(cuStreamBeginCapture(stream, modes[i]));
        OK(cuMemcpyHtoD(address, "x", 1));
        OK(cuMemcpyDtoH(&byte, address, 1));
        CHECK_EQ(byte, 'x');
        OK(cuMemsetD8(address, 1, 1));
        const CUdeviceptr reserved = reserve(2 * MIB);
        OK(cuMemCreate(&handle, 2 * MIB, &prop, 0));
        OK(cuMemMap(reserved, 2 * MIB, 0, handle, 0));
        OK(cuMemSetAccess(reserved, 2 * MIB, &access, 1));
        OK(cuMemUnmap(reserved, 2 * MIB));
        OK(cuMemRelease(handle));
        CHECK_EQ(status_of(stream), CU_STREAM_CAPTURE_STATUS_ACTIVE);
        OK(cuStreamEndCapture(stream, &graph));
        OK(cuGraphDestroy(graph));
        OK(cuMemAddressFree(reserved, 2 * MIB));
    }
}

MS_TEST(relaxed_captures_allow_them)
{
    start();
    const CUstream stream = make_stream(CU_STREAM_NON_BLOCKING);
    CUdeviceptr address;
    CUgraph graph;
    OK(cuStreamBeginCapture(stream, RELAXED));
    OK(cuMemAlloc(&address, 100));
    const CUdeviceptr reserved = reserve(2 * MIB);
    back(reserved, 2 * MIB);
    OK(cuMemUnmap(reserved, 2 * MIB));
    OK(cuMemAddressFree(reserved, 2 * MIB));
    OK(cuMemFree(address));
    OK(cuStreamEndCapture(stream, &graph));
    OK(cuGraphDestroy(graph));
}

MS_TEST(waiting_for_the_context_spoils_relaxed_captures_too)
{
    const CUcontext context = start();
    const CUstream stream = make_stream(CU_STREAM_NON_BLOCKING);
    CUevent event;
    OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    SPOILS(RELAXED, cuCtxSynchronize());
    SPOILS(RELAXED, cuCtxRecordEvent(context, event));
}

MS_TEST(a_thread_may_relax_itself)
{
    start();
    const CUstream stream = make_stream(CU_STREAM_NON_BLOCKING);
    CUstreamCaptureMode mode = RELAXED;
    CUdeviceptr address;
    CUgraph graph;
    OK(cuStreamBeginCapture(stream, GLOBAL));
    OK(cuThreadExchangeStreamCaptureMode(&mode));
    CHECK_EQ(mode, GLOBAL);
    OK(cuMemAlloc(&address, 100));
    OK(cuThreadExchangeStreamCaptureMode(&mode));
    CHECK_EQ(mode, RELAXED);
    FAILS(cuMemAlloc(&address, 100), UNSUPPORTED);
    FAILS(cuStreamEndCapture(stream, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}

struct other_thread {
    CUcontext context;
    CUstream stream;
    CUresult allocated, ended;
};

static void *allocate_elsewhere(void *argument)
{
    struct other_thread *other = argument;
    CUdeviceptr address;
    CUgraph graph;
    OK(cuCtxSetCurrent(other->context));
    other->allocated = cuMemAlloc(&address, 100);
    other->ended = cuStreamEndCapture(other->stream, &graph);
    return NULL;
}

MS_TEST(other_threads_are_bound_by_global_captures_only)
{
    struct other_thread other = {.context = start()};
    const CUstreamCaptureMode modes[] = {GLOBAL, THREAD_LOCAL, RELAXED};
    for (int i = 0; i < 3; i++) {
        pthread_t thread;
        CUgraph graph;
        other.stream = make_stream(CU_STREAM_NON_BLOCKING);
        OK(cuStreamBeginCapture(other.stream, modes[i]));
        CHECK_EQ(pthread_create(&thread, NULL, allocate_elsewhere, &other), 0);
        CHECK_EQ(pthread_join(thread, NULL), 0);
        CHECK_EQ(other.allocated, i == 0 ? UNSUPPORTED : CUDA_SUCCESS);
        CHECK_EQ(other.ended, i == 0   ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
                              : i == 1 ? CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD
                                       : CUDA_SUCCESS);
        /* Ended, also where the wrong thread did it. */
        CHECK_EQ(status_of(other.stream), CU_STREAM_CAPTURE_STATUS_NONE);
        FAILS(cuStreamEndCapture(other.stream, &graph), CUDA_ERROR_ILLEGAL_STATE);
    }
}

MS_TEST(the_legacy_stream_spoils_captures_of_blocking_streams)
{
    start();
    const CUdeviceptr address = allocate(100);
    CUstream stream = make_stream(CU_STREAM_DEFAULT);
    CUstreamCaptureStatus status;
    CUgraph graph;
    char byte;
    OK(cuStreamBeginCapture(stream, RELAXED));
    FAILS(cuStreamIsCapturing(NULL, &status), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
    CHECK_EQ(status_of(stream), CU_STREAM_CAPTURE_STATUS_ACTIVE);
    FAILS(cuMemsetD8Async(address, 1, 1, NULL), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
    check_invalidated(stream);
    OK(cuStreamBeginCapture(stream, RELAXED));
    FAILS(cuMemcpyDtoH(&byte, address, 1), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
    check_invalidated(stream);
    OK(cuStreamBeginCapture(stream, RELAXED));
    FAILS(cuStreamSynchronize(NULL), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
    check_invalidated(stream);
    stream = make_stream(CU_STREAM_NON_BLOCKING);
    OK(cuStreamBeginCapture(stream, RELAXED));
    OK(cuMemcpyDtoH(&byte, address, 1));
    OK(cuStreamEndCapture(stream, &graph));
    OK(cuGraphDestroy(graph));
}

MS_TEST(streams_join_through_events)
{
    start();
    const CUstream origin = make_stream(CU_STREAM_NON_BLOCKING);
    const CUstream forked = make_stream(CU_STREAM_NON_BLOCKING);
    const CUdeviceptr address = allocate(100);
    CUevent fork;
    CUevent join;
    CUgraph graph;
    CUgraphExec executable;
    OK(cuEventCreate(&fork, CU_EVENT_DISABLE_TIMING));
    OK(cuEventCreate(&join, CU_EVENT_DISABLE_TIMING));
    OK(cuStreamBeginCapture(origin, GLOBAL));
    OK(cuMemsetD8Async(address, 1, 10, origin));
    OK(cuEventRecord(fork, origin));
    OK(cuStreamWaitEvent(forked, fork, 0));
    CHECK_EQ(status_of(forked), CU_STREAM_CAPTURE_STATUS_ACTIVE);
    OK(cuMemcpyDtoDAsync(address + 50, address, 10, forked));
    OK(cuEventRecord(join, forked));
    OK(cuStreamWaitEvent(origin, join, 0));
    OK(cuStreamEndCapture(origin, &graph));
    CHECK_EQ(status_of(forked), CU_STREAM_CAPTURE_STATUS_NONE);
    OK(cuGraphInstantiate(&executable, graph, 0));
    OK(cuGraphLaunch(executable, origin));
    OK(cuStreamSynchronize(origin));
    CHECK_EQ(first_byte(address + 59), 1);
    FAILS(cuEventQuery(join), CUDA_ERROR_INVALID_VALUE);
    OK(cuGraphExecDestroy(executable));
    OK(cuGraphDestroy(graph));
}

MS_TEST(work_that_never_joined)
{
    start();
    const CUstream origin = make_stream(CU_STREAM_NON_BLOCKING);
    const CUstream forked = make_stream(CU_STREAM_NON_BLOCKING);
    const CUdeviceptr address = allocate(100);
    CUevent event;
    CUgraph graph;
    OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    OK(cuStreamBeginCapture(origin, GLOBAL));
    OK(cuEventRecord(event, origin));
    OK(cuStreamWaitEvent(forked, event, 0));
    OK(cuMemsetD8Async(address, 1, 10, forked));
    FAILS(cuStreamEndCapture(origin, &graph), CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
    CHECK_EQ(status_of(origin), CU_STREAM_CAPTURE_STATUS_NONE);
    OK(cuStreamBeginCapture(origin, GLOBAL));
    OK(cuEventRecord(event, origin));
    OK(cuStreamWaitEvent(forked, event, 0));
    FAILS(cuStreamEndCapture(forked, &graph), CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
    check_invalidated(origin);
}

MS_TEST(captures_are_isolated)
{
    start();
    const CUstream first = make_stream(CU_STREAM_NON_BLOCKING);
    const CUstream second = make_stream(CU_STREAM_NON_BLOCKING);
    CUevent before;
    CUevent inside;
    OK(cuEventCreate(&before, CU_EVENT_DISABLE_TIMING));
    OK(cuEventCreate(&inside, CU_EVENT_DISABLE_TIMING));
    OK(cuEventRecord(before, first));
    OK(cuStreamBeginCapture(first, GLOBAL));
    FAILS(cuStreamWaitEvent(first, before, 0), CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
    check_invalidated(first);
    OK(cuStreamBeginCapture(first, GLOBAL));
    OK(cuStreamBeginCapture(second, GLOBAL));
    OK(cuEventRecord(inside, first));
    FAILS(cuStreamWaitEvent(second, inside, 0), CUDA_ERROR_STREAM_CAPTURE_MERGE);
    check_invalidated(first);
    check_invalidated(second);
    OK(cuStreamBeginCapture(first, GLOBAL));
    OK(cuEventRecord(inside, first));
    FAILS(cuEventQuery(inside), CUDA_ERROR_CAPTURED_EVENT);
    check_invalidated(first);
}

MS_TEST(a_capturing_stream_may_go)
{
    start();
    const CUstream stream = make_stream(CU_STREAM_NON_BLOCKING);
    const CUdeviceptr address = allocate(100);
    OK(cuStreamBeginCapture(stream, RELAXED));
    OK(cuMemsetD8Async(address, 1, 10, stream));
    OK(cuStreamDestroy(stream));
    OK(cuMemsetD8(address, 1, 10));
    OK(cuCtxSynchronize());
}

/* Memory of the graph: there from the first launch on, and an address at once. */
MS_TEST(stream_ordered_memory_in_a_capture)
{
    CUstream stream;
    CUgraph graph;
    CUgraphExec exec;
    CUdeviceptr outside, inside, out;
    size_t count = 0;
    unsigned char seen = 0;
    start();
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    OK(cuMemAlloc(&out, 1));
    OK(cuMemAllocAsync(&outside, 4 * MIB, stream));
    OK(cuStreamSynchronize(stream));
    OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    OK(cuMemAllocAsync(&inside, 4 * MIB, stream));
    OK(cuMemsetD8Async(inside, 9, 4 * MIB, stream));
    OK(cuMemcpyDtoDAsync(out, inside + 4 * MIB - 1, 1, stream));
    FAILS(cuMemFreeAsync(outside, stream), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemFreeAsync(inside, stream));
    FAILS(cuMemFreeAsync(inside, stream), CUDA_ERROR_INVALID_VALUE);
    OK(cuStreamEndCapture(stream, &graph));
    OK(cuGraphGetNodes(graph, NULL, &count));
    CHECK_EQ(count, 4);
    OK(cuGraphInstantiate(&exec, graph, 0));
    for (int i = 0; i < 3; i++) {
        OK(cuMemsetD8Async(out, 0, 1, stream));
        OK(cuGraphLaunch(exec, stream));
        OK(cuStreamSynchronize(stream));
        OK(cuMemcpyDtoH(&seen, out, 1));
        CHECK_EQ(seen, 9);
    }
    OK(cuGraphExecDestroy(exec));
    OK(cuGraphDestroy(graph));
    OK(cuMemFreeAsync(outside, stream));
    OK(cuStreamSynchronize(stream));
}

/* An allocation that the graph leaves is the program's. */
MS_TEST(captured_memory_that_stays)
{
    CUstream stream;
    CUgraph graph;
    CUgraphExec exec;
    CUdeviceptr memory;
    unsigned char seen = 0;
    start();
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    OK(cuMemAllocAsync(&memory, 4 * MIB, stream));
    OK(cuMemsetD8Async(memory, 5, 4 * MIB, stream));
    OK(cuStreamEndCapture(stream, &graph));
    OK(cuGraphInstantiate(&exec, graph, 0));
    OK(cuGraphLaunch(exec, stream));
    OK(cuStreamSynchronize(stream));
    OK(cuMemcpyDtoH(&seen, memory + MIB, 1));
    CHECK_EQ(seen, 5);
    FAILS(cuGraphLaunch(exec, stream), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemFreeAsync(memory, stream));
    OK(cuStreamSynchronize(stream));
    OK(cuGraphLaunch(exec, stream));
    OK(cuStreamSynchronize(stream));
}
