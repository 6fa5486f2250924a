/* SPDX-License-Identifier: Apache-2.0 */
/* A communicator of one rank: what any machine with one GPU can hold against NCCL itself
 * (tests/gpu/nccl.py). */
#include "tools/simcuda/tests/nccl/ranks.h"

#include <unistd.h>

enum { COUNT = 3000, BYTES = COUNT * 4 };

/* A stream, and two buffers: one with known words, one with a filler. */
struct bench {
    ncclComm_t comm;
    CUstream stream;
    CUdeviceptr in, out;
    uint32_t words[COUNT], filler[COUNT];
};

static struct bench *start(struct rank *rank)
{
    static struct bench bench;
    bench.comm = rank_start(rank);
    bench.stream = rank_stream();
    for (uint32_t i = 0; i < COUNT; i++)
        bench.words[i] = i * 2654435761u;
    memset(bench.filler, 0xEE, BYTES);
    bench.in = device_with(bench.words, BYTES);
    bench.out = device_with(bench.filler, BYTES);
    return &bench;
}

#define IN ((void *)bench->in)
#define OUT ((void *)bench->out)
#define ON bench->comm, bench->stream

static void expect_copied(struct bench *bench)
{
    sync_stream(bench->stream);
    device_expect(bench->out, bench->words, BYTES);
    device_expect(bench->in, bench->words, BYTES);
    CU(cuMemcpyHtoD(bench->out, bench->filler, BYTES));
}

static void end(struct bench *bench)
{
    NCCL(ncclCommFinalize(bench->comm));
    NCCL(ncclCommDestroy(bench->comm));
}

#define ALONE(name, body)                  \
    static void run_##name(struct rank *); \
    MS_TEST(name)                          \
    {                                      \
        ranks_run(1, run_##name, NULL);    \
    }                                      \
    static void run_##name(struct rank *rank) body

ALONE(what_a_communicator_says, {
    int count = -1;
    int user_rank = -1;
    int device = -1;
    ncclResult_t state = ncclNumResults;
    struct bench *bench = start(rank);
    NCCL(ncclCommCount(bench->comm, &count));
    CHECK_EQ(count, 1);
    NCCL(ncclCommUserRank(bench->comm, &user_rank));
    CHECK_EQ(user_rank, 0);
    NCCL(ncclCommCuDevice(bench->comm, &device));
    CHECK_EQ(device, 0);
    NCCL(ncclCommGetAsyncError(bench->comm, &state));
    CHECK_EQ(state, ncclSuccess);
    end(bench);
})

ALONE(collectives_copy, {
    struct bench *bench = start(rank);
    NCCL(ncclAllReduce(IN, OUT, COUNT, ncclUint32, ncclSum, ON));
    expect_copied(bench);
    NCCL(ncclBroadcast(IN, OUT, COUNT, ncclUint32, 0, ON));
    expect_copied(bench);
    NCCL(ncclReduce(IN, OUT, COUNT, ncclUint32, ncclMax, 0, ON));
    expect_copied(bench);
    NCCL(ncclAllGather(IN, OUT, COUNT, ncclUint32, ON));
    expect_copied(bench);
    NCCL(ncclReduceScatter(IN, OUT, COUNT, ncclUint32, ncclMin, ON));
    expect_copied(bench);
    end(bench);
})

ALONE(collectives_in_place_change_nothing, {
    struct bench *bench = start(rank);
    NCCL(ncclBcast(IN, COUNT, ncclUint32, 0, ON));
    NCCL(ncclBroadcast(IN, IN, COUNT, ncclUint32, 0, ON));
    NCCL(ncclAllReduce(IN, IN, COUNT, ncclUint32, ncclSum, ON));
    NCCL(ncclReduce(IN, IN, COUNT, ncclUint32, ncclSum, 0, ON));
    NCCL(ncclAllGather(IN, IN, COUNT, ncclUint32, ON));
    NCCL(ncclReduceScatter(IN, IN, COUNT, ncclUint32, ncclSum, ON));
    sync_stream(bench->stream);
    device_expect(bench->in, bench->words, BYTES);
    end(bench);
})

/* Collectives of 2.28 are made of sends and receives. */
ALONE(exchanges_copy, {
    struct bench *bench = start(rank);
    NCCL(ncclAlltoAll(IN, OUT, COUNT, ncclUint32, ON));
    expect_copied(bench);
    NCCL(ncclGather(IN, OUT, COUNT, ncclUint32, 0, ON));
    expect_copied(bench);
    NCCL(ncclScatter(IN, OUT, COUNT, ncclUint32, 0, ON));
    expect_copied(bench);
    end(bench);
})

ALONE(work_is_in_the_order_of_the_stream, {
    struct bench *bench = start(rank);
    CU(cuMemsetD32Async(bench->in, 7, COUNT, bench->stream));
    NCCL(ncclAllReduce(IN, OUT, COUNT, ncclUint32, ncclSum, ON));
    CU(cuMemsetD32Async(bench->in, 8, COUNT, bench->stream));
    sync_stream(bench->stream);
    for (size_t i = 0; i < COUNT; i++)
        bench->words[i] = 7;
    device_expect(bench->out, bench->words, BYTES);
    end(bench);
})

ALONE(without_elements, {
    struct bench *bench = start(rank);
    NCCL(ncclAllReduce(IN, OUT, 0, ncclUint32, ncclSum, ON));
    NCCL(ncclBroadcast(IN, OUT, 0, ncclUint32, 0, ON));
    sync_stream(bench->stream);
    device_expect(bench->out, bench->filler, BYTES);
    end(bench);
})

ALONE(groups, {
    struct bench *bench = start(rank);
    NCCL(ncclGroupStart());
    NCCL(ncclGroupStart());
    NCCL(ncclBroadcast(IN, OUT, COUNT / 2, ncclUint32, 0, ON));
    NCCL(ncclGroupEnd());
    NCCL(ncclBroadcast((void *)(bench->in + BYTES / 2), (void *)(bench->out + BYTES / 2), COUNT / 2,
                       ncclUint32, 0, ON));
    NCCL(ncclGroupEnd());
    expect_copied(bench);
    CHECK_EQ(ncclGroupEnd(), ncclInvalidUsage);
    end(bench);
})

ALONE(sends_to_oneself, {
    struct bench *bench = start(rank);
    NCCL(ncclGroupStart());
    NCCL(ncclSend(IN, COUNT, ncclUint32, 0, ON));
    NCCL(ncclRecv(OUT, COUNT, ncclUint32, 0, ON));
    NCCL(ncclGroupEnd());
    expect_copied(bench);
    NCCL(ncclGroupStart());
    NCCL(ncclSend(IN, COUNT, ncclUint32, 0, ON));
    CHECK_EQ(ncclGroupEnd(), ncclInvalidUsage);
    NCCL(ncclCommAbort(bench->comm));
})

ALONE(wrong_arguments, {
    struct bench *bench = start(rank);
    CHECK_EQ(ncclBroadcast(IN, OUT, COUNT, ncclUint32, 1, ON), ncclInvalidArgument);
    CHECK_EQ(ncclBroadcast(IN, OUT, COUNT, ncclUint32, -1, ON), ncclInvalidArgument);
    CHECK_EQ(ncclAllReduce(IN, OUT, COUNT, ncclNumTypes, ncclSum, ON), ncclInvalidArgument);
    CHECK_EQ(ncclAllReduce(IN, OUT, COUNT, ncclUint32, ncclNumOps, ON), ncclInvalidArgument);
    CHECK_EQ(ncclAllReduce(IN, OUT, COUNT, ncclUint32, ncclSum, NULL, bench->stream),
             ncclInvalidArgument);
    CHECK_EQ(ncclCommCount(bench->comm, NULL), ncclInvalidArgument);
    NCCL(ncclBroadcast(IN, OUT, COUNT, ncclUint32, 0, ON));
    expect_copied(bench);
    end(bench);
})

ALONE(splits, {
    struct bench *bench = start(rank);
    ncclComm_t other = NULL;
    ncclComm_t none = bench->comm;
    int count = -1;
    NCCL(ncclCommSplit(bench->comm, 3, 9, &other, NULL));
    NCCL(ncclCommCount(other, &count));
    CHECK_EQ(count, 1);
    NCCL(ncclAllReduce(IN, OUT, COUNT, ncclUint32, ncclSum, other, bench->stream));
    expect_copied(bench);
    NCCL(ncclCommSplit(bench->comm, NCCL_SPLIT_NOCOLOR, 0, &none, NULL));
    CHECK(none == NULL);
    NCCL(ncclCommDestroy(other));
    end(bench);
})

static void run_not_blocking(struct rank *rank)
{
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    ncclComm_t comm = NULL;
    config.blocking = 0;
    device_start();
    const ncclResult_t made = ncclCommInitRankConfig(&comm, 1, rank->id, 0, &config);
    CHECK(made == ncclSuccess || made == ncclInProgress);
    CHECK_EQ(async_result(comm), ncclSuccess);
    const CUstream stream = rank_stream();
    const uint32_t word = 77;
    const CUdeviceptr in = device_with(&word, 4);
    const CUdeviceptr out = device_allocate(4);
    const ncclResult_t called =
        ncclBroadcast((void *)in, (void *)out, 1, ncclUint32, 0, comm, stream);
    CHECK(called == ncclSuccess || called == ncclInProgress);
    CHECK_EQ(async_result(comm), ncclSuccess);
    sync_stream(stream);
    device_expect(out, &word, 4);
    const ncclResult_t finalised = ncclCommFinalize(comm);
    CHECK(finalised == ncclSuccess || finalised == ncclInProgress);
    CHECK_EQ(async_result(comm), ncclSuccess);
    NCCL(ncclCommDestroy(comm));
}

MS_TEST(a_communicator_that_does_not_block)
{
    ranks_run(1, run_not_blocking, NULL);
}

ALONE(scaled_sums, {
    struct bench *bench = start(rank);
    uint32_t factor = 3;
    ncclRedOp_t scaled;
    NCCL(ncclRedOpCreatePreMulSum(&scaled, &factor, ncclUint32, ncclScalarHostImmediate,
                                  bench->comm));
    NCCL(ncclAllReduce(IN, OUT, COUNT, ncclUint32, scaled, ON));
    sync_stream(bench->stream);
    for (size_t i = 0; i < COUNT; i++)
        bench->words[i] *= 3;
    device_expect(bench->out, bench->words, BYTES);
    NCCL(ncclRedOpDestroy(scaled, bench->comm));
    end(bench);
})

ALONE(memory_of_nccl, {
    struct bench *bench = start(rank);
    void *memory = NULL;
    void *handle = NULL;
    NCCL(ncclMemAlloc(&memory, BYTES));
    CHECK(memory != NULL);
    NCCL(ncclCommRegister(bench->comm, memory, BYTES, &handle));
    NCCL(ncclBroadcast(IN, memory, COUNT, ncclUint32, 0, ON));
    sync_stream(bench->stream);
    device_expect((CUdeviceptr)memory, bench->words, BYTES);
    NCCL(ncclCommDeregister(bench->comm, handle));
    NCCL(ncclMemFree(memory));
    end(bench);
})

ALONE(a_registered_buffer, {
    struct bench *bench = start(rank);
    void *handle = NULL;
    NCCL(ncclCommRegister(bench->comm, OUT, BYTES, &handle));
    NCCL(ncclAllGather(IN, OUT, COUNT, ncclUint32, ON));
    expect_copied(bench);
    NCCL(ncclCommDeregister(bench->comm, handle));
    end(bench);
})

ALONE(captured, {
    struct bench *bench = start(rank);
    CUgraph graph;
    CUgraphExec executable;
    CU(cuStreamBeginCapture(bench->stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    NCCL(ncclAllReduce(IN, OUT, COUNT, ncclUint32, ncclSum, ON));
    CU(cuStreamEndCapture(bench->stream, &graph));
    device_expect(bench->out, bench->filler, BYTES);
    CU(cuGraphInstantiate(&executable, graph, 0));
    for (int i = 0; i < 2; i++) {
        CU(cuGraphLaunch(executable, bench->stream));
        expect_copied(bench);
    }
    CU(cuGraphExecDestroy(executable));
    CU(cuGraphDestroy(graph));
    end(bench);
})

ALONE(abort_ends_a_communicator, {
    struct bench *bench = start(rank);
    NCCL(ncclAllReduce(IN, OUT, COUNT, ncclUint32, ncclSum, ON));
    NCCL(ncclCommAbort(bench->comm));
    CU(cuCtxSynchronize());
})

MS_TEST(results_have_texts)
{
    for (int result = 0; result < ncclNumResults; result++)
        CHECK(ncclGetErrorString((ncclResult_t)result) != NULL);
    CHECK(strcmp(ncclGetErrorString(ncclSuccess), "no error") == 0);
}
