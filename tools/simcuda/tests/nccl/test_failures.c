/* SPDX-License-Identifier: Apache-2.0 */
/* Failures: differences between ranks, deadlocks, deaths, aborts, wanted errors. */
#include "tools/simcuda/tests/nccl/ranks.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "tools/simcuda/harness/deny.h"

enum { COUNT = 1000 };

/* As where there are no pidfds: processes are watched in another way. */
__attribute__((constructor)) static void be_without_pidfds(void)
{
    if (getenv("TEST_WITHOUT_PIDFDS") == NULL)
        return;
    deny(SYS_pidfd_open, ENOSYS);
    CHECK_EQ(syscall(SYS_pidfd_open, getpid(), 0), -1);
}

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

/* Other ranks may be so much quicker that the call sees their error. */
static void expect_success_or(ncclResult_t result, ncclResult_t error)
{
    CHECK(result == ncclSuccess || result == error);
}

/* --- what is written to stderr */

static int kept_stderr;
static FILE *written;
static pid_t capturing;

static char *end_reports(void)
{
    enum { ROOM = 1 << 16 };
    char *text = calloc(1, ROOM);
    CHECK_EQ(dup2(kept_stderr, STDERR_FILENO), STDERR_FILENO);
    CHECK(pread(fileno(written), text, ROOM - 1, 0) >= 0);
    capturing = 0;
    return text;
}

/* A test that fails meanwhile shows them. */
static void show_reports(void)
{
    if (capturing == getpid())
        fputs(end_reports(), stderr);
}

static void capture_reports(void)
{
    capturing = getpid();
    CHECK_EQ(atexit(show_reports), 0);
    written = tmpfile();
    CHECK(written != NULL);
    kept_stderr = dup(STDERR_FILENO);
    CHECK_EQ(dup2(fileno(written), STDERR_FILENO), STDERR_FILENO);
}

static void expect_words(const char *text, const char *words)
{
    if (strstr(text, words) == NULL)
        ms_test_fail(__FILE__, __LINE__, "no \"%s\" in: %s", words, text);
}

/* --- ranks differ */

static void run_counts(struct rank *rank)
{
    const struct bench bench = start(rank);
    expect_success_or(bcast(&bench, COUNT), ncclInvalidUsage);
    expect_success_or(bcast(&bench, rank->rank == 1 ? COUNT : COUNT - 1), ncclInvalidUsage);
    expect_error(&bench, ncclInvalidUsage);
}

MS_TEST(different_counts)
{
    capture_reports();
    ranks_run(3, run_counts, NULL);
    const char *text = end_reports();
    expect_words(text, "ranks differ in collective 1");
    expect_words(text, "rank 1: Broadcast of 4000 bytes of uint32, operator 0, root 0");
    expect_words(text, "rank 2: ");
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
    expect_success_or(bcast(&bench, COUNT), ncclInvalidUsage);
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
    capture_reports();
    ranks_run(2, run_absence, NULL);
    const char *text = end_reports();
    expect_words(text, "did not get on for 1000 ms");
    expect_words(text, "in AllReduce of 4000 bytes, waits for rank 1, 0 collectives done");
    expect_words(text, "in Recv of 1 bytes, waits for rank 0, 0 collectives done");
}

/* Each rank waits for the other in another communicator; the report has both. */
static void run_two_orders(struct rank *rank)
{
    const struct bench bench = start(rank);
    struct bench other = bench;
    NCCL(ncclCommSplit(bench.comm, 0, 0, &other.comm, NULL));
    NCCL(add_up(rank->rank == 0 ? &bench : &other, COUNT));
    NCCL(add_up(rank->rank == 0 ? &other : &bench, COUNT));
    /* Whoever gives up first may free the other: one of the two is enough. */
    ncclResult_t results[2];
    sync_stream(bench.stream);
    NCCL(ncclCommGetAsyncError(bench.comm, &results[0]));
    NCCL(ncclCommGetAsyncError(other.comm, &results[1]));
    CHECK(results[0] == ncclSystemError || results[1] == ncclSystemError);
    NCCL(ncclCommAbort(bench.comm));
    NCCL(ncclCommAbort(other.comm));
}

MS_TEST(two_communicators_in_two_orders)
{
    setenv("SIMNCCL_TIMEOUT_MS", "1000", 1);
    capture_reports();
    ranks_run(2, run_two_orders, NULL);
    const char *text = end_reports();
    expect_words(text, "communicator 0 rank 0 (process ");
    expect_words(text, "communicator 1 rank 1 (process ");
    expect_words(text, "in AllReduce of 4000 bytes, waits for rank 0, 0 collectives done");
    expect_words(text, "in AllReduce of 4000 bytes, waits for rank 1, 0 collectives done");
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
    for (int i = 0; i < 4; i++)
        expect_success_or(add_up(&bench, COUNT), ncclRemoteError);
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

/* Rank 1 is in the split, but cannot open the new communicator, and ends. */
static void run_lost_child(struct rank *rank)
{
    const struct rlimit none = {0, 0};
    const struct bench bench = start(rank);
    ncclComm_t child;
    if (rank->rank == 1)
        CHECK_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
    const ncclResult_t result = ncclCommSplit(bench.comm, 0, 0, &child, NULL);
    /* Rank 2 may come when rank 0, which made the communicator's id, has given up and is gone. */
    CHECK(result == (rank->rank == 1 ? ncclSystemError : ncclRemoteError) ||
          (rank->rank == 2 && result == ncclSystemError));
}

MS_TEST(a_rank_dies_on_the_way_to_a_new_communicator)
{
    setenv("SIMNCCL_TIMEOUT_MS", "20000", 1);
    ranks_run(3, run_lost_child, NULL);
}

static void *abort_later(void *comm)
{
    const struct timespec pause = {0, 50000000};
    nanosleep(&pause, NULL);
    NCCL(ncclCommAbort(comm));
    return NULL;
}

/* Rank 1 does nothing until rank 0 is through: only the abort can end the operation. */
static void run_abort(struct rank *rank)
{
    _Atomic int *is_over = (_Atomic int *)rank->extra;
    const struct timespec pause = {0, 1000000};
    const struct bench bench = start(rank);
    if (rank->rank == 0) {
        pthread_t thread;
        NCCL(add_up(&bench, COUNT));
        CHECK_EQ(pthread_create(&thread, NULL, abort_later, bench.comm), 0);
        sync_stream(bench.stream);
        pthread_join(thread, NULL);
        atomic_store(is_over, 1);
        return;
    }
    for (int i = 0; i < 20000 && atomic_load(is_over) == 0; i++)
        nanosleep(&pause, NULL);
    CHECK_EQ(atomic_load(is_over), 1);
    NCCL(ncclRecv(bench.buffer, 1, ncclUint8, 0, bench.comm, bench.stream));
    expect_error(&bench, ncclRemoteError);
}

MS_TEST(abort_from_another_thread)
{
    void *shared = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(shared != MAP_FAILED);
    ranks_run(2, run_abort, shared);
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

/* One granule, and nothing behind it. */
static CUdeviceptr half_mapped(void)
{
    const CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                      .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
    const CUmemAccessDesc access = {prop.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUmemGenericAllocationHandle handle;
    CUdeviceptr buffer;
    CU(cuMemAddressReserve(&buffer, 4 * MIB, 0, 0, 0));
    CU(cuMemCreate(&handle, 2 * MIB, &prop, 0));
    CU(cuMemMap(buffer, 2 * MIB, 0, handle, 0));
    CU(cuMemSetAccess(buffer, 2 * MIB, &access, 1));
    return buffer;
}

/* The last byte that each operation touches is beyond the memory. */
static void run_half_mapped(struct rank *rank)
{
    const int *which = rank->extra;
    const struct bench bench = start(rank);
    void *all = (void *)(half_mapped() + 2 * MIB - 3);
    void *one = (void *)(half_mapped() + 2 * MIB - 1);
    const ncclComm_t comm = bench.comm;
    void *fine = bench.buffer;
    switch (*which) {
    case 0:
        NCCL(ncclAllGather(fine, all, 2, ncclUint8, comm, bench.stream));
        break;
    case 1:
        NCCL(ncclReduceScatter(all, fine, 2, ncclUint8, ncclSum, comm, bench.stream));
        break;
    case 2:
        NCCL(ncclAllReduce(one, fine, 2, ncclUint8, ncclSum, comm, bench.stream));
        break;
    case 3:
        NCCL(ncclAllReduce(fine, one, 2, ncclUint8, ncclSum, comm, bench.stream));
        break;
    case 4:
        NCCL(ncclAlltoAll(all, fine, 2, ncclUint8, comm, bench.stream));
        break;
    case 5:
        NCCL(ncclReduce(fine, rank->rank == 0 ? one : NULL, 2, ncclUint8, ncclSum, 0, comm,
                        bench.stream));
        break;
    default:
        NCCL(ncclBroadcast(fine, one, 2, ncclUint8, 0, comm, bench.stream));
    }
    /* Only the root of a reduction writes. */
    CHECK_EQ(cuStreamSynchronize(bench.stream),
             *which == 5 && rank->rank == 1 ? CUDA_SUCCESS : CUDA_ERROR_ILLEGAL_ADDRESS);
}

MS_TEST(memory_that_ends_too_early)
{
    for (int which = 0; which < 7; which++)
        ranks_run(2, run_half_mapped, &which);
}

/* The driver knows what queued operations will touch. */
static void run_race(struct rank *rank)
{
    struct bench bench = start(rank);
    const CUdeviceptr gate = device_with((uint32_t[]){0}, sizeof(uint32_t));
    const CUdeviceptr buffer = half_mapped();
    bench.buffer = (void *)buffer;
    CU(cuStreamWaitValue32(bench.stream, gate, 1, CU_STREAM_WAIT_VALUE_EQ));
    NCCL(bcast(&bench, COUNT));
    CU(cuMemUnmap(buffer, 2 * MIB));
    /* The operation may fail so soon that this call hears of it. */
    const CUresult result = cuMemcpyHtoD(gate, (uint32_t[]){1}, sizeof(uint32_t));
    CHECK(result == CUDA_SUCCESS || result == CUDA_ERROR_ILLEGAL_ADDRESS);
    CHECK_EQ(cuStreamSynchronize(bench.stream), CUDA_ERROR_ILLEGAL_ADDRESS);
}

MS_TEST(memory_that_goes_under_a_queued_operation)
{
    capture_reports();
    ranks_run(2, run_race, NULL);
    const char *text = end_reports();
    expect_words(text, "race: memory was unmapped while ncclKernel was queued");
    expect_words(text, "illegal access by Broadcast");
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

static void run_delayed(struct rank *rank)
{
    const long *least_ms = rank->extra;
    struct timespec begin;
    struct timespec end;
    const struct bench bench = start(rank);
    clock_gettime(CLOCK_MONOTONIC, &begin);
    for (int i = 0; i < 5; i++)
        NCCL(add_up(&bench, COUNT));
    sync_stream(bench.stream);
    clock_gettime(CLOCK_MONOTONIC, &end);
    const long ms =
        (end.tv_sec - begin.tv_sec) * 1000 + (end.tv_nsec - begin.tv_nsec) / (1000 * 1000);
    if (ms < *least_ms)
        ms_test_fail(__FILE__, __LINE__, "%ld ms, not %ld", ms, *least_ms);
    NCCL(ncclCommDestroy(bench.comm));
}

MS_TEST(wanted_delay)
{
    static const long least_ms = 150;
    setenv("SIMNCCL_FAULTS", "1:3=delay150000", 1);
    ranks_run(2, run_delayed, &least_ms);
}

MS_TEST(delays_of_all_operations)
{
    static const long least_ms = 100;
    setenv("SIMNCCL_DELAY_US", "100000", 1);
    ranks_run(2, run_delayed, &least_ms);
}
