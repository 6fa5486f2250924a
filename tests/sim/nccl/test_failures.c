/* SPDX-License-Identifier: Apache-2.0 */
/* What goes wrong: differences between ranks, deadlocks, deaths, aborts, wanted errors. */
#include "tests/sim/nccl/ranks.h"

#include <pthread.h>
#include <time.h>
#include <unistd.h>

enum { COUNT = 1000 };

/* A communicator, a stream and a buffer. */
struct bench {
    ncclComm_t comm;
    CUstream stream;
    void *buffer;
};

static struct bench start(struct rank *rank)
{
    struct bench bench = {.comm = rank_start(rank), .stream = rank_stream()};
    bench.buffer = (void *)device_allocate(COUNT * 8);
    return bench;
}

static ncclResult_t bcast(const struct bench *bench, size_t count)
{
    return ncclBcast(bench->buffer, count, ncclUint32, 0, bench->comm, bench->stream);
}

static ncclResult_t add_up(const struct bench *bench, size_t count)
{
    return ncclAllReduce(bench->buffer, bench->buffer, count, ncclUint32, ncclSum, bench->comm,
                         bench->stream);
}

/* The operation ends, the communicator has this error, and goes by abort. */
static void expect_error(const struct bench *bench, ncclResult_t wanted)
{
    CHECK_EQ(async_error(bench->comm), wanted);
    sync_stream(bench->stream);
    CHECK_EQ(bcast(bench, 1), wanted);
    NCCL(ncclCommAbort(bench->comm));
}

/* --- ranks differ */

static void run_counts(struct rank *rank)
{
    const struct bench bench = start(rank);
    NCCL(bcast(&bench, COUNT));
    NCCL(bcast(&bench, rank->rank == 1 ? COUNT : COUNT - 1));
    expect_error(&bench, ncclInvalidUsage);
}

MS_TEST(different_counts)
{
    ranks_run(3, run_counts, NULL);
}

static void run_kinds(struct rank *rank)
{
    const struct bench bench = start(rank);
    NCCL(rank->rank == 0 ? bcast(&bench, COUNT) : add_up(&bench, COUNT));
    expect_error(&bench, ncclInvalidUsage);
}

MS_TEST(different_operations)
{
    ranks_run(2, run_kinds, NULL);
}

static void run_groupings(struct rank *rank)
{
    const struct bench bench = start(rank);
    if (rank->rank == 0)
        NCCL(ncclGroupStart());
    NCCL(bcast(&bench, COUNT));
    NCCL(bcast(&bench, COUNT));
    if (rank->rank == 0)
        NCCL(ncclGroupEnd());
    expect_error(&bench, ncclInvalidUsage);
}

MS_TEST(different_groups)
{
    ranks_run(2, run_groupings, NULL);
}

static void run_messages(struct rank *rank)
{
    const struct bench bench = start(rank);
    if (rank->rank == 0)
        NCCL(ncclSend(bench.buffer, COUNT, ncclUint32, 1, bench.comm, bench.stream));
    else
        NCCL(ncclRecv(bench.buffer, COUNT, ncclFloat, 0, bench.comm, bench.stream));
    expect_error(&bench, ncclInvalidUsage);
}

MS_TEST(different_messages)
{
    ranks_run(2, run_messages, NULL);
}

/* NCCL does not look: the shorter operation is over, the longer one waits. */
static void run_real(struct rank *rank)
{
    const struct bench bench = start(rank);
    NCCL(
        ncclBcast(bench.buffer, rank->rank == 0 ? 10 : 20, ncclUint8, 0, bench.comm, bench.stream));
    if (rank->rank == 1)
        CHECK_EQ(async_error(bench.comm), ncclSystemError);
    sync_stream(bench.stream);
    NCCL(ncclCommAbort(bench.comm));
}

MS_TEST(different_counts_hang_as_in_reality)
{
    setenv("SIMNCCL_CHECK", "real", 1);
    setenv("SIMNCCL_TIMEOUT_MS", "1000", 1);
    ranks_run(2, run_real, NULL);
}

/* --- nobody comes */

static void run_absence(struct rank *rank)
{
    const struct bench bench = start(rank);
    if (rank->rank == 0)
        NCCL(add_up(&bench, COUNT));
    /* Rank 1 only looks. */
    if (rank->rank == 1)
        NCCL(ncclRecv(bench.buffer, 1, ncclUint8, 0, bench.comm, bench.stream));
    expect_error(&bench, ncclSystemError);
}

MS_TEST(a_deadlock_ends_after_a_while)
{
    setenv("SIMNCCL_TIMEOUT_MS", "1000", 1);
    ranks_run(2, run_absence, NULL);
}

static void run_two_sends(struct rank *rank)
{
    const struct bench bench = start(rank);
    NCCL(ncclSend(bench.buffer, 1, ncclUint8, 1 - rank->rank, bench.comm, bench.stream));
    NCCL(ncclRecv(bench.buffer, 1, ncclUint8, 1 - rank->rank, bench.comm, bench.stream));
    expect_error(&bench, ncclSystemError);
}

MS_TEST(sends_that_wait_for_each_other)
{
    setenv("SIMNCCL_TIMEOUT_MS", "1000", 1);
    ranks_run(2, run_two_sends, NULL);
}

static void run_lonely(struct rank *rank)
{
    ncclComm_t comm = (ncclComm_t)1;
    device_start();
    CHECK_EQ(ncclCommInitRank(&comm, 2, rank->id, 0), ncclSystemError);
    CHECK(comm == NULL);
}

MS_TEST(a_rank_that_never_comes)
{
    setenv("SIMNCCL_TIMEOUT_MS", "300", 1);
    ranks_run(1, run_lonely, NULL);
}

/* --- ends */

static void run_death(struct rank *rank)
{
    const struct bench bench = start(rank);
    for (int i = 0; i < 4; i++) {
        const ncclResult_t result = add_up(&bench, COUNT);
        CHECK(result == ncclSuccess || result == ncclRemoteError);
    }
    if (rank->rank == 1)
        sync_stream(bench.stream);
    expect_error(&bench, ncclRemoteError);
}

MS_TEST(a_rank_dies)
{
    setenv("SIMNCCL_FAULTS", "1:2=kill", 1);
    ranks_run_killed(4, 1, run_death, NULL);
}

/* A rank that has done its part may go while others are still at it. */
static void run_early_end(struct rank *rank)
{
    const struct bench bench = start(rank);
    CU(cuMemsetD8((CUdeviceptr)bench.buffer, (unsigned char)rank->rank + 1, COUNT));
    CU(cuCtxSynchronize());
    NCCL(ncclBcast(bench.buffer, COUNT, ncclUint8, 0, bench.comm, bench.stream));
    sync_stream(bench.stream);
    unsigned char last;
    CU(cuMemcpyDtoH(&last, (CUdeviceptr)bench.buffer + COUNT - 1, 1));
    CHECK_EQ(last, 1);
    exit(0); /* without a word */
}

MS_TEST(a_rank_leaves_after_its_part)
{
    setenv("SIMNCCL_FAULTS", "1:0=delay200000", 1);
    ranks_run(3, run_early_end, NULL);
}

static void *abort_later(void *comm)
{
    const struct timespec pause = {0, 50000000};
    nanosleep(&pause, NULL);
    NCCL(ncclCommAbort(comm));
    return NULL;
}

static void run_abort(struct rank *rank)
{
    const struct bench bench = start(rank);
    if (rank->rank == 0) {
        pthread_t thread;
        NCCL(add_up(&bench, COUNT));
        CHECK_EQ(pthread_create(&thread, NULL, abort_later, bench.comm), 0);
        sync_stream(bench.stream);
        pthread_join(thread, NULL);
        return;
    }
    NCCL(ncclRecv(bench.buffer, 1, ncclUint8, 0, bench.comm, bench.stream));
    expect_error(&bench, ncclRemoteError);
}

MS_TEST(abort_from_another_thread)
{
    ranks_run(2, run_abort, NULL);
}

static void run_revoke(struct rank *rank)
{
    const struct bench bench = start(rank);
    ncclComm_t next;
    int count;
    if (rank->rank == 0)
        NCCL(add_up(&bench, COUNT));
    NCCL(ncclCommRevoke(bench.comm, NCCL_REVOKE_DEFAULT));
    sync_stream(bench.stream);
    CHECK_EQ(add_up(&bench, COUNT), ncclInvalidUsage);
    CHECK_EQ(ncclCommFinalize(bench.comm), ncclInvalidUsage);
    NCCL(ncclCommSplit(bench.comm, 0, 0, &next, NULL));
    NCCL(ncclCommCount(next, &count));
    CHECK_EQ(count, 2);
    NCCL(ncclCommDestroy(next));
    NCCL(ncclCommDestroy(bench.comm));
}

MS_TEST(revoke)
{
    ranks_run(2, run_revoke, NULL);
}

static void run_shrink(struct rank *rank)
{
    struct bench bench = start(rank);
    int dead = 1;
    int count;
    int own;
    ncclComm_t next;
    add_up(&bench, COUNT);
    CHECK_EQ(async_error(bench.comm), ncclRemoteError);
    sync_stream(bench.stream);
    CHECK_EQ(ncclCommShrink(bench.comm, &dead, 1, &next, NULL, NCCL_SHRINK_DEFAULT),
             ncclRemoteError);
    NCCL(ncclCommShrink(bench.comm, &dead, 1, &next, NULL, NCCL_SHRINK_ABORT));
    NCCL(ncclCommAbort(bench.comm));
    NCCL(ncclCommCount(next, &count));
    NCCL(ncclCommUserRank(next, &own));
    CHECK_EQ(count, 2);
    CHECK_EQ(own, rank->rank / 2);
    bench.comm = next;
    const uint32_t value = (uint32_t)own + 1;
    CU(cuMemcpyHtoD((CUdeviceptr)bench.buffer, &value, sizeof(value)));
    NCCL(add_up(&bench, 1));
    sync_stream(bench.stream);
    device_expect((CUdeviceptr)bench.buffer, (uint32_t[]){3}, sizeof(uint32_t));
    NCCL(ncclCommDestroy(next));
}

MS_TEST(shrink_after_a_death)
{
    setenv("SIMNCCL_FAULTS", "0.1:0=kill", 1);
    ranks_run_killed(3, 1, run_shrink, NULL);
}

/* --- memory */

static void run_unmapped(struct rank *rank)
{
    struct bench bench = start(rank);
    CUdeviceptr hole;
    CU(cuMemAddressReserve(&hole, 4 * MIB, 0, 0, 0));
    if (rank->rank == 1)
        bench.buffer = (void *)hole;
    NCCL(bcast(&bench, COUNT));
    if (rank->rank == 1) {
        CHECK_EQ(cuStreamSynchronize(bench.stream), CUDA_ERROR_ILLEGAL_ADDRESS);
        CHECK_EQ(cuCtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
        CHECK_EQ(async_error(bench.comm), ncclUnhandledCudaError);
        return;
    }
    if (rank->rank == 2)
        expect_error(&bench, ncclRemoteError);
}

MS_TEST(memory_that_is_not_mapped)
{
    ranks_run(3, run_unmapped, NULL);
}

static void run_checked_pointer(struct rank *rank)
{
    const struct bench bench = start(rank);
    CHECK_EQ(ncclBcast((void *)rank, 1, ncclUint8, 0, bench.comm, bench.stream),
             ncclInvalidArgument);
    NCCL(ncclCommDestroy(bench.comm));
}

MS_TEST(pointers_are_checked_when_wanted)
{
    setenv("NCCL_CHECK_POINTERS", "1", 1);
    ranks_run(2, run_checked_pointer, NULL);
}

/* --- wanted errors */

static void run_wanted(struct rank *rank)
{
    const struct bench bench = start(rank);
    NCCL(add_up(&bench, COUNT));
    if (rank->rank == 0)
        CHECK_EQ(add_up(&bench, COUNT), ncclInternalError);
    NCCL(add_up(&bench, COUNT));
    NCCL(add_up(&bench, COUNT));
    expect_error(&bench, rank->rank == 1 ? ncclSystemError : ncclRemoteError);
}

MS_TEST(wanted_errors)
{
    /* The call of rank 0 is no operation; so rank 1 fails in the third one of all. */
    setenv("SIMNCCL_FAULTS", "0:1=error3,1:2=async2,7.0:0=kill", 1);
    ranks_run(2, run_wanted, NULL);
}
