/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/sim/nccl/ranks.h"

#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { RANKS_MAX = 16, POLLS = 30000 };

static void run_rank(struct rank *rank, void (*body)(struct rank *))
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    body(rank);
    exit(0);
}

void ranks_run_killed(int n, int killed, void (*body)(struct rank *), const void *extra)
{
    struct rank rank = {.nranks = n, .extra = extra};
    pid_t children[RANKS_MAX];
    bool failed = false;
    NCCL(ncclGetUniqueId(&rank.id));
    fflush(NULL);
    for (rank.rank = 0; rank.rank < n; rank.rank++) {
        children[rank.rank] = fork();
        if (children[rank.rank] == 0)
            run_rank(&rank, body);
    }
    for (int i = 0; i < n; i++) {
        int status;
        CHECK_EQ(waitpid(children[i], &status, 0), children[i]);
        const bool is_fine = i == killed ? WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL
                                         : WIFEXITED(status) && WEXITSTATUS(status) == 0;
        if (!is_fine)
            fprintf(stderr, "# rank %d of %d ended with status 0x%x\n", i, n, status);
        failed |= !is_fine;
    }
    CHECK(!failed);
}

void ranks_run(int n, void (*body)(struct rank *), const void *extra)
{
    ranks_run_killed(n, -1, body, extra);
}

ncclComm_t rank_start(struct rank *rank)
{
    ncclComm_t comm;
    device_start();
    NCCL(ncclCommInitRank(&comm, rank->nranks, rank->id, rank->rank));
    return comm;
}

CUstream rank_stream(void)
{
    CUstream stream;
    CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    return stream;
}

CUdeviceptr device_with(const void *bytes, size_t count)
{
    const CUdeviceptr address = device_allocate(count > 0 ? count : 1);
    if (count > 0)
        CU(cuMemcpyHtoD(address, bytes, count));
    return address;
}

void device_expect(CUdeviceptr address, const void *wanted, size_t count)
{
    unsigned char *seen = malloc(count + 1);
    CU(cuMemcpyDtoH(seen, address, count));
    CHECK_BYTES(seen, wanted, count);
    free(seen);
}

void sync_stream(CUstream stream)
{
    CU(cuStreamSynchronize(stream));
}

static ncclResult_t poll_while(ncclComm_t comm, ncclResult_t state)
{
    ncclResult_t seen = state;
    for (int i = 0; i < POLLS && seen == state; i++) {
        const struct timespec pause = {0, 1000000};
        NCCL(ncclCommGetAsyncError(comm, &seen));
        if (seen == state)
            nanosleep(&pause, NULL);
    }
    return seen;
}

ncclResult_t async_result(ncclComm_t comm)
{
    return poll_while(comm, ncclInProgress);
}

ncclResult_t async_error(ncclComm_t comm)
{
    return poll_while(comm, ncclSuccess);
}
