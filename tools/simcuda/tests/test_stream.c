/* SPDX-License-Identifier: Apache-2.0 */
/* Streams, events, host functions, memory operations: who waits for whom. */
#include "tools/simcuda/tests/program.h"

#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

static CUstream make_stream(unsigned flags)
{
    CUstream stream;
    OK(cuStreamCreate(&stream, flags));
    return stream;
}

MS_TEST(work_is_asynchronous_and_in_order)
{
    start();
    const CUstream stream = make_stream(CU_STREAM_NON_BLOCKING);
    struct gate gate;
    OK(cuStreamQuery(stream));
    close_gate(&gate, stream);
    FAILS(cuStreamQuery(stream), CUDA_ERROR_NOT_READY);
    open_gate(&gate);
    OK(cuStreamSynchronize(stream));
    OK(cuStreamQuery(stream));
}

MS_TEST(legacy_stream_waits_for_blocking_streams)
{
    start();
    const CUstream stream = make_stream(CU_STREAM_DEFAULT);
    struct gate gate;
    CUdeviceptr address;
    OK(cuMemAlloc(&address, 100));
    close_gate(&gate, stream);
    FAILS(cuStreamQuery(NULL), CUDA_ERROR_NOT_READY);
    OK(cuMemsetD8Async(address, 1, 100, CU_STREAM_LEGACY));
    usleep(10000);
    FAILS(cuStreamQuery(CU_STREAM_LEGACY), CUDA_ERROR_NOT_READY);
    open_gate(&gate);
    OK(cuStreamSynchronize(CU_STREAM_LEGACY));
    OK(cuStreamQuery(stream));
}

MS_TEST(blocking_streams_wait_for_the_legacy_stream)
{
    start();
    const CUstream blocking = make_stream(CU_STREAM_DEFAULT);
    const CUstream free = make_stream(CU_STREAM_NON_BLOCKING);
    struct gate gate;
    CUdeviceptr address;
    OK(cuMemAlloc(&address, 100));
    close_gate(&gate, NULL);
    OK(cuMemsetD8Async(address, 1, 50, blocking));
    OK(cuMemsetD8Async(address + 50, 1, 50, free));
    OK(cuStreamSynchronize(free));
    FAILS(cuStreamQuery(blocking), CUDA_ERROR_NOT_READY);
    open_gate(&gate);
    OK(cuStreamSynchronize(blocking));
}

MS_TEST(non_blocking_streams_are_left_alone)
{
    start();
    const CUstream stream = make_stream(CU_STREAM_NON_BLOCKING);
    struct gate gate;
    close_gate(&gate, stream);
    OK(cuStreamSynchronize(NULL));
    OK(cuStreamQuery(NULL));
    open_gate(&gate);
    OK(cuCtxSynchronize());
    OK(cuStreamQuery(stream));
}

static void *own_stream(void *context)
{
    struct gate *gate = calloc(1, sizeof(*gate));
    CHECK(gate != NULL);
    unsigned long long *id = malloc(sizeof(*id));
    CHECK(id != NULL);
    OK(cuCtxSetCurrent(context));
    OK(cuLaunchHostFunc(CU_STREAM_PER_THREAD, wait_at_gate, gate));
    FAILS(cuStreamQuery(CU_STREAM_PER_THREAD), CUDA_ERROR_NOT_READY);
    OK(cuStreamGetId(CU_STREAM_PER_THREAD, id));
    open_gate(gate);
    OK(cuStreamSynchronize(CU_STREAM_PER_THREAD));
    free(gate);
    return id;
}

MS_TEST(per_thread_streams)
{
    const CUcontext context = start();
    unsigned long long own;
    void *other;
    pthread_t thread;
    struct gate gate;
    OK(cuStreamGetId(CU_STREAM_PER_THREAD, &own));
    CHECK_EQ(pthread_create(&thread, NULL, own_stream, context), 0);
    CHECK_EQ(pthread_join(thread, &other), 0);
    CHECK(*(unsigned long long *)other != own);
    free(other);
    /* It is a blocking stream: the legacy stream waits for it. */
    close_gate(&gate, CU_STREAM_PER_THREAD);
    FAILS(cuStreamQuery(NULL), CUDA_ERROR_NOT_READY);
    open_gate(&gate);
    OK(cuStreamSynchronize(NULL));
}

MS_TEST(contexts_do_not_wait_for_each_other)
{
    start();
    CUcontext other;
    struct gate gate;
    CUstream stream;
    OK(cuCtxCreate(&other, NULL, 0, 0));
    stream = make_stream(CU_STREAM_DEFAULT);
    close_gate(&gate, stream);
    OK(cuCtxPopCurrent(NULL));
    OK(cuStreamSynchronize(NULL));
    OK(cuCtxSynchronize());
    FAILS(cuStreamQuery(stream), CUDA_ERROR_NOT_READY);
    open_gate(&gate);
    OK(cuStreamSynchronize(stream));
}

MS_TEST(events_order_streams)
{
    start();
    const CUstream first = make_stream(CU_STREAM_NON_BLOCKING);
    const CUstream second = make_stream(CU_STREAM_NON_BLOCKING);
    struct gate gate;
    CUevent event;
    OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    OK(cuEventQuery(event));
    OK(cuEventSynchronize(event));
    OK(cuStreamWaitEvent(second, event, 0));
    close_gate(&gate, first);
    OK(cuEventRecord(event, first));
    FAILS(cuEventQuery(event), CUDA_ERROR_NOT_READY);
    OK(cuStreamWaitEvent(second, event, 0));
    /* The wait is for what was recorded when it was asked for. */
    OK(cuEventDestroy(event));
    usleep(10000);
    FAILS(cuStreamQuery(second), CUDA_ERROR_NOT_READY);
    open_gate(&gate);
    OK(cuStreamSynchronize(second));
    OK(cuStreamQuery(first));
}

MS_TEST(an_event_of_all_that_a_context_has_queued)
{
    start();
    CUcontext context, other;
    struct gate gates[2];
    CUevent event, foreign;
    const CUstream streams[] = {make_stream(CU_STREAM_NON_BLOCKING), make_stream(0)};
    OK(cuCtxGetCurrent(&context));
    OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    OK(cuCtxRecordEvent(context, event));
    OK(cuEventSynchronize(event));
    for (int i = 0; i < 2; i++)
        close_gate(&gates[i], streams[i]);
    OK(cuCtxRecordEvent(context, event));
    OK(cuStreamDestroy(streams[1]));
    open_gate(&gates[0]);
    OK(cuStreamSynchronize(streams[0]));
    FAILS(cuEventQuery(event), CUDA_ERROR_NOT_READY);
    open_gate(&gates[1]);
    OK(cuEventSynchronize(event));
    OK(cuCtxCreate(&other, NULL, 0, 0));
    OK(cuEventCreate(&foreign, CU_EVENT_DISABLE_TIMING));
    FAILS(cuCtxRecordEvent(context, foreign), CUDA_ERROR_INVALID_HANDLE);
    OK(cuCtxRecordEvent(other, foreign));
    OK(cuEventSynchronize(foreign));
    FAILS(cuCtxRecordEvent(NULL, event), CUDA_ERROR_INVALID_CONTEXT);
    OK(cuCtxPopCurrent(NULL));
    OK(cuStreamBeginCapture(streams[0], CU_STREAM_CAPTURE_MODE_RELAXED));
    FAILS(cuCtxRecordEvent(context, event), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
}

MS_TEST(time_between_events)
{
    start();
    const CUstream stream = make_stream(CU_STREAM_NON_BLOCKING);
    struct gate gate;
    CUevent events[2];
    CUevent untimed;
    float milliseconds;
    OK(cuEventCreate(&events[0], CU_EVENT_DEFAULT));
    OK(cuEventCreate(&events[1], CU_EVENT_DEFAULT));
    OK(cuEventCreate(&untimed, CU_EVENT_DISABLE_TIMING));
    FAILS(cuEventElapsedTime(&milliseconds, events[0], events[1]), CUDA_ERROR_INVALID_HANDLE);
    OK(cuEventRecord(events[0], stream));
    OK(cuEventSynchronize(events[0]));
    close_gate(&gate, stream);
    OK(cuEventRecord(events[1], stream));
    OK(cuEventRecord(untimed, stream));
    FAILS(cuEventElapsedTime(&milliseconds, events[0], events[1]), CUDA_ERROR_NOT_READY);
    usleep(20000);
    open_gate(&gate);
    OK(cuEventSynchronize(events[1]));
    OK(cuEventElapsedTime(&milliseconds, events[0], events[1]));
    CHECK(milliseconds >= 20.0f);
    OK(cuEventElapsedTime(&milliseconds, events[1], events[0]));
    CHECK(milliseconds <= -20.0f);
    FAILS(cuEventElapsedTime(&milliseconds, events[0], untimed), CUDA_ERROR_INVALID_HANDLE);
}

static CUresult result_in_function;

static void call_the_driver(void *argument)
{
    (void)argument;
    CUdeviceptr address;
    result_in_function = cuMemAlloc(&address, 1);
}

MS_TEST(host_functions_may_not_call_the_driver)
{
    start();
    const CUstream stream = make_stream(CU_STREAM_DEFAULT);
    OK(cuLaunchHostFunc(stream, call_the_driver, NULL));
    OK(cuStreamSynchronize(stream));
    CHECK_EQ(result_in_function, CUDA_ERROR_NOT_PERMITTED);
    FAILS(cuLaunchHostFunc(stream, NULL, NULL), CUDA_ERROR_INVALID_VALUE);
}

static void keep_status(CUstream stream, CUresult status, void *place)
{
    (void)stream;
    *(CUresult *)place = status;
}

MS_TEST(callbacks_hear_of_errors)
{
    start();
    const CUstream stream = make_stream(CU_STREAM_NON_BLOCKING);
    const CUdeviceptr address = reserve(2 * MIB);
    struct gate gate;
    CUresult early = CUDA_ERROR_UNKNOWN;
    CUresult late = CUDA_SUCCESS;
    int function_ran = 0;
    OK(cuStreamAddCallback(stream, keep_status, &early, 0));
    back(address, 2 * MIB);
    close_gate(&gate, stream);
    OK(cuMemsetD8Async(address, 1, 1, stream));
    OK(cuMemUnmap(address, 2 * MIB));
    OK(cuStreamAddCallback(stream, keep_status, &late, 0));
    OK(cuLaunchHostFunc(stream, call_the_driver, &function_ran));
    open_gate(&gate);
    FAILS(cuStreamSynchronize(stream), CUDA_ERROR_ILLEGAL_ADDRESS);
    /* No call of the driver waits any more: exit does, and the child of the test is that far. */
    for (int i = 0; i < 1000 && __atomic_load_n(&late, __ATOMIC_ACQUIRE) == CUDA_SUCCESS; i++)
        usleep(1000);
    CHECK_EQ(early, CUDA_SUCCESS);
    CHECK_EQ(late, CUDA_ERROR_ILLEGAL_ADDRESS);
    CHECK_EQ(result_in_function, CUDA_SUCCESS);
}

MS_TEST(streams_and_events_that_are_none_are_refused)
{
    start();
    int something;
    CUevent event;
    const CUstream stream = make_stream(CU_STREAM_DEFAULT);
    FAILS(cuStreamSynchronize((CUstream)&something), CUDA_ERROR_INVALID_HANDLE);
    FAILS(cuEventRecord((CUevent)&something, stream), CUDA_ERROR_INVALID_HANDLE);
    OK(cuStreamDestroy(stream));
    FAILS(cuStreamSynchronize(stream), CUDA_ERROR_INVALID_HANDLE);
    FAILS(cuStreamDestroy(stream), CUDA_ERROR_INVALID_HANDLE);
    OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    OK(cuEventDestroy(event));
    FAILS(cuEventQuery(event), CUDA_ERROR_INVALID_HANDLE);
}

MS_TEST(handles_are_checked)
{
    start();
    FAILS(cuStreamDestroy(NULL), CUDA_ERROR_INVALID_HANDLE);
    CUstream other;
    FAILS(cuStreamCreate(&other, 77), CUDA_ERROR_INVALID_VALUE);
    OK(cuCtxSetCurrent(NULL));
    FAILS(cuStreamSynchronize(NULL), CUDA_ERROR_INVALID_CONTEXT);
}

MS_TEST(a_destroyed_stream_finishes_its_work)
{
    start();
    const CUstream stream = make_stream(CU_STREAM_NON_BLOCKING);
    struct gate gate;
    CUevent event;
    OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    close_gate(&gate, stream);
    OK(cuEventRecord(event, stream));
    OK(cuStreamDestroy(stream));
    FAILS(cuEventQuery(event), CUDA_ERROR_NOT_READY);
    open_gate(&gate);
    OK(cuEventSynchronize(event));
}

MS_TEST(streams_tell_their_flags_and_priority)
{
    const CUcontext context = start();
    CUstream stream;
    CUcontext owner;
    CUdevice device;
    unsigned flags;
    int priority;
    int least;
    int greatest;
    OK(cuCtxGetStreamPriorityRange(&least, &greatest));
    CHECK(greatest < least);
    OK(cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, greatest - 10));
    OK(cuStreamGetPriority(stream, &priority));
    CHECK_EQ(priority, greatest);
    OK(cuStreamGetFlags(stream, &flags));
    CHECK_EQ(flags, CU_STREAM_NON_BLOCKING);
    OK(cuStreamGetCtx(stream, &owner));
    CHECK(owner == context);
    OK(cuStreamGetDevice(stream, &device));
    CHECK_EQ(device, 0);
    OK(cuStreamGetCtx(NULL, &owner));
    CHECK(owner == context);
}

MS_TEST(streams_wait_for_values)
{
    start();
    const CUstream first = make_stream(CU_STREAM_NON_BLOCKING);
    const CUstream second = make_stream(CU_STREAM_NON_BLOCKING);
    CUdeviceptr address;
    uint64_t seen;
    OK(cuMemAlloc(&address, 64));
    OK(cuMemsetD8(address, 0, 64));
    OK(cuCtxSynchronize());
    OK(cuStreamWaitValue32(first, address, 5, CU_STREAM_WAIT_VALUE_GEQ));
    OK(cuStreamWriteValue64(first, address + 8, 42, 0));
    usleep(5000);
    FAILS(cuStreamQuery(first), CUDA_ERROR_NOT_READY);
    OK(cuStreamWriteValue32(second, address, 4, 0));
    OK(cuStreamSynchronize(second));
    FAILS(cuStreamQuery(first), CUDA_ERROR_NOT_READY);
    OK(cuStreamWriteValue32(second, address, 6, 0));
    OK(cuStreamSynchronize(first));
    OK(cuMemcpyDtoH(&seen, address + 8, sizeof(seen)));
    CHECK_EQ(seen, 42);
    FAILS(cuStreamWaitValue32(first, address + 2, 5, 0), CUDA_ERROR_INVALID_VALUE);
    FAILS(cuStreamWaitValue32(first, (CUdeviceptr)&seen, 5, 0), CUDA_ERROR_INVALID_VALUE);
    FAILS(cuStreamWaitValue64(first, address, 5, CU_STREAM_WAIT_VALUE_FLUSH),
          CUDA_ERROR_NOT_SUPPORTED);
}

MS_TEST(exit_does_not_wait_for_ever)
{
    start();
    const CUstream stream = make_stream(CU_STREAM_NON_BLOCKING);
    CUdeviceptr address;
    OK(cuMemAlloc(&address, 64));
    OK(cuMemsetD8(address, 0, 64));
    OK(cuCtxSynchronize());
    OK(cuStreamWaitValue32(stream, address, 5, CU_STREAM_WAIT_VALUE_EQ));
    OK(cuMemsetD8Async(address, 1, 64, stream));
}

static int order[64];
static int order_count;

static void note(void *number)
{
    const int at = __atomic_fetch_add(&order_count, 1, __ATOMIC_ACQ_REL);
    order[at] = (int)(intptr_t)number;
}

MS_TEST(order_holds_with_delays)
{
    setenv("SIMCUDA_DELAY_US", "300", 1);
    start();
    const CUstream a = make_stream(CU_STREAM_DEFAULT);
    const CUstream b = make_stream(CU_STREAM_DEFAULT);
    for (intptr_t i = 0; i < 60; i += 3) {
        OK(cuLaunchHostFunc(a, note, (void *)i));
        OK(cuLaunchHostFunc(NULL, note, (void *)(i + 1)));
        OK(cuLaunchHostFunc(b, note, (void *)(i + 2)));
    }
    OK(cuCtxSynchronize());
    CHECK_EQ(order_count, 60);
    for (int i = 0; i < 60; i += 3) {
        /* b of one round and a of the next one are not ordered. */
        CHECK_EQ(order[i + 1], i + 1);
    }
}
