/* SPDX-License-Identifier: Apache-2.0 */
/* Groups, several streams and communicators, capture. */
#include "tools/simcuda/tests/nccl/ranks.h"

#include <stdio.h>
#include <time.h>
#include <unistd.h>

#define POINTER(address) ((void *)(address))

static CUdeviceptr word(uint32_t value)
{
    return device_with(&value, sizeof(value));
}

static void expect_word(CUdeviceptr address, uint32_t wanted)
{
    device_expect(address, &wanted, sizeof(wanted));
}

static ncclResult_t add_up(CUdeviceptr address, ncclComm_t comm, CUstream stream)
{
    return ncclAllReduce(POINTER(address), POINTER(address), 1, ncclUint32, ncclSum, comm, stream);
}

/* --- order */

enum { MEMBERS = 8 };

/* The counts of the operations in the order in which they ran. */
static void read_log(const char *path, size_t counts_out[MEMBERS])
{
    FILE *file = fopen(path, "r");
    CHECK(file != NULL);
    for (int i = 0; i < MEMBERS; i++)
        CHECK_EQ(fscanf(file, "comm %*d rank %*d Broadcast count %zu%*[^\n] ", &counts_out[i]), 1);
    CHECK_EQ(fgetc(file), EOF);
    fclose(file);
    unlink(path);
}

static void run_order(struct rank *rank)
{
    char path[64];
    size_t counts[MEMBERS];
    const int *seed = rank->extra;
    const ncclComm_t comm = rank_start(rank);
    const CUstream stream = rank_stream();
    const CUdeviceptr buffer = device_allocate(MEMBERS);
    NCCL(ncclGroupStart());
    for (size_t i = 0; i < MEMBERS; i++)
        NCCL(ncclBcast(POINTER(buffer), 1 + (i + 3) % MEMBERS, ncclUint8, 0, comm, stream));
    NCCL(ncclGroupEnd());
    sync_stream(stream);
    NCCL(ncclCommDestroy(comm));
    snprintf(path, sizeof(path), "/tmp/simnccl-order.%d", (int)getpid());
    read_log(path, counts);
    bool is_called_order = true;
    bool is_sorted = true;
    for (size_t i = 0; i < MEMBERS; i++) {
        is_called_order &= counts[i] == 1 + (i + 3) % MEMBERS;
        is_sorted &= counts[i] == MEMBERS - i;
    }
    CHECK(!is_called_order);
    CHECK_EQ(is_sorted, *seed == 0);
}

/* That all ranks have the same order is checked by the library. */
MS_TEST(order_inside_a_group_is_shuffled)
{
    static const int seed = 3;
    setenv("SIMNCCL_LOG", "/tmp/simnccl-order.%p", 1);
    setenv("SIMNCCL_SHUFFLE", "3", 1);
    ranks_run(3, run_order, &seed);
}

MS_TEST(order_inside_a_group_can_be_by_size)
{
    static const int seed = 0;
    setenv("SIMNCCL_LOG", "/tmp/simnccl-order.%p", 1);
    setenv("SIMNCCL_SHUFFLE", "0", 1);
    ranks_run(2, run_order, &seed);
}

static void run_nested(struct rank *rank)
{
    const ncclComm_t comm = rank_start(rank);
    const CUstream stream = rank_stream();
    const CUdeviceptr value = word(1);
    NCCL(ncclGroupStart());
    NCCL(ncclGroupStart());
    NCCL(add_up(value, comm, stream));
    NCCL(ncclGroupEnd());
    /* Nothing was launched: the stream is idle. */
    CU(cuStreamQuery(stream));
    expect_word(value, 1);
    NCCL(ncclGroupEnd());
    sync_stream(stream);
    expect_word(value, 2);
    CHECK_EQ(ncclGroupEnd(), ncclInvalidUsage);
    NCCL(ncclCommDestroy(comm));
}

MS_TEST(groups_launch_at_the_outermost_end)
{
    ranks_run(2, run_nested, NULL);
}

static void run_wrong_member(struct rank *rank)
{
    const ncclComm_t comm = rank_start(rank);
    const CUstream stream = rank_stream();
    const CUdeviceptr value = word(1);
    NCCL(ncclGroupStart());
    NCCL(add_up(value, comm, stream));
    CHECK_EQ(ncclBcast(POINTER(value), 1, ncclUint32, 2, comm, stream), ncclInvalidArgument);
    CHECK_EQ(ncclBcast(POINTER(value), 1, ncclNumTypes, 0, comm, stream), ncclInvalidArgument);
    CHECK_EQ(add_up(value, NULL, stream), ncclInvalidArgument);
    NCCL(add_up(value, comm, stream));
    CHECK_EQ(ncclGroupEnd(), ncclInvalidArgument);
    sync_stream(stream);
    expect_word(value, 1);
    /* The next group is a new one. */
    NCCL(ncclGroupStart());
    NCCL(add_up(value, comm, stream));
    NCCL(ncclGroupEnd());
    sync_stream(stream);
    expect_word(value, 2);
    ncclSimInfo_t info = NCCL_SIM_INFO_INITIALIZER;
    NCCL(ncclGroupStart());
    NCCL(add_up(value, comm, stream));
    NCCL(ncclGroupSimulateEnd(&info));
    CHECK(info.estimatedTime > 0);
    sync_stream(stream);
    expect_word(value, 2);
    NCCL(ncclCommDestroy(comm));
}

MS_TEST(a_wrong_call_spoils_its_group)
{
    ranks_run(2, run_wrong_member, NULL);
}

/* --- sends and receives */

static void run_exchange(struct rank *rank)
{
    enum { MESSAGES = 5, BYTES = 700 * 1000 };
    const ncclComm_t comm = rank_start(rank);
    const CUstream stream = rank_stream();
    const int other = 1 - rank->rank;
    CUdeviceptr out[MESSAGES];
    CUdeviceptr in[MESSAGES];
    unsigned char *bytes = malloc(BYTES);
    NCCL(ncclGroupStart());
    for (int i = 0; i < MESSAGES; i++) {
        memset(bytes, 10 * i + rank->rank, BYTES);
        out[i] = device_with(bytes, BYTES);
        in[i] = device_allocate(BYTES);
        NCCL(ncclSend(POINTER(out[i]), (size_t)BYTES - (size_t)i, ncclUint8, other, comm, stream));
    }
    for (int i = 0; i < MESSAGES; i++)
        NCCL(ncclRecv(POINTER(in[i]), (size_t)BYTES - (size_t)i, ncclUint8, other, comm, stream));
    NCCL(ncclGroupEnd());
    sync_stream(stream);
    for (int i = 0; i < MESSAGES; i++) {
        memset(bytes, 10 * i + other, BYTES);
        device_expect(in[i], bytes, (size_t)BYTES - (size_t)i);
    }
    NCCL(ncclCommDestroy(comm));
}

MS_TEST(messages_of_a_pair_keep_their_order)
{
    ranks_run(2, run_exchange, NULL);
}

static void run_self(struct rank *rank)
{
    const ncclComm_t comm = rank_start(rank);
    const CUstream stream = rank_stream();
    const CUdeviceptr from = word(7);
    const CUdeviceptr to = word(0);
    CHECK_EQ(ncclSend(POINTER(from), 1, ncclUint32, rank->rank, comm, stream), ncclInvalidUsage);
    NCCL(ncclGroupStart());
    NCCL(ncclRecv(POINTER(to), 1, ncclUint32, rank->rank, comm, stream));
    NCCL(ncclSend(POINTER(from), 1, ncclUint32, rank->rank, comm, stream));
    NCCL(ncclGroupEnd());
    sync_stream(stream);
    expect_word(to, 7);
    NCCL(ncclCommDestroy(comm));
}

MS_TEST(sends_to_oneself)
{
    ranks_run(1, run_self, NULL);
    ranks_run(2, run_self, NULL);
}

/* --- streams and communicators */

static void expect_busy(CUstream stream)
{
    const struct timespec pause = {0, 30000000};
    nanosleep(&pause, NULL);
    CHECK_EQ(cuStreamQuery(stream), CUDA_ERROR_NOT_READY);
}

static void run_streams(struct rank *rank)
{
    const ncclComm_t comm = rank_start(rank);
    const CUstream streams[2] = {rank_stream(), rank_stream()};
    const CUdeviceptr gate = word(0);
    const CUdeviceptr a = word(1);
    const CUdeviceptr b = word(1);
    for (uint32_t i = 0; i < 2; i++) {
        /* Work before the group on any of its streams is before all of the group. */
        CU(cuStreamWaitValue32(streams[i], gate, i + 1, CU_STREAM_WAIT_VALUE_EQ));
        NCCL(ncclGroupStart());
        NCCL(add_up(a, comm, streams[0]));
        NCCL(add_up(b, comm, streams[1]));
        NCCL(ncclGroupEnd());
        expect_busy(streams[1 - i]);
        expect_word(i == 0 ? b : a, 1u << i);
        CU(cuMemcpyHtoD(gate, &(uint32_t){i + 1}, sizeof(uint32_t)));
        sync_stream(streams[1 - i]);
        expect_word(a, 2u << i);
        expect_word(b, 2u << i);
        sync_stream(streams[i]);
    }
    NCCL(ncclCommDestroy(comm));
}

MS_TEST(streams_of_a_group_wait_for_each_other)
{
    ranks_run(2, run_streams, NULL);
}

/* Launched in one order, whatever the streams do. */
static void run_two_launches(struct rank *rank)
{
    const ncclComm_t comm = rank_start(rank);
    const CUstream streams[2] = {rank_stream(), rank_stream()};
    const CUdeviceptr gate = word(0);
    const CUdeviceptr value = word(1);
    const CUdeviceptr other = word(5);
    /* On rank 1 the first stream is slow. */
    if (rank->rank == 1)
        CU(cuStreamWaitValue32(streams[0], gate, 1, CU_STREAM_WAIT_VALUE_EQ));
    NCCL(add_up(value, comm, streams[0]));
    NCCL(ncclBcast(POINTER(other), 1, ncclUint32, 0, comm, streams[1]));
    CU(cuMemcpyHtoD(gate, (uint32_t[]){1}, sizeof(uint32_t)));
    sync_stream(streams[0]);
    sync_stream(streams[1]);
    expect_word(value, 2);
    NCCL(ncclCommDestroy(comm));
}

MS_TEST(operations_of_a_communicator_run_in_the_order_of_calls)
{
    ranks_run(2, run_two_launches, NULL);
}

static void run_two_comms(struct rank *rank)
{
    const ncclComm_t all = rank_start(rank);
    const CUstream stream = rank_stream();
    const CUdeviceptr a = word(1);
    const CUdeviceptr b = word(1);
    ncclComm_t half;
    NCCL(ncclCommSplit(all, rank->rank % 2, 0, &half, NULL));
    for (int i = 0; i < 20; i++) {
        NCCL(ncclGroupStart());
        NCCL(add_up(a, all, stream));
        NCCL(add_up(b, half, stream));
        NCCL(ncclGroupEnd());
    }
    sync_stream(stream);
    expect_word(a, 0); /* 4 to the 20th */
    expect_word(b, 1u << 20);
    NCCL(ncclCommDestroy(half));
    NCCL(ncclCommDestroy(all));
}

MS_TEST(two_communicators_in_one_group)
{
    ranks_run(4, run_two_comms, NULL);
}

/* --- capture */

static void run_capture(struct rank *rank)
{
    const ncclComm_t comm = rank_start(rank);
    const CUstream stream = rank_stream();
    const CUstream other = rank_stream();
    const CUdeviceptr value = word(1);
    CUgraph graph;
    CUgraphExec exec;
    CU(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    NCCL(add_up(value, comm, stream));
    NCCL(ncclGroupStart());
    NCCL(add_up(value, comm, stream));
    NCCL(add_up(value, comm, other));
    CHECK_EQ(ncclGroupEnd(), ncclInvalidUsage);
    CU(cuStreamEndCapture(stream, &graph));
    CU(cuGraphInstantiate(&exec, graph, 0));
    expect_word(value, 1);
    for (int i = 0; i < 3; i++)
        CU(cuGraphLaunch(exec, stream));
    NCCL(add_up(value, comm, stream));
    CU(cuGraphLaunch(exec, stream));
    sync_stream(stream);
    expect_word(value, 32);
    CU(cuGraphExecDestroy(exec));
    CU(cuGraphDestroy(graph));
    NCCL(ncclCommDestroy(comm));
}

MS_TEST(captured_operations_run_at_every_replay)
{
    ranks_run(2, run_capture, NULL);
}
