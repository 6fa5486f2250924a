/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/simcuda/tests/nccl/ranks.h"

#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { RANKS_MAX = 16, POLLS = 30000 };

/* NCCL takes ranks with one device for ranks of several machines when these have several names. */
static void name_host(int rank)
{
    char name[32];
    if (getenv("RANKS_HOSTS") == NULL)
        return;
    snprintf(name, sizeof(name), "rank%d", rank);
    setenv("NCCL_HOSTID", name, 1);
}

static void run_rank(struct rank *rank, void (*body)(struct rank *))
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    name_host(rank->rank);
    body(rank);
    exit(0);
}

/* How many ranks there may be: a GPU does not hold any number of them. */
static int most_ranks(void)
{
    const char *text = getenv("RANKS_MOST");
    return text != NULL ? atoi(text) : RANKS_MAX;
}

/* An id works while the process that made it lives. One of its own: ranks must not inherit what
 * NCCL began there. */
static pid_t make_id(ncclUniqueId *id_out)
{
    int ends[2];
    CHECK_EQ(pipe(ends), 0);
    const pid_t maker = fork();
    if (maker == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        NCCL(ncclGetUniqueId(id_out));
        if (write(ends[1], id_out, sizeof(*id_out)) != (ssize_t)sizeof(*id_out))
            _exit(1);
        for (;;)
            pause();
    }
    close(ends[1]);
    CHECK_EQ(read(ends[0], id_out, sizeof(*id_out)), (ssize_t)sizeof(*id_out));
    close(ends[0]);
    return maker;
}

void ranks_run_killed(int n, int killed, void (*body)(struct rank *), const void *extra)
{
    struct rank rank = {.nranks = n, .extra = extra};
    pid_t children[RANKS_MAX];
    bool failed = false;
    if (n > most_ranks())
        return;
    fflush(NULL);
    const pid_t maker = make_id(&rank.id);
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
    kill(maker, SIGKILL);
    waitpid(maker, NULL, 0);
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
