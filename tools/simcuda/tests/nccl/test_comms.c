/* SPDX-License-Identifier: Apache-2.0 */
/* Making, splitting and ending communicators. */
#include "tools/simcuda/tests/nccl/ranks.h"

#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

static uint32_t sum_of(ncclComm_t comm, uint32_t own)
{
    const CUstream stream = rank_stream();
    const CUdeviceptr value = device_with(&own, sizeof(own));
    NCCL(ncclAllReduce((void *)value, (void *)value, 1, ncclUint32, ncclSum, comm, stream));
    sync_stream(stream);
    CU(cuMemcpyDtoH(&own, value, sizeof(own)));
    CU(cuMemFree(value));
    return own;
}

static void expect_place(ncclComm_t comm, int rank, int nranks)
{
    int seen;
    NCCL(ncclCommUserRank(comm, &seen));
    CHECK_EQ(seen, rank);
    NCCL(ncclCommCount(comm, &seen));
    CHECK_EQ(seen, nranks);
    NCCL(ncclCommCuDevice(comm, &seen));
    CHECK_EQ(seen, 0);
}

/* --- splitting */

static void run_split(struct rank *rank)
{
    const ncclComm_t all = rank_start(rank);
    ncclComm_t part = (ncclComm_t)1;
    /* Even and odd ranks, in the opposite order; the last rank stays out. */
    const bool is_out = rank->rank == rank->nranks - 1;
    NCCL(
        ncclCommSplit(all, is_out ? NCCL_SPLIT_NOCOLOR : rank->rank % 2, -rank->rank, &part, NULL));
    if (is_out) {
        CHECK(part == NULL);
    } else {
        /* 0 2 4 6 and 1 3 5 of eight. */
        const int members = rank->rank % 2 == 0 ? 4 : 3;
        expect_place(part, members - 1 - rank->rank / 2, members);
        CHECK_EQ(sum_of(part, 1u << rank->rank), rank->rank % 2 == 0 ? 0x55 : 0x2A);
        NCCL(ncclCommDestroy(part));
    }
    /* The same key: the order of the parent. */
    NCCL(ncclCommSplit(all, rank->rank / 4, 5, &part, NULL));
    expect_place(part, rank->rank % 4, 4);
    CHECK_EQ(sum_of(part, 1u << rank->rank), rank->rank < 4 ? 0x0F : 0xF0);
    CHECK_EQ(sum_of(all, 1u << rank->rank), 0xFF);
    NCCL(ncclCommDestroy(part));
    NCCL(ncclCommDestroy(all));
}

MS_TEST(split_by_color_and_key)
{
    ranks_run(8, run_split, NULL);
}

static void run_shrink(struct rank *rank)
{
    const ncclComm_t all = rank_start(rank);
    ncclComm_t rest;
    int excluded[] = {0, 2};
    if (rank->rank % 2 == 1) {
        NCCL(ncclCommShrink(all, excluded, 2, &rest, NULL, NCCL_SHRINK_DEFAULT));
        expect_place(rest, rank->rank / 2, 2);
        CHECK_EQ(sum_of(rest, (uint32_t)rank->rank), 4);
        NCCL(ncclCommDestroy(rest));
    } else {
        CHECK_EQ(ncclCommShrink(all, excluded, 2, &rest, NULL, NCCL_SHRINK_DEFAULT),
                 ncclInvalidArgument);
    }
    CHECK_EQ(sum_of(all, 1), 4);
    NCCL(ncclCommDestroy(all));
}

MS_TEST(shrink)
{
    ranks_run(4, run_shrink, NULL);
}

/* Ranks with other numbers in two communicators of two ids. */
static void run_two_ids(struct rank *rank)
{
    const ncclUniqueId *other = rank->extra;
    const int reversed = rank->nranks - 1 - rank->rank;
    const ncclComm_t one = rank_start(rank);
    ncclComm_t two;
    NCCL(ncclCommInitRank(&two, rank->nranks, *other, reversed));
    const CUstream stream = NULL; /* the legacy one */
    uint32_t own = (uint32_t)rank->rank;
    const CUdeviceptr value = device_with(&own, sizeof(own));
    NCCL(ncclBcast((void *)value, 1, ncclUint32, 0, two, stream));
    NCCL(ncclAllReduce((void *)value, (void *)value, 1, ncclUint32, ncclSum, one, stream));
    sync_stream(stream);
    own = (uint32_t)((rank->nranks - 1) * rank->nranks);
    device_expect(value, &own, sizeof(own));
    NCCL(ncclCommDestroy(two));
    NCCL(ncclCommDestroy(one));
}

MS_TEST(two_communicators)
{
    ncclUniqueId other;
    NCCL(ncclGetUniqueId(&other));
    ranks_run(3, run_two_ids, &other);
}

/* --- one process with several devices */

/* Memory files of ids that are still open here. */
static int open_ids(void)
{
    int count = 0;
    for (int file = 0; file < 256; file++) {
        char link[64];
        char target[64] = {0};
        snprintf(link, sizeof(link), "/proc/self/fd/%d", file);
        count += readlink(link, target, sizeof(target) - 1) > 0 && strstr(target, "simnccl");
    }
    return count;
}

static void run_devices(__attribute__((unused)) struct rank *rank)
{
    enum { DEVICES = 4 };
    ncclComm_t comms[DEVICES];
    CUcontext contexts[DEVICES];
    CUstream streams[DEVICES];
    CUdeviceptr values[DEVICES];
    device_start();
    const int twice[] = {1, 1};
    CHECK_EQ(ncclCommInitAll(comms, 2, twice), ncclInvalidUsage);
    const int before = open_ids();
    NCCL(ncclCommInitAll(comms, DEVICES, NULL));
    CHECK_EQ(open_ids(), before);
    for (int i = 0; i < DEVICES; i++) {
        const uint32_t own = 1u << i;
        int device;
        NCCL(ncclCommCuDevice(comms[i], &device));
        CHECK_EQ(device, i);
        CU(cuDevicePrimaryCtxRetain(&contexts[i], i));
        CU(cuCtxSetCurrent(contexts[i]));
        streams[i] = rank_stream();
        values[i] = device_with(&own, sizeof(own));
    }
    NCCL(ncclGroupStart());
    for (int i = 0; i < DEVICES; i++)
        NCCL(ncclAllReduce((void *)values[i], (void *)values[i], 1, ncclUint32, ncclSum, comms[i],
                           streams[i]));
    NCCL(ncclGroupEnd());
    for (int i = 0; i < DEVICES; i++) {
        sync_stream(streams[i]);
        device_expect(values[i], (uint32_t[]){0xF}, sizeof(uint32_t));
    }
    for (int i = 0; i < DEVICES; i++)
        NCCL(ncclCommDestroy(comms[i]));
}

MS_TEST(all_devices_of_one_process)
{
    setenv("SIMCUDA_DEVICES", "4", 1);
    ranks_run(1, run_devices, NULL);
}

/* --- without blocking */

static void run_non_blocking(struct rank *rank)
{
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    ncclComm_t comm;
    ncclComm_t child;
    device_start();
    config.blocking = 0;
    ncclResult_t result = ncclCommInitRankConfig(&comm, 2, rank->id, rank->rank, &config);
    CHECK(result == ncclInProgress || result == ncclSuccess);
    CHECK(comm != NULL);
    CHECK_EQ(async_result(comm), ncclSuccess);
    expect_place(comm, rank->rank, 2);
    const CUstream stream = rank_stream();
    const CUdeviceptr value = device_with((uint32_t[]){1}, sizeof(uint32_t));
    NCCL(ncclGroupStart());
    NCCL(ncclAllReduce((void *)value, (void *)value, 1, ncclUint32, ncclSum, comm, stream));
    result = ncclGroupEnd();
    CHECK_EQ(result, ncclInProgress);
    CHECK_EQ(async_result(comm), ncclSuccess);
    sync_stream(stream);
    device_expect(value, (uint32_t[]){2}, sizeof(uint32_t));
    result = ncclCommSplit(comm, 0, 0, &child, NULL);
    CHECK_EQ(result, ncclInProgress);
    CHECK_EQ(async_result(comm), ncclSuccess);
    expect_place(child, rank->rank, 2);
    result = ncclCommFinalize(child);
    CHECK(result == ncclInProgress || result == ncclSuccess);
    CHECK_EQ(async_result(child), ncclSuccess);
    NCCL(ncclCommDestroy(child));
    NCCL(ncclCommDestroy(comm));
}

MS_TEST(communicators_that_do_not_block)
{
    ranks_run(2, run_non_blocking, NULL);
}

/* Alone for now: busy until the other rank comes, and nothing can be asked. */
static void run_busy(struct rank *rank)
{
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    ncclComm_t comm;
    ncclComm_t blocking;
    ncclResult_t state;
    int count;
    device_start();
    config.blocking = 0;
    CHECK_EQ(ncclCommInitRankConfig(&comm, 2, rank->id, 0, &config), ncclInProgress);
    NCCL(ncclCommGetAsyncError(comm, &state));
    CHECK_EQ(state, ncclInProgress);
    CHECK_EQ(ncclCommCount(comm, &count), ncclInvalidArgument);
    NCCL(ncclCommAbort(comm));
    ncclUniqueId ids[2];
    NCCL(ncclGetUniqueId(&ids[0]));
    NCCL(ncclGetUniqueId(&ids[1]));
    NCCL(ncclGroupStart());
    CHECK_EQ(ncclCommInitRankConfig(&comm, 1, ids[0], 0, &config), ncclSuccess);
    CHECK_EQ(ncclCommInitRank(&blocking, 1, ids[1], 0), ncclInvalidArgument);
    CHECK_EQ(ncclGroupEnd(), ncclInvalidArgument);
}

MS_TEST(a_communicator_that_is_busy)
{
    ranks_run(1, run_busy, NULL);
}

/* --- ids */

static void run_scalable(struct rank *rank)
{
    ncclUniqueId ids[2] = {rank->id, *(const ncclUniqueId *)rank->extra};
    ncclComm_t comm;
    device_start();
    NCCL(ncclCommInitRankScalable(&comm, rank->nranks, rank->rank, 2, ids, NULL));
    expect_place(comm, rank->rank, rank->nranks);
    CHECK_EQ(sum_of(comm, 1), rank->nranks);
    NCCL(ncclCommFinalize(comm));
    CHECK_EQ(ncclCommFinalize(comm), ncclInvalidArgument);
    NCCL(ncclCommDestroy(comm));
}

MS_TEST(several_ids)
{
    ncclUniqueId other;
    NCCL(ncclGetUniqueId(&other));
    ranks_run(4, run_scalable, &other);
}

static void run_other_ids(struct rank *rank)
{
    ncclUniqueId ids[2] = {rank->id, *(const ncclUniqueId *)rank->extra};
    ncclComm_t comm;
    device_start();
    if (rank->rank == 1)
        ids[1] = ids[0];
    CHECK_EQ(ncclCommInitRankScalable(&comm, 2, rank->rank, 2, ids, NULL), ncclInvalidUsage);
}

MS_TEST(ids_that_differ)
{
    ncclUniqueId other;
    NCCL(ncclGetUniqueId(&other));
    ranks_run(2, run_other_ids, &other);
}

static void run_twice(struct rank *rank)
{
    ncclComm_t comm;
    device_start();
    CHECK_EQ(ncclCommInitRank(&comm, 3, rank->id, 0), ncclInvalidUsage);
    CHECK(comm == NULL);
}

MS_TEST(a_rank_that_is_there_twice)
{
    ranks_run(2, run_twice, NULL);
}

static void run_sizes(struct rank *rank)
{
    ncclComm_t comm;
    device_start();
    const ncclResult_t result = ncclCommInitRank(&comm, 2 + rank->rank, rank->id, rank->rank);
    CHECK(result == ncclInvalidUsage || result == ncclSystemError);
}

MS_TEST(ranks_of_different_sizes)
{
    setenv("SIMNCCL_TIMEOUT_MS", "500", 1);
    ranks_run(2, run_sizes, NULL);
}

static void run_wrong_arguments(struct rank *rank)
{
    ncclConfig_t config = {.size = sizeof(config)};
    ncclUniqueId nonsense = {{1}};
    ncclComm_t comm;
    device_start();
    CHECK_EQ(ncclCommInitRank(&comm, 1, nonsense, 0), ncclInvalidArgument);
    CHECK_EQ(ncclCommInitRank(&comm, 1, rank->id, 1), ncclInvalidArgument);
    CHECK_EQ(ncclCommInitRank(NULL, 1, rank->id, 0), ncclInvalidArgument);
    CHECK_EQ(ncclCommInitRankConfig(&comm, 1, rank->id, 0, &config), ncclInvalidArgument);
    CHECK(strstr(ncclGetLastError(NULL), "NCCL_CONFIG_INITIALIZER") != NULL);
    CHECK_EQ(ncclGetUniqueId(NULL), ncclInvalidArgument);
    NCCL(ncclCommInitRank(&comm, 1, rank->id, 0));
    NCCL(ncclCommDestroy(comm));
    NCCL(ncclCommDestroy(NULL));
}

MS_TEST(wrong_arguments)
{
    ranks_run(1, run_wrong_arguments, NULL);
}

static void run_orphan(struct rank *rank)
{
    ncclComm_t comm;
    device_start();
    CHECK_EQ(ncclCommInitRank(&comm, 1, *(const ncclUniqueId *)rank->extra, 0), ncclSystemError);
}

MS_TEST(an_id_of_a_process_that_is_gone)
{
    int ends[2];
    ncclUniqueId id;
    CHECK_EQ(pipe(ends), 0);
    const pid_t child = fork();
    if (child == 0) {
        NCCL(ncclGetUniqueId(&id));
        _exit(write(ends[1], &id, sizeof(id)) != (ssize_t)sizeof(id));
    }
    CHECK_EQ(read(ends[0], &id, sizeof(id)), (ssize_t)sizeof(id));
    waitpid(child, NULL, 0);
    ranks_run(1, run_orphan, &id);
}

MS_TEST(version)
{
    int version;
    setenv("SIMNCCL_VERSION", "23005", 1);
    NCCL(ncclGetVersion(&version));
    CHECK_EQ(version, 23005);
    CHECK_EQ(strcmp(ncclGetErrorString(ncclInProgress), "NCCL operation in progress"), 0);
}
