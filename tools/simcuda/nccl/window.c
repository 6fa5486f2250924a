/* SPDX-License-Identifier: Apache-2.0 */
/* Windows: buffers that all ranks register together, as a job of the group. */
#include "tools/simcuda/nccl/internal.h"

#include <stdlib.h>

NC_API(ncclCommWindowRegister);
NC_API(ncclCommWindowDeregister);

/* All ranks register a window together, of the same size. */
struct window_job {
    struct nc_job job;
    void *buffer;
    size_t bytes;
    int flags;
    ncclWindow_t *place;
};
struct window_card {
    uint64_t bytes;
    int flags;
    int is_valid;
};

static ncclResult_t compare_windows(struct window_job *job, const struct window_card *mine)
{
    const struct ncclComm *comm = job->job.comm;
    const size_t ranks = (size_t)comm->nranks;
    struct window_card *cards = nc_zalloc(ranks * sizeof(cards[0]));
    int *who = nc_zalloc(ranks * sizeof(who[0]));
    for (int i = 0; i < comm->nranks; i++)
        who[i] = i;
    ncclResult_t result =
        nc_exchange(job->job.comm, 0, who, comm->nranks, mine, sizeof(*mine), cards, false);
    for (size_t i = 0; result == ncclSuccess && i < ranks; i++) {
        if (cards[i].bytes != mine->bytes || cards[i].flags != mine->flags || !cards[i].is_valid) {
            nc_say("%s rank %d: rank %zu registers another window, or could not", comm->name,
                   comm->rank, i);
            result = ncclInvalidUsage;
        }
    }
    free(who);
    free(cards);
    return result;
}

static ncclResult_t run_window(struct nc_job *job)
{
    struct window_job *window = (struct window_job *)job;
    void *made = NULL;
    /* Through the public names, as in NCCL. */
    const ncclResult_t own = ncclCommRegister(job->comm, window->buffer, window->bytes, &made);
    const struct window_card card = {window->bytes, window->flags, own == ncclSuccess};
    ncclResult_t result = compare_windows(window, &card);
    if (own != ncclSuccess)
        result = own;
    if (result == ncclSuccess)
        *window->place = (ncclWindow_t)made;
    else if (made != NULL)
        ncclCommDeregister(job->comm, made);
    return result;
}

static void cleanup_window(struct nc_job *job)
{
    if (job->result != ncclSuccess && !job->comm->blocking)
        nc_comm_fail(job->comm, job->result);
    nc_comm_drop(job->comm);
    free(job);
}

static ncclResult_t register_window(ncclComm_t comm, void *buffer, size_t size, ncclWindow_t *place,
                                    int flags)
{
    NC_TRY(nc_comm_ready(comm, "ncclCommWindowRegister"));
    if (buffer == NULL || size == 0 || place == NULL ||
        (flags != NCCL_WIN_DEFAULT && flags != NCCL_WIN_COLL_SYMMETRIC))
        return ncclInvalidArgument;
    if ((CUdeviceptr)buffer % NCCL_WIN_REQUIRED_ALIGNMENT != 0) {
        nc_say("ncclCommWindowRegister: %p is not aligned to %d", buffer,
               NCCL_WIN_REQUIRED_ALIGNMENT);
        return ncclInvalidArgument;
    }
    struct window_job *job = nc_zalloc(sizeof(*job));
    job->job = (struct nc_job){
        .comm = comm, .context = comm->context, .run = run_window, .cleanup = cleanup_window};
    nc_comm_keep(comm);
    job->buffer = buffer;
    job->bytes = size;
    job->flags = flags;
    job->place = place;
    *place = NULL;
    return nc_group_add_job(&job->job);
}

ncclResult_t ncclCommWindowRegister(ncclComm_t comm, void *buff, size_t size, ncclWindow_t *win,
                                    int winFlags)
{
    NC_ENTER();
    return nc_group_note(register_window(comm, buff, size, win, winFlags));
}

ncclResult_t ncclCommWindowDeregister(ncclComm_t comm, ncclWindow_t win)
{
    NC_TRY(nc_comm_check(comm, "ncclCommWindowDeregister"));
    return win == NULL ? ncclSuccess : ncclCommDeregister(comm, win);
}
