/* SPDX-License-Identifier: Apache-2.0 */
/* The life of a communicator: how one is made, also from another, and how it ends. */
#include "tools/simcuda/nccl/internal.h"

#include "tools/simcuda/nccl/simnccl.h"

#include <stdlib.h>
#include <string.h>

#define CONFIG_MAGIC 0xcafebeefu

NC_API(ncclCommInitRank);
NC_API(ncclCommInitRankConfig);
NC_API(ncclCommInitRankScalable);
NC_API(ncclCommInitAll);
NC_API(ncclCommSplit);
NC_API(ncclCommShrink);
NC_API(ncclCommFinalize);
NC_API(ncclCommDestroy);
NC_API(ncclCommAbort);
NC_API(ncclCommRevoke);

/* --- creation */

/* The device and the context that are current, and an event for what groups need. */
static ncclResult_t bind_device(struct ncclComm *comm)
{
    NC_TRY(nc_driver_enter());
    NC_TRY(ncclGetVersion(&comm->version));
    NC_TRY(nc_driver_done(nc_cuda.cuCtxGetCurrent(&comm->context), "cuCtxGetCurrent"));
    NC_TRY(nc_driver_done(nc_cuda.cuCtxGetDevice(&comm->device), "cuCtxGetDevice"));
    return nc_driver_done(nc_cuda.cuEventCreate(&comm->event, CU_EVENT_DISABLE_TIMING),
                          "cuEventCreate");
}

struct init_job {
    struct nc_job job;
    ncclComm_t *place; /* of the program's handle */
    ncclUniqueId *ids;
    int ids_count;
};

static ncclResult_t run_init(struct nc_job *job)
{
    struct init_job *init = (struct init_job *)job;
    return nc_join(job->comm, init->ids, init->ids_count, NULL);
}

/* A communicator that could not be made is no handle; one that does not block keeps its error. */
static void cleanup_init(struct nc_job *job)
{
    struct init_job *init = (struct init_job *)job;
    if (job->result != ncclSuccess && job->comm->blocking) {
        nc_comm_fail(job->comm, job->result);
        *init->place = NULL;
        nc_comm_drop(job->comm);
    } else if (job->result != ncclSuccess) {
        nc_comm_fail(job->comm, job->result);
    }
    nc_comm_drop(job->comm);
    free(init->ids);
    free(init);
}

static ncclResult_t check_config(const ncclConfig_t *config, const char *call)
{
    if (config == NULL)
        return ncclSuccess;
    if (config->size >= offsetof(ncclConfig_t, blocking) && config->magic == CONFIG_MAGIC &&
        (config->blocking == NCCL_CONFIG_UNDEF_INT || config->blocking == 0 ||
         config->blocking == 1))
        return ncclSuccess;
    nc_say("%s: the config was not initialised with NCCL_CONFIG_INITIALIZER, or is not valid",
           call);
    return ncclInvalidArgument;
}

static ncclResult_t init(ncclComm_t *place, int nranks, const ncclUniqueId *ids, int count,
                         int rank, const ncclConfig_t *config, const char *call)
{
    nc_settings();
    if (place == NULL || nranks < 1 || rank < 0 || rank >= nranks || ids == NULL || count < 1 ||
        count > nranks) {
        nc_say("%s: rank %d of %d with %d ids", call, rank, nranks, count);
        return ncclInvalidArgument;
    }
    NC_TRY(check_config(config, call));
    struct ncclComm *comm = nc_comm_create(nranks, rank, config, NULL);
    const ncclResult_t result = bind_device(comm);
    if (result != ncclSuccess) {
        nc_comm_drop(comm);
        return result;
    }
    struct init_job *job = nc_zalloc(sizeof(*job));
    job->job = (struct nc_job){
        .comm = comm, .context = comm->context, .run = run_init, .cleanup = cleanup_init};
    nc_comm_keep(comm);
    job->place = place;
    job->ids = nc_zalloc((size_t)count * sizeof(ids[0]));
    job->ids_count = count;
    memcpy(job->ids, ids, (size_t)count * sizeof(ids[0]));
    *place = comm;
    return nc_group_add_job(&job->job);
}

ncclResult_t ncclCommInitRank(ncclComm_t *comm, int nranks, ncclUniqueId commId, int rank)
{
    NC_ENTER();
    return nc_group_note(init(comm, nranks, &commId, 1, rank, NULL, "ncclCommInitRank"));
}

/* NCCL's answer for a communicator that does not block, in a group too. */
static ncclResult_t answer(ncclComm_t *place, ncclResult_t result)
{
    if ((result == ncclSuccess || result == ncclInProgress) && place != NULL && *place != NULL &&
        !(*place)->blocking)
        ncclCommGetAsyncError(*place, &result);
    return result;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int nranks, ncclUniqueId commId, int rank,
                                    ncclConfig_t *config)
{
    NC_ENTER();
    return answer(comm, nc_group_note(init(comm, nranks, &commId, 1, rank, config,
                                           "ncclCommInitRankConfig")));
}

ncclResult_t ncclCommInitRankScalable(ncclComm_t *newcomm, int nranks, int myrank, int nId,
                                      ncclUniqueId *commIds, ncclConfig_t *config)
{
    NC_ENTER();
    return answer(newcomm, nc_group_note(init(newcomm, nranks, commIds, nId, myrank, config,
                                              "ncclCommInitRankScalable")));
}

static ncclResult_t check_devices(int ndev, const int *devlist)
{
    for (int i = 0; devlist != NULL && i < ndev; i++) {
        for (int k = 0; k < i; k++) {
            if (devlist[k] == devlist[i]) {
                nc_say("ncclCommInitAll: device %d is in the list twice", devlist[i]);
                return ncclInvalidUsage;
            }
        }
    }
    return ncclSuccess;
}

static ncclResult_t use_device(int ordinal)
{
    CUdevice device;
    CUcontext context;
    NC_TRY(nc_driver_done(nc_cuda.cuDeviceGet(&device, ordinal), "cuDeviceGet"));
    NC_TRY(nc_driver_done(nc_cuda.cuDevicePrimaryCtxRetain(&context, device),
                          "cuDevicePrimaryCtxRetain"));
    return nc_driver_done(nc_cuda.cuCtxSetCurrent(context), "cuCtxSetCurrent");
}

static ncclResult_t init_all(ncclComm_t *comms, int ndev, const int *devlist)
{
    ncclUniqueId id;
    NC_TRY(ncclGetUniqueId(&id));
    nc_group_start_quietly();
    for (int i = 0; i < ndev; i++) {
        ncclResult_t result = use_device(devlist == NULL ? i : devlist[i]);
        if (result == ncclSuccess)
            result = init(&comms[i], ndev, &id, 1, i, NULL, "ncclCommInitAll");
        nc_group_note(result);
    }
    return nc_group_end_quietly();
}

ncclResult_t ncclCommInitAll(ncclComm_t *comm, int ndev, const int *devlist)
{
    NC_ENTER();
    CUcontext before;
    if (comm == NULL || ndev < 1)
        return ncclInvalidArgument;
    NC_TRY(check_devices(ndev, devlist));
    NC_TRY(nc_driver_enter());
    NC_TRY(nc_driver_done(nc_cuda.cuCtxGetCurrent(&before), "cuCtxGetCurrent"));
    const ncclResult_t result = init_all(comm, ndev, devlist);
    nc_cuda.cuCtxSetCurrent(before);
    return result;
}

/* --- communicators from communicators */

struct child_job {
    struct nc_job job; /* comm: the parent */
    ncclComm_t *place;
    struct ncclComm *child;
    ncclConfig_t config;
    bool has_config;
    int color, key;
    int *excluded; /* of Shrink; NULL: Split */
    int excluded_count;
    bool ignores_errors;
};
struct split_card {
    int color, key, rank;
};
struct id_card {
    int is_valid;
    ncclUniqueId id;
};

static int compare_cards(const void *one, const void *other)
{
    const struct split_card *a = one;
    const struct split_card *b = other;
    return a->key != b->key ? (a->key < b->key ? -1 : 1) : a->rank - b->rank;
}

/* Ranks of the parent that become ranks of the child, in their new order. */
static ncclResult_t choose_by_color(struct child_job *job, int *members, int *count_out)
{
    struct ncclComm *parent = job->job.comm;
    const struct split_card mine = {job->color, job->key, parent->rank};
    struct split_card *cards = nc_zalloc((size_t)parent->nranks * sizeof(cards[0]));
    for (int i = 0; i < parent->nranks; i++)
        members[i] = i;
    const ncclResult_t result =
        nc_exchange(parent, 0, members, parent->nranks, &mine, sizeof(mine), cards, false);
    qsort(cards, (size_t)parent->nranks, sizeof(cards[0]), compare_cards);
    *count_out = 0;
    for (int i = 0; i < parent->nranks; i++) {
        if (cards[i].color == job->color && job->color != NCCL_SPLIT_NOCOLOR)
            members[(*count_out)++] = nc_settings()->mirror ? i : cards[i].rank;
    }
    free(cards);
    return result;
}

static bool is_excluded(const struct child_job *job, int rank)
{
    for (int i = 0; i < job->excluded_count; i++) {
        if (job->excluded[i] == rank)
            return true;
    }
    return false;
}

static void choose_remaining(const struct child_job *job, int *members, int *count_out)
{
    *count_out = 0;
    for (int rank = 0; rank < job->job.comm->nranks; rank++) {
        if (!is_excluded(job, rank))
            members[(*count_out)++] = rank;
    }
}

/* The first member makes an id; all who take part learn all ids. */
static ncclResult_t agree_on_id(struct child_job *job, const int *members, int count,
                                struct id_card *id_out)
{
    struct ncclComm *parent = job->job.comm;
    const bool is_split = job->excluded == NULL;
    const int asked = is_split ? parent->nranks : count;
    struct id_card mine = {0};
    int *who = nc_zalloc((size_t)asked * sizeof(who[0]));
    struct id_card *cards = nc_zalloc((size_t)asked * sizeof(cards[0]));
    for (int i = 0; i < asked; i++)
        who[i] = is_split ? i : members[i];
    if (count > 0 && members[0] == parent->rank)
        mine.is_valid = nc_id_create(&mine.id) == ncclSuccess;
    ncclResult_t result = nc_exchange(parent, is_split ? 0 : 1, who, asked, &mine, sizeof(mine),
                                      cards, job->ignores_errors);
    for (int i = 0; result == ncclSuccess && i < asked; i++) {
        if (count > 0 && who[i] == members[0])
            *id_out = cards[i];
    }
    if (result == ncclSuccess && count > 0 && !id_out->is_valid)
        result = ncclRemoteError;
    free(cards);
    free(who);
    return result;
}

static ncclResult_t make_child(struct child_job *job, const int *members, int count)
{
    struct ncclComm *parent = job->job.comm;
    const struct nc_origin origin = {parent, members};
    struct id_card id = {0};
    if (!nc_settings()->mirror)
        NC_TRY(agree_on_id(job, members, count, &id));
    int rank = 0;
    while (rank < count && members[rank] != parent->rank)
        rank++;
    if (rank == count)
        return ncclSuccess; /* without colour */
    job->child = nc_comm_create(count, rank, job->has_config ? &job->config : NULL, parent);
    NC_TRY(bind_device(job->child));
    /* Survivors of a shrink have failed, too. */
    return nc_join(job->child, &id.id, 1, job->ignores_errors ? NULL : &origin);
}

static ncclResult_t run_child(struct nc_job *job)
{
    struct child_job *child = (struct child_job *)job;
    int *members = nc_zalloc((size_t)job->comm->nranks * sizeof(members[0]));
    int count;
    ncclResult_t result = ncclSuccess;
    if (child->excluded == NULL)
        result = choose_by_color(child, members, &count);
    else
        choose_remaining(child, members, &count);
    if (result == ncclSuccess)
        result = make_child(child, members, count);
    free(members);
    if (result == ncclSuccess)
        *child->place = child->child;
    return result;
}

static void cleanup_child(struct nc_job *job)
{
    struct child_job *child = (struct child_job *)job;
    if (job->result != ncclSuccess && child->child != NULL)
        nc_comm_drop(child->child);
    if (job->result != ncclSuccess && !job->comm->blocking)
        nc_comm_fail(job->comm, job->result);
    nc_comm_drop(job->comm);
    free(child->excluded);
    free(child);
}

static struct child_job *make_child_job(ncclComm_t parent, ncclComm_t *place,
                                        const ncclConfig_t *config)
{
    struct child_job *job = nc_zalloc(sizeof(*job));
    job->job = (struct nc_job){
        .comm = parent, .context = parent->context, .run = run_child, .cleanup = cleanup_child};
    nc_comm_keep(parent);
    job->place = place;
    job->has_config = config != NULL;
    /* The program may have been built with an older header, whose struct ends earlier, or a newer
     * one. */
    if (config != NULL) {
        job->config = (ncclConfig_t)NCCL_CONFIG_INITIALIZER;
        memcpy(&job->config, config,
               config->size < sizeof(job->config) ? config->size : sizeof(job->config));
    }
    *place = NULL;
    return job;
}

static ncclResult_t split(ncclComm_t comm, int color, int key, ncclComm_t *newcomm,
                          const ncclConfig_t *config)
{
    NC_TRY(nc_comm_ready(comm, "ncclCommSplit"));
    NC_TRY(check_config(config, "ncclCommSplit"));
    if (newcomm == NULL || color < NCCL_SPLIT_NOCOLOR)
        return ncclInvalidArgument;
    struct child_job *job = make_child_job(comm, newcomm, config);
    job->color = color;
    job->key = key;
    return nc_group_add_job(&job->job);
}

ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t *newcomm,
                           ncclConfig_t *config)
{
    NC_ENTER();
    return nc_group_note(split(comm, color, key, newcomm, config));
}

/* Stops what runs and waits until it has stopped. */
static void stop_work(struct ncclComm *comm, enum nc_stop how)
{
    atomic_store(&comm->stop, how); /* seen within a slice of waiting */
    pthread_mutex_lock(&comm->lock);
    pthread_cond_broadcast(&comm->turned);
    while (comm->is_running)
        pthread_cond_wait(&comm->turned, &comm->lock);
    pthread_mutex_unlock(&comm->lock);
}

static ncclResult_t check_excluded(const struct ncclComm *comm, const int *ranks, int count)
{
    if (ranks == NULL || count < 1 || count >= comm->nranks)
        return ncclInvalidArgument;
    for (int i = 0; i < count; i++) {
        if (ranks[i] < 0 || ranks[i] >= comm->nranks || ranks[i] == comm->rank)
            return ncclInvalidArgument;
    }
    return ncclSuccess;
}

static ncclResult_t shrink(ncclComm_t comm, const int *excluded, int count, ncclComm_t *newcomm,
                           const ncclConfig_t *config, int flags)
{
    NC_TRY(nc_comm_check(comm, "ncclCommShrink"));
    NC_TRY(check_config(config, "ncclCommShrink"));
    if (newcomm == NULL || (flags != NCCL_SHRINK_DEFAULT && flags != NCCL_SHRINK_ABORT))
        return ncclInvalidArgument;
    NC_TRY(check_excluded(comm, excluded, count));
    if (flags == NCCL_SHRINK_ABORT)
        stop_work(comm, NC_REVOKED);
    else
        NC_TRY(nc_comm_ready(comm, "ncclCommShrink"));
    struct child_job *job = make_child_job(comm, newcomm, config);
    job->ignores_errors = flags == NCCL_SHRINK_ABORT;
    job->excluded = nc_zalloc((size_t)count * sizeof(excluded[0]));
    memcpy(job->excluded, excluded, (size_t)count * sizeof(excluded[0]));
    job->excluded_count = count;
    return nc_group_add_job(&job->job);
}

ncclResult_t ncclCommShrink(ncclComm_t comm, int *excludeRanksList, int excludeRanksCount,
                            ncclComm_t *newcomm, ncclConfig_t *config, int shrinkFlags)
{
    NC_ENTER();
    return nc_group_note(
        shrink(comm, excludeRanksList, excludeRanksCount, newcomm, config, shrinkFlags));
}

/* --- the end */

/* Waits until everything that was launched has run. */
static ncclResult_t drain(struct ncclComm *comm)
{
    pthread_mutex_lock(&comm->lock);
    while (comm->turn != comm->next_ticket && atomic_load(&comm->stop) == NC_RUN)
        pthread_cond_wait(&comm->turned, &comm->lock);
    while (comm->is_running)
        pthread_cond_wait(&comm->turned, &comm->lock);
    pthread_mutex_unlock(&comm->lock);
    return (ncclResult_t)atomic_load(&comm->async_error);
}

static ncclResult_t run_finalize(struct nc_job *job)
{
    return drain(job->comm);
}

static void cleanup_finalize(struct nc_job *job)
{
    nc_comm_drop(job->comm);
    free(job);
}

static ncclResult_t finalize(ncclComm_t comm)
{
    NC_TRY(nc_comm_ready(comm, "ncclCommFinalize"));
    if (atomic_load(&comm->stop) == NC_REVOKED) {
        nc_say("ncclCommFinalize: the communicator was revoked");
        return ncclInvalidUsage;
    }
    if (comm->finalized) {
        nc_say("ncclCommFinalize: called twice");
        return ncclInvalidArgument;
    }
    comm->finalized = true;
    struct nc_job *job = nc_zalloc(sizeof(*job));
    *job = (struct nc_job){
        .comm = comm, .context = comm->context, .run = run_finalize, .cleanup = cleanup_finalize};
    nc_comm_keep(comm);
    return nc_group_add_job(job);
}

ncclResult_t ncclCommFinalize(ncclComm_t comm)
{
    NC_ENTER();
    return answer(&comm, nc_group_note(finalize(comm)));
}

static void wait_for_jobs(struct ncclComm *comm)
{
    pthread_mutex_lock(&comm->lock);
    while (atomic_load(&comm->jobs) > 0)
        pthread_cond_wait(&comm->turned, &comm->lock);
    pthread_mutex_unlock(&comm->lock);
}

static ncclResult_t count_link(const struct ncclComm *comm, int from, int to, uint64_t *bytes_out)
{
    if (comm->segment == NULL || from < 0 || from >= comm->nranks || to < 0 || to >= comm->nranks)
        return ncclInvalidArgument;
    *bytes_out = 0;
    for (int lane = 0; !nc_settings()->mirror && lane < NC_LANES; lane++)
        *bytes_out += atomic_load(&nc_fifo(comm, lane, from, to)->payload);
    return ncclSuccess;
}

static void write_links(struct ncclComm *comm)
{
    for (int to = 0; comm->segment != NULL && to < comm->nranks; to++) {
        uint64_t bytes;
        if (to != comm->rank && count_link(comm, comm->rank, to, &bytes) == ncclSuccess)
            nc_log("SIMNCCL_LINKS", "comm %d from %d to %d bytes %llu", comm->number, comm->rank,
                   to, (unsigned long long)bytes);
    }
}

static void end(struct ncclComm *comm, enum nc_state state)
{
    uint32_t ready = NC_READY;
    write_links(comm);
    nc_registrations_end(comm);
    if (comm->event != NULL)
        nc_cuda.cuEventDestroy(comm->event);
    if (comm->segment != NULL) {
        atomic_compare_exchange_strong(&comm->segment->ranks[comm->rank].state, &ready, state);
        nc_ring_all(comm);
    }
    comm->destroyed = true;
    nc_comm_drop(comm);
}

ncclResult_t ncclCommDestroy(ncclComm_t comm)
{
    NC_ENTER();
    if (comm == NULL)
        return ncclSuccess;
    NC_TRY(nc_comm_check(comm, "ncclCommDestroy"));
    wait_for_jobs(comm);
    drain(comm);
    end(comm, NC_LEFT);
    return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t comm)
{
    NC_ENTER();
    if (comm == NULL)
        return ncclSuccess;
    NC_TRY(nc_comm_check(comm, "ncclCommAbort"));
    stop_work(comm, NC_ABORTED);
    wait_for_jobs(comm);
    end(comm, NC_GONE);
    return ncclSuccess;
}

static ncclResult_t revoke(ncclComm_t comm, int flags)
{
    NC_TRY(nc_comm_check(comm, "ncclCommRevoke"));
    if (flags != NCCL_REVOKE_DEFAULT)
        return ncclInvalidArgument;
    if (comm->finalized) {
        nc_say("ncclCommRevoke: the communicator was finalized");
        return ncclInvalidUsage;
    }
    stop_work(comm, NC_REVOKED);
    return ncclSuccess;
}

ncclResult_t ncclCommRevoke(ncclComm_t comm, int revokeFlags)
{
    return answer(&comm, revoke(comm, revokeFlags));
}

__attribute__((visibility("default"))) ncclResult_t simncclLinkBytes(ncclComm_t comm, int from,
                                                                     int to, uint64_t *bytes_out)
{
    NC_TRY(nc_comm_check(comm, "simncclLinkBytes"));
    return bytes_out == NULL ? ncclInvalidArgument : count_link(comm, from, to, bytes_out);
}
