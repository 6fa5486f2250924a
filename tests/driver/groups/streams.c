/* SPDX-License-Identifier: Apache-2.0 */
/* Work that holds a stream back, captures, and memory operations of streams. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "tests/driver/groups/groups.h"
#include "tools/simcuda/tests/peer.h"

static unsigned char *late;     /* pinned memory that a host function writes */
static CUdeviceptr copied_late; /* of memory that was allocated before something was queued */

static atomic_bool is_copy_queued;
static clockid_t worked; /* processor time of the thread that queues the copy */

static int64_t worked_ms(void)
{
    struct timespec now;
    clock_gettime(worked, &now);
    return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* Once the copy is queued; or it waits for this, and has looked at the stream again and again. A
 * busy machine takes no processor time from that thread. */
static void write_late(void)
{
    const int64_t begin = worked_ms();
    for (int ms = 0; ms < 10000 && !atomic_load(&is_copy_queued) && worked_ms() < begin + 30; ms++)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    memset(late, 0x99, MIB);
}

static void CUDA_CB host_function(void *unused)
{
    (void)unused;
    write_late();
}

static void CUDA_CB callback(CUstream stream, CUresult status, void *unused)
{
    (void)stream;
    (void)status;
    (void)unused;
    write_late();
}

/* The bytes of a copy are written by work before it in the stream. */
static void copy_late(CUstream stream)
{
    MUST(cuMemcpyHtoDAsync_v2(copied_late, late, MIB, stream));
    atomic_store(&is_copy_queued, true);
    MUST(cuStreamSynchronize(stream));
    print_device("block", copied_late, MIB);
}

static CUstream make_late(void)
{
    CUstream stream;
    pthread_getcpuclockid(pthread_self(), &worked);
    MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    MUST(cuMemAllocHost_v2((void **)&late, MIB));
    memset(late, 0x11, MIB);
    MUST(cuMemAlloc_v2(&copied_late, BLOCK_BYTES));
    return stream;
}

static void behind_host_function(void)
{
    const CUstream stream = make_late();
    SEEN(TESTED(cuLaunchHostFunc)(stream, host_function, NULL));
    copy_late(stream);
}

static void behind_host_function_2(void)
{
    const CUstream stream = make_late();
    SEEN(TESTED(cuLaunchHostFunc_v2)(stream, host_function, NULL, 1));
    copy_late(stream);
}

static void behind_callback(void)
{
    const CUstream stream = make_late();
    SEEN(TESTED(cuStreamAddCallback)(stream, callback, NULL, 0));
    copy_late(stream);
}

/* The same bytes are written when the copy is queued, and before the device may go on. */
static void copy_before_writing(CUstream stream)
{
    MUST(cuMemcpyHtoDAsync_v2(copied_late, late, MIB, stream));
    memset(late, 0x99, MIB);
}

static void behind_semaphore(void)
{
    CUexternalSemaphore semaphore;
    const uint64_t one = 1;
    const int file = eventfd(0, EFD_CLOEXEC);
    const CUDA_EXTERNAL_SEMAPHORE_WAIT_PARAMS wait = {0};
    const CUDA_EXTERNAL_SEMAPHORE_HANDLE_DESC import = {
        .type = CU_EXTERNAL_SEMAPHORE_HANDLE_TYPE_OPAQUE_FD, .handle.fd = dup(file)};
    const CUstream stream = make_late();
    MUST(cuImportExternalSemaphore(&semaphore, &import));
    SEEN(TESTED(cuWaitExternalSemaphoresAsync)(&semaphore, &wait, 1, stream));
    copy_before_writing(stream);
    if (write(file, &one, sizeof(one)) != sizeof(one))
        exit(2);
    MUST(cuStreamSynchronize(stream));
    print_device("block", copied_late, MIB);
}

static void behind_process(void)
{
    CUevent event;
    const CUstream stream = make_late();
    const struct sim_peer peer = sim_peer_start();
    const CUipcEventHandle handle = sim_peer_record(peer);
    SEEN(TESTED(cuIpcOpenEventHandle)(&event, handle));
    MUST(cuStreamWaitEvent(stream, event, 0));
    copy_before_writing(stream);
    sim_peer_go(peer);
    MUST(cuStreamSynchronize(stream));
    print_device("block", copied_late, MIB);
}

/* Captured work happens when the graph is launched, and not before. */
static void finish_capture(CUstream stream, CUdeviceptr block)
{
    CUgraph graph;
    CUgraphExec exec;
    seen("set while capturing", cuMemsetD8Async(block, 0x77, 3 * MIB, stream));
    SEEN(cuStreamEndCapture(stream, &graph));
    print_device("not yet", block, BLOCK_BYTES);
    MUST(cuGraphInstantiateWithFlags(&exec, graph, 0));
    MUST(cuMemsetD8_v2(block, 0x22, BLOCK_BYTES));
    MUST(cuCtxSynchronize());
    SEEN(cuGraphLaunch(exec, stream));
    MUST(cuStreamSynchronize(stream));
    print_device("launched", block, BLOCK_BYTES);
}

static CUstream make_stream(void)
{
    CUstream stream;
    MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    return stream;
}

static void captured(void)
{
    const CUstream stream = make_stream();
    const CUdeviceptr block = make_block(1);
    SEEN(TESTED(cuStreamBeginCapture)(stream));
    finish_capture(stream, block);
}

static void captured_2(void)
{
    const CUstream stream = make_stream();
    const CUdeviceptr block = make_block(1);
    SEEN(TESTED(cuStreamBeginCapture_v2)(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    finish_capture(stream, block);
}

static void captured_to_graph(void)
{
    CUgraph graph;
    const CUstream stream = make_stream();
    const CUdeviceptr block = make_block(1);
    MUST(cuGraphCreate(&graph, 0));
    SEEN(TESTED(cuStreamBeginCaptureToGraph)(stream, graph, NULL, NULL, 0,
                                             CU_STREAM_CAPTURE_MODE_GLOBAL));
    finish_capture(stream, block);
}

static CUresult accept_mismatch(void)
{
    return CUDA_SUCCESS;
}

static void captured_again(void)
{
    CUgraph graph;
    const CUstream stream = make_stream();
    const CUdeviceptr block = make_block(1);
    MUST(cuGraphCreate(&graph, 0));
    SEEN(TESTED(cuStreamBeginRecaptureToGraph)(stream, CU_STREAM_CAPTURE_MODE_GLOBAL, graph,
                                               (CUgraphRecaptureCallback)accept_mismatch, NULL));
    finish_capture(stream, block);
}

/* After a capture has ended allocations are deferred again: groups.py looks at the device's
 * memory. */
static void capture_ended(void)
{
    CUgraph graph;
    CUdeviceptr block;
    const CUstream stream = make_stream();
    MUST(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    SEEN(TESTED(cuStreamEndCapture)(stream, &graph));
    MUST(cuMemAlloc_v2(&block, 64 * MIB));
    MUST(cuMemsetD8_v2(block, 1, 64 * MIB));
}

/* The end of a capture that fails is an end too. */
static void capture_failed(void)
{
    CUgraph graph;
    CUdeviceptr block, small;
    CUevent fork;
    const CUstream stream = make_stream();
    const CUstream other = make_stream();
    MUST(cuMemAlloc_v2(&small, 4096));
    MUST(cuEventCreate(&fork, CU_EVENT_DISABLE_TIMING));
    MUST(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    MUST(cuEventRecord(fork, stream));
    MUST(cuStreamWaitEvent(other, fork, 0));
    MUST(cuMemsetD8Async(small, 1, 4096, other));
    SEEN(TESTED(cuStreamEndCapture)(stream, &graph));
    MUST(cuMemAlloc_v2(&block, 64 * MIB));
    MUST(cuMemsetD8_v2(block, 1, 64 * MIB));
}

const struct scenario stream_scenarios[] = {
    TWINS_PTSZ("cuLaunchHostFunc", "", behind_host_function),
    TWINS_PTSZ("cuLaunchHostFunc_v2", "", behind_host_function_2),
    TWINS_PTSZ("cuStreamAddCallback", "", behind_callback),
    TWINS_PTSZ("cuWaitExternalSemaphoresAsync", "", behind_semaphore),
    {"cuIpcOpenEventHandle", behind_process, NULL},
    TWINS_PTSZ("cuStreamBeginCapture", "", captured),
    TWINS_PTSZ("cuStreamBeginCapture_v2", "", captured_2),
    TWINS_PTSZ("cuStreamBeginCaptureToGraph", "", captured_to_graph),
    TWINS_PTSZ("cuStreamBeginRecaptureToGraph", "", captured_again),
    TWINS_PTSZ("cuStreamEndCapture", "", capture_ended),
    TWINS_PTSZ("cuStreamEndCapture", ":unjoined", capture_failed),
    {NULL, NULL, NULL},
};
