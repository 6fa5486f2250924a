/* SPDX-License-Identifier: Apache-2.0 */
/* Work that holds a stream back, captures and graphs, and threads. */
#include "tests/driver/differential/fuzz.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "tools/simcuda/tests/peer.h"

enum { LATE_BYTES = 4096, MOST = 64 << 10 };

static CUstream side_stream(int which)
{
    static CUstream streams[3];
    if (streams[which] == NULL)
        CALL(cuStreamCreate)(&streams[which], CU_STREAM_NON_BLOCKING);
    return streams[which];
}

/* --- bytes that work in the stream writes before a copy reads them */

static struct {
    unsigned char *bytes; /* pinned */
    unsigned char value;
    atomic_bool is_queued; /* the copy behind it: its call has returned */
} late;

static void write_late(void)
{
    for (int i = 0; i < 60 && !atomic_load(&late.is_queued); i++)
        usleep(50);
    memset(late.bytes, late.value, LATE_BYTES);
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

static void make_late(void)
{
    fuzz_wait();
    if (late.bytes == NULL)
        CALL(cuMemHostAlloc)((void **)&late.bytes, LATE_BYTES, 0);
    memset(late.bytes, 0x11, LATE_BYTES);
    late.value = (unsigned char)fuzz_random();
    atomic_store(&late.is_queued, false);
}

/* NEW_FUNCTION: by the ABI of 13.1. */
enum before { CALLBACK, FUNCTION, NEW_FUNCTION };

/* The block is made before: making it may wait for the device. */
static void behind(enum before before, bool twin)
{
    const CUstream stream = side_stream(0);
    const struct fuzz_block *block = fuzz_new_block(LATE_BYTES);
    make_late();
    if (before == CALLBACK)
        SEE(TWIN(twin, cuStreamAddCallback, cuStreamAddCallback_ptsz)(stream, callback, NULL, 0));
    else if (before == NEW_FUNCTION && fuzz_driver_lacks(FUZZ_cuLaunchHostFunc_v2))
        return;
    else if (before == NEW_FUNCTION)
        SEE(TWIN(twin, cuLaunchHostFunc_v2, cuLaunchHostFunc_v2_ptsz)(stream, host_function, NULL,
                                                                      1));
    else
        SEE(TWIN(twin, cuLaunchHostFunc, cuLaunchHostFunc_ptsz)(stream, host_function, NULL));
    SEE(CALL(cuMemcpyHtoDAsync_v2)(block->at, late.bytes, LATE_BYTES, stream));
    atomic_store(&late.is_queued, true);
    SEE(CALL(cuStreamSynchronize)(stream));
    fuzz_read(block->at, LATE_BYTES);
}

static void behind_any(void)
{
    const enum before before = (enum before)fuzz_below(NEW_FUNCTION + 1);
    behind(before, fuzz_one_in(2));
}

static void behind_host_function(void)
{
    behind(FUNCTION, false);
}

static void behind_host_function_twin(void)
{
    behind(FUNCTION, true);
}

static void behind_new_host_function(void)
{
    behind(NEW_FUNCTION, false);
}

static void behind_new_host_function_twin(void)
{
    behind(NEW_FUNCTION, true);
}

static void behind_callback(void)
{
    behind(CALLBACK, false);
}

static void behind_callback_twin(void)
{
    behind(CALLBACK, true);
}

/* --- the same, behind another API or another process, which this program plays or starts */

/* The copy is queued, and what it copies is written then. */
static CUdeviceptr copy_before_writing(CUstream stream, const struct fuzz_block *block)
{
    SEE(CALL(cuMemcpyHtoDAsync_v2)(block->at, late.bytes, LATE_BYTES, stream));
    memset(late.bytes, late.value, LATE_BYTES);
    return block->at;
}

static void behind_semaphore(bool twin)
{
    static CUexternalSemaphore semaphore;
    static int file;
    const uint64_t one = 1;
    const CUDA_EXTERNAL_SEMAPHORE_WAIT_PARAMS wait = {0};
    const CUstream stream = side_stream(0);
    const struct fuzz_block *block = fuzz_new_block(LATE_BYTES);
    make_late();
    if (semaphore == NULL) {
        file = eventfd(0, EFD_CLOEXEC);
        const CUDA_EXTERNAL_SEMAPHORE_HANDLE_DESC import = {
            .type = CU_EXTERNAL_SEMAPHORE_HANDLE_TYPE_OPAQUE_FD, .handle.fd = dup(file)};
        CALL(cuImportExternalSemaphore)(&semaphore, &import); /* takes the descriptor */
    }
    SEE(TWIN(twin, cuWaitExternalSemaphoresAsync,
             cuWaitExternalSemaphoresAsync_ptsz)(&semaphore, &wait, 1, stream));
    const CUdeviceptr at = copy_before_writing(stream, block);
    if (write(file, &one, sizeof(one)) != sizeof(one))
        exit(2);
    SEE(CALL(cuStreamSynchronize)(stream));
    fuzz_read(at, LATE_BYTES);
}

static void behind_semaphore_one(void)
{
    behind_semaphore(false);
}

static void behind_semaphore_twin(void)
{
    behind_semaphore(true);
}

static void behind_semaphore_any(void)
{
    behind_semaphore(fuzz_one_in(2));
}

static void behind_process(void)
{
    static struct sim_peer peer;
    CUevent event = NULL;
    const CUstream stream = side_stream(0);
    const struct fuzz_block *block = fuzz_new_block(LATE_BYTES);
    make_late();
    if (peer.to == 0)
        peer = sim_peer_start();
    const CUipcEventHandle handle = sim_peer_record(peer);
    SEE(CALL(cuIpcOpenEventHandle)(&event, handle));
    SEE(CALL(cuStreamWaitEvent)(stream, event, 0));
    const CUdeviceptr at = copy_before_writing(stream, block);
    sim_peer_go(peer);
    SEE(CALL(cuStreamSynchronize)(stream));
    SEE(CALL(cuEventDestroy_v2)(event));
    fuzz_read(at, LATE_BYTES);
}

/* --- captures */

static CUresult accept_mismatch(void)
{
    return CUDA_SUCCESS;
}

static CUresult begin_capture(CUstream stream, CUgraph *graph_out)
{
    const bool twin = fuzz_one_in(2);
    *graph_out = NULL;
    switch (fuzz_below(3)) {
    case 0:
        return SEE(TWIN(twin, cuStreamBeginCapture, cuStreamBeginCapture_ptsz)(stream));
    case 1:
        return SEE(TWIN(twin, cuStreamBeginCapture_v2,
                        cuStreamBeginCapture_v2_ptsz)(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    default:
        SEE(CALL(cuGraphCreate)(graph_out, 0));
        if (fuzz_is_newer(FUZZ_cuStreamBeginRecaptureToGraph))
            return SEE(
                TWIN(twin, cuStreamBeginRecaptureToGraph, cuStreamBeginRecaptureToGraph_ptsz)(
                    stream, CU_STREAM_CAPTURE_MODE_RELAXED, *graph_out,
                    (CUgraphRecaptureCallback)accept_mismatch, NULL));
        return SEE(TWIN(twin, cuStreamBeginCaptureToGraph, cuStreamBeginCaptureToGraph_ptsz)(
            stream, *graph_out, NULL, NULL, 0, CU_STREAM_CAPTURE_MODE_RELAXED));
    }
}

static void end_capture(CUstream stream, CUgraph *graph_out)
{
    CUgraph graph = NULL;
    SEE(TWIN(fuzz_one_in(2), cuStreamEndCapture, cuStreamEndCapture_ptsz)(stream, &graph));
    if (graph != NULL)
        *graph_out = graph;
}

/* A set and a copy are captured, do not happen then, and happen when the graph is launched. */
static void capture(void)
{
    struct fuzz_range from, to;
    CUgraph graph;
    CUgraphExec executable = NULL;
    const CUstream stream = side_stream(1);
    if (!fuzz_two_ranges(&from, &to, MOST, 1))
        return;
    fuzz_wait();
    begin_capture(stream, &graph);
    SEE(CALL(cuMemsetD8Async)(from.at, (unsigned char)fuzz_random(), from.bytes, stream));
    SEE(CALL(cuMemcpyDtoDAsync_v2)(to.at, from.at, to.bytes, stream));
    end_capture(stream, &graph);
    fuzz_read(from.at, from.bytes);
    SEE(CALL(cuGraphInstantiateWithFlags)(&executable, graph, 0));
    for (size_t times = fuzz_below(3); times > 0; times--) {
        const bool twin = fuzz_one_in(2);
        SEE(TWIN(twin, cuGraphLaunch, cuGraphLaunch_ptsz)(executable, stream));
    }
    SEE(CALL(cuStreamSynchronize)(stream));
    fuzz_read(to.at, to.bytes);
    SEE(CALL(cuGraphExecDestroy)(executable));
    SEE(CALL(cuGraphDestroy)(graph));
    fuzz_witness_end(fuzz_witness_begin()); /* the capture is over: things are deferred again */
}

/* The same, of a block that is not in memory. */
static void capture_whole(void)
{
    CUgraph graph;
    CUgraphExec executable = NULL;
    const CUstream stream = side_stream(1);
    const struct fuzz_block *block = fuzz_new_block(LATE_BYTES);
    fuzz_wait();
    begin_capture(stream, &graph);
    SEE(CALL(cuMemsetD8Async)(block->at, (unsigned char)fuzz_random(), LATE_BYTES, stream));
    end_capture(stream, &graph);
    fuzz_read(block->at, LATE_BYTES);
    SEE(CALL(cuGraphInstantiateWithFlags)(&executable, graph, 0));
    fuzz_default_stream(false);
    SEE(CALL(cuMemsetD8_v2)(block->at, (unsigned char)fuzz_random(), block->bytes));
    fuzz_wait();
    SEE(CALL(cuGraphLaunch)(executable, stream));
    SEE(CALL(cuStreamSynchronize)(stream));
    fuzz_read(block->at, block->bytes);
    SEE(CALL(cuGraphExecDestroy)(executable));
    SEE(CALL(cuGraphDestroy)(graph));
    fuzz_witness_end(fuzz_witness_begin());
}

/* The end of a capture that fails is an end too. */
static void capture_unjoined(void)
{
    CUgraph graph = NULL;
    CUevent fork = NULL;
    const CUstream stream = side_stream(1), other = side_stream(2);
    const struct fuzz_range range = fuzz_range(MOST, 1);
    fuzz_wait();
    SEE(CALL(cuEventCreate)(&fork, CU_EVENT_DISABLE_TIMING));
    begin_capture(stream, &graph);
    SEE(CALL(cuEventRecord)(fork, stream));
    SEE(CALL(cuStreamWaitEvent)(other, fork, 0));
    SEE(CALL(cuMemsetD8Async)(range.at, 1, range.bytes, other));
    CUgraph ended = NULL;
    SEE(TWIN(fuzz_one_in(2), cuStreamEndCapture, cuStreamEndCapture_ptsz)(stream, &ended));
    SEE(CALL(cuEventDestroy_v2)(fork));
    if (graph != NULL)
        CALL(cuGraphDestroy)(graph);
    fuzz_witness_end(fuzz_witness_begin());
}

/* A graph of nodes that are made one by one. */
static void graph(void)
{
    CUgraph graph = NULL;
    CUgraphExec executable = NULL;
    CUgraphNode set, copied;
    struct fuzz_range from, to;
    if (!fuzz_two_ranges(&from, &to, MOST, 1))
        return;
    CUDA_MEMSET_NODE_PARAMS value = {.dst = from.at,
                                     .value = (unsigned)fuzz_below(256),
                                     .elementSize = 1,
                                     .width = from.bytes,
                                     .height = 1};
    const CUDA_MEMCPY3D copy = {.srcMemoryType = CU_MEMORYTYPE_DEVICE,
                                .srcDevice = from.at,
                                .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                                .dstDevice = to.at,
                                .WidthInBytes = from.bytes,
                                .Height = 1,
                                .Depth = 1};
    SEE(CALL(cuGraphCreate)(&graph, 0));
    SEE(CALL(cuGraphAddMemsetNode)(&set, graph, NULL, 0, &value, fuzz_context));
    SEE(CALL(cuGraphAddMemcpyNode)(&copied, graph, &set, 1, &copy, fuzz_context));
    SEE(CALL(cuGraphInstantiateWithFlags)(&executable, graph, 0));
    value.value = (unsigned)fuzz_below(256);
    SEE(CALL(cuGraphExecMemsetNodeSetParams)(executable, set, &value, fuzz_context));
    const CUstream stream = fuzz_stream(false);
    SEE(CALL(cuGraphLaunch)(executable, stream));
    fuzz_wait();
    SEE(CALL(cuGraphExecDestroy)(executable));
    SEE(CALL(cuGraphDestroy)(graph));
    fuzz_read(to.at, to.bytes);
}

/* --- threads: each with a stream and memory of its own, handed on by events */

struct task {
    CUdeviceptr own, next; /* next: what the thread before this one has written, or 0 */
    size_t bytes;
    CUevent before, after;
    pthread_barrier_t *barrier;
    CUfunction kernel;
    unsigned char value;
    CUresult result;
};

static void *work(void *argument)
{
    struct task *task = argument;
    CUstream stream = NULL;
    uint64_t count = task->bytes / 8;
    uint32_t word = task->value * UINT32_C(0x01010101);
    CUdeviceptr place = task->own;
    void *params[] = {&place, &word, &count};
    CUresult results[8] = {CUDA_SUCCESS};
    results[0] = CALL(cuCtxSetCurrent)(fuzz_context);
    results[1] = CALL(cuStreamCreate)(&stream, CU_STREAM_NON_BLOCKING);
    results[2] = CALL(cuMemsetD8Async)(task->own, (unsigned char)~task->value, task->bytes, stream);
    results[3] = CALL(cuLaunchKernel)(task->kernel, 1, 1, 1, 1, 1, 1, 0, stream, params, NULL);
    results[4] = CALL(cuEventRecord)(task->after, stream);
    /* All events are recorded before one is waited for. */
    pthread_barrier_wait(task->barrier);
    if (task->next != 0) {
        results[5] = CALL(cuStreamWaitEvent)(stream, task->before, 0);
        results[6] = CALL(cuMemcpyDtoDAsync_v2)(task->own + task->bytes / 2, task->next,
                                                task->bytes / 4, stream);
    }
    results[7] = CALL(cuStreamSynchronize)(stream);
    CALL(cuStreamDestroy_v2)(stream);
    for (int i = 0; i < 8 && task->result == CUDA_SUCCESS; i++)
        task->result = results[i];
    return NULL;
}

static void threads(void)
{
    enum { THREADS = 3 };
    static CUevent events[THREADS];
    struct task tasks[THREADS];
    pthread_t running[THREADS];
    pthread_barrier_t barrier;
    CUdeviceptr place[THREADS];
    const size_t bytes = (1 + fuzz_below(8000)) * 8;
    fuzz_wait();
    for (int i = 0; i < THREADS; i++) {
        if (events[i] == NULL)
            CALL(cuEventCreate)(&events[i], CU_EVENT_DISABLE_TIMING);
        SEE(CALL(cuMemAlloc_v2)(&place[i], bytes));
        fuzz_define(place[i], bytes);
    }
    fuzz_wait();
    pthread_barrier_init(&barrier, NULL, THREADS);
    for (int i = 0; i < THREADS; i++) {
        /* The quarter that a neighbour copies is one that nobody writes meanwhile. */
        tasks[i] = (struct task){.own = place[i],
                                 .next = i > 0 ? place[i - 1] : 0,
                                 .bytes = bytes,
                                 .before = events[i > 0 ? i - 1 : 0],
                                 .after = events[i],
                                 .barrier = &barrier,
                                 .kernel = fuzz_kernel("fill32"),
                                 .value = (unsigned char)fuzz_random()};
        pthread_create(&running[i], NULL, work, &tasks[i]);
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(running[i], NULL);
        fuzz_see((uint64_t)tasks[i].result);
    }
    pthread_barrier_destroy(&barrier);
    for (int i = 0; i < THREADS; i++) {
        fuzz_read(place[i], bytes);
        SEE(CALL(cuMemFree_v2)(place[i]));
    }
}

const struct fuzz_operation fuzz_streams[] = {
    {"behind a host function", behind_any, 2},
    {"behind a semaphore", behind_semaphore_any, 1},
    {"behind another process", behind_process, 1},
    {"capture", capture, 2},
    {"capture of a new block", capture_whole, 3},
    {"capture that is not joined", capture_unjoined, 1},
    {"graph", graph, 3},
    {"threads", threads, 2},
    {NULL, NULL, 0},
};

/* --- first acts: what changes the shim for good */

/* A variable that the host writes too; from then on no launch is known to be harmless. */
static void in_variable(int way)
{
    CUmodule module = NULL;
    CUlibrary library = NULL;
    CUfunction kernel = NULL;
    CUdeviceptr table = 0, out = 0;
    size_t bytes = 0;
    uint32_t words[4] = {0};
    uint64_t count = 4;
    fuzz_launches_need_all = true;
    if (way == 0) {
        SEE(CALL(cuModuleLoad)(&module, fuzz_kernels_path));
        SEE(CALL(cuModuleGetGlobal_v2)(&table, &bytes, module, "managed_table"));
    } else {
        SEE(CALL(cuLibraryLoadFromFile)(&library, fuzz_kernels_path, NULL, NULL, 0, NULL, NULL, 0));
        SEE(CALL(cuLibraryGetModule)(&module, library));
        if (way == 1)
            SEE(CALL(cuLibraryGetGlobal)(&table, &bytes, library, "managed_table"));
        else
            SEE(CALL(cuLibraryGetManaged)(&table, &bytes, library, "managed_table"));
    }
    SEE(CALL(cuModuleGetFunction)(&kernel, module, "gather_managed32"));
    SEE(CALL(cuMemAlloc_v2)(&out, sizeof(words)));
    const struct fuzz_block *fresh = fuzz_new_block(LATE_BYTES);
    for (unsigned i = 0; i < 4 && table != 0; i++)
        ((CUdeviceptr *)(uintptr_t)table)[i] = fresh->at + 512 * i;
    void *params[] = {&out, &count};
    SEE(CALL(cuLaunchKernel)(kernel, 1, 1, 1, 1, 1, 1, 0, CU_STREAM_LEGACY, params, NULL));
    SEE(CALL(cuCtxSynchronize)());
    SEE(CALL(cuMemcpyDtoH_v2)(words, out, sizeof(words)));
    fuzz_see_bytes(words, sizeof(words));
    SEE(CALL(cuMemFree_v2)(out));
}

static void in_variable_of_module(void)
{
    in_variable(0);
}

static void in_variable_of_library(void)
{
    in_variable(1);
}

static void in_managed_of_library(void)
{
    in_variable(2);
}

const struct fuzz_operation fuzz_first_acts[] = {
    {"host-function", behind_host_function, 0},
    {"host-function-twin", behind_host_function_twin, 0},
    {"new-host-function", behind_new_host_function, 0},
    {"new-host-function-twin", behind_new_host_function_twin, 0},
    {"callback", behind_callback, 0},
    {"callback-twin", behind_callback_twin, 0},
    {"semaphore", behind_semaphore_one, 0},
    {"semaphore-twin", behind_semaphore_twin, 0},
    {"process", behind_process, 0},
    {"variable", in_variable_of_module, 0},
    {"variable-of-library", in_variable_of_library, 0},
    {"managed-of-library", in_managed_of_library, 0},
    {NULL, NULL, 0},
};
