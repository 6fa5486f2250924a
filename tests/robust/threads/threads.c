/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Threads of a program that end, or stand still, where it hurts most: the gate of the simulated
 * driver (tools/simcuda/driver/hook.h) stops one within a driver call, and others do what must wait
 * for it, or must not. The same without the shim.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

#include "tests/harness/preload.h"
#include "tools/simcuda/driver/hook.h"
#include "tools/simcuda/harness/device.h"

enum { TOO_LONG_S = 30 }; /* a test that hangs is ended by SIGALRM */

#define BYTES (24 * MIB)

static CUcontext context;

/* Starts with a device of 64 MiB, and a wait for a busy stream that is longer than any test. */
static void start(void)
{
    alarm(TOO_LONG_S);
    setenv("SIMCUDA_MEMORY_MIB", "64", 1);
    setenv("METASHARD_IDLE_MS", "3000", 0);
    setenv("METASHARD_OVERCOMMIT", "8", 1);
    context = device_start();
}

static CUdeviceptr make_filled(unsigned char value)
{
    const CUdeviceptr address = device_allocate(BYTES);
    CHECK_EQ(cuMemsetD8(address, value, BYTES), CUDA_SUCCESS);
    CHECK_EQ(cuCtxSynchronize(), CUDA_SUCCESS); /* streams that wait for no other use it */
    return address;
}

static void check_filled(CUdeviceptr address, size_t bytes, unsigned char value)
{
    static unsigned char seen[BYTES], wanted[BYTES];
    memset(wanted, value, bytes);
    CHECK_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
    CHECK_EQ(cuMemcpyDtoH(seen, address, bytes), CUDA_SUCCESS);
    CHECK_BYTES(seen, wanted, bytes);
}

/* --- another thread, which does one call */

struct call {
    void (*run)(struct call *call);
    CUdeviceptr to, from;
    CUstream stream;
    int cancel_type;
    CUresult result;
    _Atomic bool is_done;
    pthread_t thread;
    unsigned char host[4096];
};

static void *run_call(void *argument)
{
    struct call *call = argument;
    int before;
    CHECK_EQ(cuCtxSetCurrent(context), CUDA_SUCCESS);
    pthread_setcanceltype(call->cancel_type, &before);
    call->run(call);
    atomic_store(&call->is_done, true);
    return NULL;
}

static void start_call(struct call *call)
{
    CHECK_EQ(pthread_create(&call->thread, NULL, run_call, call), 0);
}

static void stop_call_at(const char *function, unsigned nth, struct call *call)
{
    CHECK(simcuda_gate_close(function, nth));
    start_call(call);
    CHECK(simcuda_gate_wait(10000));
}

static void end_call(struct call *call)
{
    CHECK_EQ(pthread_join(call->thread, NULL), 0);
    CHECK(atomic_load(&call->is_done));
    CHECK_EQ(call->result, CUDA_SUCCESS);
}

static void cancel_call(struct call *call)
{
    CHECK_EQ(pthread_cancel(call->thread), 0);
    usleep(20000);
    simcuda_gate_open();
    CHECK_EQ(pthread_join(call->thread, NULL), 0);
}

static void read_some(struct call *call)
{
    call->result = cuMemcpyDtoH(call->host, call->from, sizeof(call->host));
}

static void copy_some(struct call *call)
{
    call->result = cuMemcpyDtoD(call->to, call->from, 8 * MIB);
}

static void copy_any(struct call *call)
{
    call->result = cuMemcpy(call->to, call->from, 8 * MIB);
}

static void copy_in_stream(struct call *call)
{
    call->result = cuMemcpyDtoDAsync(call->to, call->from, 8 * MIB, call->stream);
}

static void copy_any_in_stream(struct call *call)
{
    call->result = cuMemcpyAsync(call->to, call->from, 8 * MIB, call->stream);
}

static void fill_in_stream(struct call *call)
{
    call->result = cuMemsetD8Async(call->to, 9, BYTES, call->stream);
}

static void free_block(struct call *call)
{
    call->result = cuMemFree(call->from);
}

static void begin_capture(struct call *call)
{
    call->result = cuStreamBeginCapture(call->stream, CU_STREAM_CAPTURE_MODE_RELAXED);
}

/* --- a stream that waits */

static _Atomic bool may_go_on;

static void wait_for_leave(void *unused)
{
    (void)unused;
    while (!atomic_load(&may_go_on))
        usleep(1000);
}

static CUstream make_stream(bool is_busy)
{
    CUstream stream;
    CHECK_EQ(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
    atomic_store(&may_go_on, !is_busy);
    CHECK_EQ(cuLaunchHostFunc(stream, wait_for_leave, NULL), CUDA_SUCCESS);
    return stream;
}

/* --- cancelled threads */

static void check_usable(CUdeviceptr address, unsigned char value)
{
    check_filled(address, BYTES, value);
    CHECK_EQ(cuMemFree(address), CUDA_SUCCESS);
}

MS_TEST(a_thread_that_is_cancelled_while_it_waits_for_a_stream_keeps_nothing)
{
    start();
    struct call call = {.run = fill_in_stream, .to = make_filled(7), .stream = make_stream(true)};
    start_call(&call);
    usleep(200000);
    CHECK_EQ(pthread_cancel(call.thread), 0);
    usleep(100000);
    atomic_store(&may_go_on, true);
    CHECK_EQ(pthread_join(call.thread, NULL), 0);
    check_usable(call.to, 9);
}

static void check_cancelled_read(int cancel_type)
{
    start();
    struct call call = {.run = read_some, .from = make_filled(7), .cancel_type = cancel_type};
    /* Deferred memory is made when it is read; other memory is read. */
    stop_call_at(device_has_shim() ? "cuMemCreate" : "cuMemcpyDtoH_v2", 1, &call);
    cancel_call(&call);
    check_usable(call.from, 7);
}

MS_TEST(a_thread_that_is_cancelled_while_it_makes_memory_keeps_nothing)
{
    check_cancelled_read(PTHREAD_CANCEL_DEFERRED);
}

MS_TEST(a_read_that_is_cancelled_anywhere_holds_no_memory)
{
    check_cancelled_read(PTHREAD_CANCEL_ASYNCHRONOUS);
}

/* Memory that the thread has read can be given back when others need memory later. */
MS_TEST(a_thread_that_is_cancelled_while_it_reads_holds_no_memory)
{
    start();
    struct call call = {.run = read_some, .from = make_filled(7)};
    check_filled(call.from, BYTES, 7);
    stop_call_at("cuMemcpyDtoH_v2", 1, &call);
    cancel_call(&call);
    if (device_has_shim()) {
        check_filled(make_filled(8), BYTES, 8);
        check_filled(make_filled(9), BYTES, 9);
    }
    check_usable(call.from, 7);
}

/* --- what is being read stays */

/* Takes memory of the driver. */
static CUresult take_memory(CUdeviceptr *address, size_t bytes)
{
    size_t pitch;
    return cuMemAllocPitch(address, &pitch, MIB, bytes / MIB, 4);
}

static void check_held(struct call *call, const char *function, bool in_busy_stream)
{
    CUdeviceptr taken;
    /* From now on it is in memory, in pieces which can be given back one by one, and could be
     * played again. */
    for (size_t at = 0; at < BYTES; at += 4 * MIB)
        check_filled(call->from + at, 4 * MIB, 7);
    if (in_busy_stream)
        call->stream = make_stream(true);
    stop_call_at(function, 1, call);
    atomic_store(&may_go_on, true);
    /* More than is free while what the call reads is in memory. */
    CHECK_EQ(take_memory(&taken, 48 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
    simcuda_gate_open();
    end_call(call);
    CHECK_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
}

MS_TEST(a_copy_to_the_host_holds_its_source_until_queued)
{
    start();
    CUdeviceptr taken;
    struct call call = {.run = read_some, .from = make_filled(7)};
    check_held(&call, "cuMemcpyDtoH_v2", false);
    CHECK_EQ(call.host[4095], 7);
    if (device_has_shim())
        CHECK_EQ(take_memory(&taken, 48 * MIB), CUDA_SUCCESS);
}

/* The stream is busy for a moment, so that the copy is not recorded. */
static void check_copy_in_stream_held(void (*run)(struct call *call), const char *function)
{
    setenv("METASHARD_IDLE_MS", "50", 1);
    start();
    CUdeviceptr taken;
    struct call call = {.run = run, .from = make_filled(7), .to = device_allocate(8 * MIB)};
    check_held(&call, function, true);
    check_filled(call.to, 8 * MIB, 7);
    if (device_has_shim()) {
        CHECK_EQ(cuMemFree(call.to), CUDA_SUCCESS);
        CHECK_EQ(take_memory(&taken, 48 * MIB), CUDA_SUCCESS);
    }
}

/* It overlaps itself, so it is the driver's. */
static void check_overlapping_copy_held(void (*run)(struct call *call), const char *function)
{
    start();
    const CUdeviceptr block = make_filled(7);
    struct call call = {.run = run, .from = block, .to = block + 4 * MIB};
    check_held(&call, function, false);
    check_filled(block, BYTES, 7);
}

MS_TEST(a_copy_on_the_device_holds_its_source_until_queued)
{
    check_overlapping_copy_held(copy_some, "cuMemcpyDtoD_v2");
}

MS_TEST(a_copy_of_any_kind_holds_its_source_until_queued)
{
    check_overlapping_copy_held(copy_any, "cuMemcpy");
}

MS_TEST(a_copy_in_a_busy_stream_holds_its_source_until_queued)
{
    check_copy_in_stream_held(copy_in_stream, "cuMemcpyDtoDAsync_v2");
}

MS_TEST(any_copy_in_a_busy_stream_holds_its_source_until_queued)
{
    check_copy_in_stream_held(copy_any_in_stream, "cuMemcpyAsync");
}

/* The shim does not wait for work queued in another context, so bytes that such work reads stay. */
static void check_held_by_other_context(bool to_host)
{
    setenv("METASHARD_IDLE_MS", "50", 1);
    start();
    CUcontext other;
    CUdeviceptr taken;
    unsigned char *pinned;
    const CUdeviceptr from = make_filled(7), to = device_allocate(MIB); /* the driver's */
    for (size_t at = 0; at < BYTES; at += 4 * MIB)
        check_filled(from + at, 4 * MIB, 7);
    CHECK_EQ(cuMemHostAlloc((void **)&pinned, MIB, 0), CUDA_SUCCESS);
    CHECK_EQ(cuCtxCreate(&other, NULL, 0, 0), CUDA_SUCCESS);
    const CUstream stream = make_stream(true);
    if (to_host)
        CHECK_EQ(cuMemcpyDtoHAsync(pinned, from, MIB, stream), CUDA_SUCCESS);
    else
        CHECK_EQ(cuMemcpyDtoDAsync(to, from, MIB, stream), CUDA_SUCCESS);
    CHECK_EQ(cuCtxSetCurrent(context), CUDA_SUCCESS);
    CHECK_EQ(take_memory(&taken, 62 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
    atomic_store(&may_go_on, true);
    CHECK_EQ(cuStreamSynchronize(stream), CUDA_SUCCESS);
    if (to_host)
        CHECK_EQ(pinned[MIB - 1], 7);
    else
        check_filled(to, MIB, 7);
}

MS_TEST(a_copy_in_another_context_holds_its_source)
{
    check_held_by_other_context(false);
}

MS_TEST(a_copy_to_the_host_in_another_context_holds_its_source)
{
    check_held_by_other_context(true);
}

/* --- captures */

/* The shim's mark in the context would end the capture, which begins after it, therefore. */
MS_TEST(a_capture_begins_after_the_mark_of_another_thread)
{
    start();
    CUgraph graph;
    struct call freeing = {.run = free_block, .from = make_filled(7)};
    struct call capture = {.run = begin_capture, .stream = make_stream(false)};
    CHECK_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
    if (!device_has_shim())
        return;
    stop_call_at("cuCtxRecordEvent", 1, &freeing);
    start_call(&capture);
    usleep(300000);
    CHECK(!atomic_load(&capture.is_done));
    simcuda_gate_open();
    end_call(&freeing);
    end_call(&capture);
    CHECK_EQ(cuMemsetD8Async(device_allocate(4096), 1, 4096, capture.stream), CUDA_SUCCESS);
    CHECK_EQ(cuStreamEndCapture(capture.stream, &graph), CUDA_SUCCESS);
}
