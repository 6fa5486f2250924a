/* SPDX-License-Identifier: Apache-2.0 */
/* Groups, and launching what was called in one. */
#include "tools/simcuda/nccl/internal.h"

#include <stdlib.h>
#include <string.h>

#define SIMULATION_MAGIC 0x74685283u

NC_API(ncclGroupStart);
NC_API(ncclGroupEnd);
NC_API(ncclGroupSimulateEnd);

/* The calls of one thread since its outermost ncclGroupStart. */
struct group {
    int depth;
    ncclResult_t error;
    struct nc_op *ops, **last_op;
    struct nc_job *jobs, **last_job;
};
static _Thread_local struct group group;

bool nc_group_is_open(void)
{
    return group.depth > 0;
}

ncclResult_t nc_group_note(ncclResult_t result)
{
    if (group.depth > 0 && result != ncclSuccess && result != ncclInProgress &&
        group.error == ncclSuccess)
        group.error = result;
    return result;
}

static void free_op(struct nc_op *op)
{
    nc_comm_drop(op->comm);
    free(op);
}

static void free_ops(struct nc_op *ops)
{
    while (ops != NULL) {
        struct nc_op *next = ops->next;
        free_op(ops);
        ops = next;
    }
}

/* --- launching what belongs to one communicator */

/* The distinct streams of a batch, the first one first. */
struct streams {
    CUstream *rows;
    size_t count;
};

static void find_streams(const struct nc_batch *batch, struct streams *streams_out)
{
    streams_out->rows = nc_zalloc(batch->count * sizeof(streams_out->rows[0]));
    streams_out->count = 0;
    for (size_t i = 0; i < batch->count; i++) {
        size_t at = 0;
        while (at < streams_out->count && streams_out->rows[at] != batch->ops[i]->stream)
            at++;
        if (at == streams_out->count)
            streams_out->rows[streams_out->count++] = batch->ops[i]->stream;
    }
}

static ncclResult_t check_capture(const struct streams *streams, bool *captured_out)
{
    cuuint64_t first_id = 0;
    for (size_t i = 0; i < streams->count; i++) {
        CUstreamCaptureStatus status;
        cuuint64_t id = 0;
        NC_TRY(nc_driver_done(nc_cuda.cuStreamGetCaptureInfo(streams->rows[i], &status, &id, NULL,
                                                             NULL, NULL, NULL),
                              "cuStreamGetCaptureInfo"));
        if (status != CU_STREAM_CAPTURE_STATUS_ACTIVE)
            id = 0;
        if (i == 0)
            first_id = id;
        if (id != first_id) {
            nc_say("streams of one group and communicator must all be captured by one graph, or "
                   "none");
            return ncclInvalidUsage;
        }
    }
    *captured_out = first_id != 0;
    return ncclSuccess;
}

/* `behind` goes on only when everything in `before` so far is done. */
static ncclResult_t order(const struct ncclComm *comm, CUstream before, CUstream behind)
{
    NC_TRY(nc_driver_done(nc_cuda.cuEventRecord(comm->event, before), "cuEventRecord"));
    return nc_driver_done(nc_cuda.cuStreamWaitEvent(behind, comm->event, 0), "cuStreamWaitEvent");
}

static bool is_peer_op(const struct nc_op *op)
{
    return op->kind == NC_SEND || op->kind == NC_RECV;
}

static int by_size(const void *one, const void *other)
{
    const struct nc_op *a = *(struct nc_op *const *)one;
    const struct nc_op *b = *(struct nc_op *const *)other;
    const size_t a_bytes = a->count * nc_type_bytes(a->type);
    const size_t b_bytes = b->count * nc_type_bytes(b->type);
    if (a_bytes != b_bytes)
        return a_bytes > b_bytes ? -1 : 1;
    return a->group_place - b->group_place;
}

/* NCCL promises no order inside a group. The same one on all ranks: by what they all know. */
static void reorder(struct nc_batch *batch, size_t collectives)
{
    struct ncclComm *comm = batch->comm;
    const unsigned seed = nc_settings()->shuffle;
    for (size_t i = 0; i < collectives; i++)
        batch->ops[i]->group_place = (int)i;
    if (seed == 0) {
        qsort(batch->ops, collectives, sizeof(batch->ops[0]), by_size);
        return;
    }
    uint64_t random = nc_mix(seed) ^ nc_mix(comm->launches) ^ nc_mix((uint64_t)collectives);
    for (size_t i = collectives; i > 1; i--) {
        random = nc_mix(random);
        struct nc_op *swapped = batch->ops[random % i];
        batch->ops[random % i] = batch->ops[i - 1];
        batch->ops[i - 1] = swapped;
    }
}

static void arrange(struct nc_batch *batch)
{
    struct nc_op **sorted = nc_zalloc(batch->count * sizeof(sorted[0]));
    size_t collectives = 0;
    for (int is_peer = 0, at = 0; is_peer < 2; is_peer++) {
        for (size_t i = 0; i < batch->count; i++) {
            if (is_peer_op(batch->ops[i]) == is_peer)
                sorted[at++] = batch->ops[i];
        }
        if (!is_peer)
            collectives = (size_t)at;
    }
    free(batch->ops);
    batch->ops = sorted;
    if (collectives > 1) {
        reorder(batch, collectives);
        batch->comm->launches++;
    }
    for (size_t i = 0; i < collectives; i++) {
        batch->ops[i]->group_size = (int)collectives;
        batch->ops[i]->group_place = (int)i;
    }
}

static ncclResult_t submit(struct nc_batch *batch, CUstream stream)
{
    struct simcuda_range *ranges = nc_zalloc(batch->count * 2 * sizeof(ranges[0]));
    struct simcuda_work work = {
        .name = "ncclKernel",
        .run = nc_batch_run,
        .destroy = nc_batch_destroy,
        .data = batch,
        .touches = ranges,
    };
    for (size_t i = 0; i < batch->count; i++) {
        struct nc_touch touches[2];
        const int count = nc_op_touches(batch->ops[i], touches);
        for (int k = 0; k < count; k++)
            ranges[work.touches_count++] =
                (struct simcuda_range){touches[k].begin, touches[k].bytes};
    }
    if (!batch->captured) {
        pthread_mutex_lock(&batch->comm->lock);
        batch->ticket = batch->comm->next_ticket++;
        batch->has_ticket = true;
        pthread_mutex_unlock(&batch->comm->lock);
    }
    const CUresult result = nc_cuda.submit(stream, &work);
    free(ranges);
    return nc_driver_done(result, "putting an operation in its stream");
}

static ncclResult_t prepare(struct nc_batch *batch, const struct streams *streams)
{
    NC_TRY(check_capture(streams, &batch->captured));
    arrange(batch);
    for (size_t i = 0; i < batch->count; i++) {
        batch->ops[i]->captured = batch->captured;
        nc_registration_apply(batch->ops[i]);
    }
    for (size_t i = 1; i < streams->count; i++)
        NC_TRY(order(batch->comm, streams->rows[i], streams->rows[0]));
    return ncclSuccess;
}

/* Takes the batch. */
static ncclResult_t launch(struct nc_batch *batch)
{
    struct ncclComm *comm = batch->comm;
    struct streams streams;
    CUcontext popped;
    ncclResult_t result =
        nc_driver_done(nc_cuda.cuCtxPushCurrent(comm->context), "cuCtxPushCurrent");
    if (result != ncclSuccess) {
        nc_batch_destroy(batch);
        return result;
    }
    nc_comm_keep(comm);
    find_streams(batch, &streams);
    result = prepare(batch, &streams);
    if (result == ncclSuccess)
        result = submit(batch, streams.rows[0]);
    else
        nc_batch_destroy(batch);
    for (size_t i = 1; result == ncclSuccess && i < streams.count; i++)
        result = order(comm, streams.rows[0], streams.rows[i]);
    free(streams.rows);
    nc_cuda.cuCtxPopCurrent(&popped);
    nc_comm_drop(comm);
    return result;
}

/* --- all communicators of a group */

static struct nc_batch *take_batch(struct nc_op **ops)
{
    struct nc_batch *batch = nc_zalloc(sizeof(*batch));
    size_t count = 0;
    for (const struct nc_op *op = *ops; op != NULL; op = op->next)
        count++;
    batch->comm = (*ops)->comm;
    batch->ops = nc_zalloc(count * sizeof(batch->ops[0]));
    nc_comm_keep(batch->comm);
    for (struct nc_op **link = ops; *link != NULL;) {
        struct nc_op *op = *link;
        if (op->comm != batch->comm) {
            link = &op->next;
            continue;
        }
        *link = op->next;
        op->next = NULL;
        batch->ops[batch->count++] = op;
    }
    return batch;
}

/* Takes the operations. */
static ncclResult_t launch_all(struct nc_op *ops)
{
    ncclResult_t result = ncclSuccess;
    while (ops != NULL && result == ncclSuccess)
        result = launch(take_batch(&ops));
    free_ops(ops);
    return result;
}

/* A send to oneself needs its receive in the same group. */
static ncclResult_t check_self(const struct nc_op *ops)
{
    for (const struct nc_op *op = ops; op != NULL; op = op->next) {
        int balance = 0;
        for (const struct nc_op *other = ops; other != NULL; other = other->next) {
            if (other->comm == op->comm && other->root == op->comm->rank)
                balance += other->kind == NC_SEND ? 1 : other->kind == NC_RECV ? -1 : 0;
        }
        if (is_peer_op(op) && op->root == op->comm->rank && balance != 0) {
            nc_say("%s rank %d: a send to oneself and its receive must be in one group",
                   op->comm->name, op->comm->rank);
            return ncclInvalidUsage;
        }
    }
    return ncclSuccess;
}

/* --- in the background, for communicators that do not block */

static void begin_background(struct ncclComm *comm)
{
    nc_comm_keep(comm);
    atomic_fetch_add(&comm->jobs, 1);
}

static void end_background(struct ncclComm *comm)
{
    pthread_mutex_lock(&comm->lock);
    atomic_fetch_sub(&comm->jobs, 1);
    pthread_cond_broadcast(&comm->turned);
    pthread_mutex_unlock(&comm->lock);
    nc_comm_drop(comm);
}

static ncclResult_t start_detached(void *(*run)(void *), void *argument)
{
    pthread_t thread;
    if (pthread_create(&thread, NULL, run, argument) != 0) {
        nc_say("no thread");
        return ncclSystemError;
    }
    pthread_detach(thread);
    return ncclSuccess;
}

struct background_ops {
    struct nc_op *ops;
    struct ncclComm **comms; /* one for each operation */
    size_t count;
};

static void *launch_in_background(void *argument)
{
    struct background_ops *all = argument;
    const ncclResult_t result = launch_all(all->ops);
    for (size_t i = 0; i < all->count; i++) {
        if (result != ncclSuccess)
            nc_comm_fail(all->comms[i], result);
        end_background(all->comms[i]);
    }
    free(all->comms);
    free(all);
    return NULL;
}

static ncclResult_t launch_later(struct nc_op *ops)
{
    struct background_ops *all = nc_zalloc(sizeof(*all));
    size_t count = 0;
    for (const struct nc_op *op = ops; op != NULL; op = op->next)
        count++;
    all->ops = ops;
    all->comms = nc_zalloc(count * sizeof(all->comms[0]));
    for (const struct nc_op *op = ops; op != NULL; op = op->next) {
        begin_background(op->comm);
        all->comms[all->count++] = op->comm;
    }
    NC_TRY(start_detached(launch_in_background, all));
    return ncclInProgress;
}

/* --- jobs */

static void *run_job(void *argument)
{
    struct nc_job *job = argument;
    job->result = nc_cuda.cuCtxSetCurrent(job->context) == CUDA_SUCCESS ? job->run(job)
                                                                        : ncclUnhandledCudaError;
    return NULL;
}

static void *run_job_in_background(void *argument)
{
    struct nc_job *job = argument;
    struct ncclComm *comm = job->comm;
    run_job(job);
    job->cleanup(job);
    end_background(comm);
    return NULL;
}

static ncclResult_t run_jobs_later(struct nc_job *jobs)
{
    while (jobs != NULL) {
        struct nc_job *next = jobs->next;
        begin_background(jobs->comm);
        NC_TRY(start_detached(run_job_in_background, jobs));
        jobs = next;
    }
    return ncclInProgress;
}

/* Several ranks of one process wait for each other: a thread for each. */
static ncclResult_t run_jobs(struct nc_job *jobs)
{
    const bool is_alone = jobs->next == NULL;
    ncclResult_t result = ncclSuccess;
    for (struct nc_job *job = jobs; job != NULL; job = job->next) {
        if (is_alone)
            job->result = job->run(job);
        else if (pthread_create(&job->thread, NULL, run_job, job) != 0)
            abort();
    }
    for (struct nc_job *job = jobs; job != NULL; job = job->next) {
        if (!is_alone)
            pthread_join(job->thread, NULL);
        if (job->result != ncclSuccess)
            result = job->result;
    }
    return result;
}

static void clean_jobs(struct nc_job *jobs, ncclResult_t result)
{
    while (jobs != NULL) {
        struct nc_job *next = jobs->next;
        if (jobs->result == ncclSuccess)
            jobs->result = result;
        jobs->cleanup(jobs);
        jobs = next;
    }
}

/* --- the end of a group */

static bool does_block(const struct group *ended, bool *mixed_out)
{
    bool is_first = true;
    bool blocks = true;
    *mixed_out = false;
    for (const struct nc_op *op = ended->ops; op != NULL; op = op->next) {
        *mixed_out |= !is_first && blocks != op->comm->blocking;
        blocks = op->comm->blocking;
        is_first = false;
    }
    for (const struct nc_job *job = ended->jobs; job != NULL; job = job->next) {
        *mixed_out |= !is_first && blocks != job->comm->blocking;
        blocks = job->comm->blocking;
        is_first = false;
    }
    return blocks;
}

static ncclResult_t run_group(struct group *ended, bool blocks)
{
    struct nc_op *ops = ended->ops;
    struct nc_job *jobs = ended->jobs;
    ncclResult_t result = ncclSuccess;
    ended->ops = NULL;
    ended->jobs = NULL;
    if (jobs != NULL && !blocks) {
        result = run_jobs_later(jobs);
    } else if (jobs != NULL) {
        result = run_jobs(jobs);
        clean_jobs(jobs, result);
    }
    if (ops == NULL || (result != ncclSuccess && result != ncclInProgress)) {
        free_ops(ops);
        return result;
    }
    return blocks ? launch_all(ops) : launch_later(ops);
}

static ncclResult_t refuse_mixed(void)
{
    nc_say("a group has communicators that block and others that do not");
    return ncclInvalidArgument;
}

static ncclResult_t end_group(struct group *ended)
{
    bool mixed;
    const bool blocks = does_block(ended, &mixed);
    ncclResult_t result = ended->error;
    if (result == ncclSuccess && mixed)
        result = refuse_mixed();
    if (result == ncclSuccess)
        result = check_self(ended->ops);
    if (result == ncclSuccess)
        result = run_group(ended, blocks);
    free_ops(ended->ops);
    clean_jobs(ended->jobs, result);
    return result;
}

ncclResult_t nc_group_start_quietly(void)
{
    if (group.depth++ == 0) {
        group.error = ncclSuccess;
        group.ops = NULL;
        group.last_op = &group.ops;
        group.jobs = NULL;
        group.last_job = &group.jobs;
    }
    return ncclSuccess;
}

static ncclResult_t leave_group(struct group *ended_out)
{
    if (group.depth == 0) {
        nc_say("ncclGroupEnd without ncclGroupStart");
        return ncclInvalidUsage;
    }
    *ended_out = group;
    if (--group.depth == 0)
        group.ops = NULL;
    return ncclSuccess;
}

ncclResult_t nc_group_end_quietly(void)
{
    struct group ended;
    NC_TRY(leave_group(&ended));
    return ended.depth > 1 ? ncclSuccess : end_group(&ended);
}

ncclResult_t nc_group_add_op(struct nc_op *op)
{
    nc_group_start_quietly();
    *group.last_op = op;
    group.last_op = &op->next;
    return nc_group_end_quietly();
}

/* NCCL looks whether communicators of a group block alike when they are made; for those of
 * operations, the end of the group does. */
ncclResult_t nc_group_add_job(struct nc_job *job)
{
    nc_group_start_quietly();
    const bool is_mixed = group.jobs != NULL && group.jobs->comm->blocking != job->comm->blocking;
    *group.last_job = job;
    group.last_job = &job->next;
    const ncclResult_t result = nc_group_end_quietly();
    return is_mixed ? refuse_mixed() : result;
}

ncclResult_t ncclGroupStart(void)
{
    NC_ENTER();
    return nc_group_start_quietly();
}

ncclResult_t ncclGroupEnd(void)
{
    NC_ENTER();
    return nc_group_end_quietly();
}

/* Ends the group without running it. The estimate: 10 us, and 100 GB/s. */
ncclResult_t ncclGroupSimulateEnd(ncclSimInfo_t *simInfo)
{
    struct group ended;
    if (simInfo == NULL || simInfo->magic != SIMULATION_MAGIC)
        return nc_group_note(ncclInvalidArgument);
    NC_TRY(leave_group(&ended));
    if (ended.depth > 1)
        return ncclSuccess;
    simInfo->estimatedTime = 0;
    for (const struct nc_op *op = ended.ops; op != NULL; op = op->next)
        simInfo->estimatedTime += 10 + (float)(op->count * nc_type_bytes(op->type)) / 100e3f;
    free_ops(ended.ops);
    clean_jobs(ended.jobs, ncclInvalidUsage);
    return ended.error;
}
