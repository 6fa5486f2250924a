/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Streams: queues of work, each with a thread of its own that starts with the first work. Every
 * queue entry is a mark; an entry waits for the marks that the ordering rules name, and events are
 * references to marks.
 */
#include "tools/simcuda/driver/state.h"

#include <signal.h>
#include <stdlib.h>
#include <time.h>

enum { PRIORITY_LOWEST = 0, PRIORITY_HIGHEST = -5, STOP_SECONDS = 2 };

/* The per-thread default streams of one thread; it destroys them when it ends. */
struct own_stream {
    struct own_stream *next;
    struct CUstream_st *stream;
    uint64_t stream_id;
    uint64_t context_id;
};
static _Thread_local struct own_stream *own_streams;
static pthread_key_t own_streams_key;
static pthread_once_t own_streams_once = PTHREAD_ONCE_INIT;

static struct sim_table streams; /* also destroyed ones whose work is not done */
static int workers;

/* A worker's thread, until somebody has joined it. */
struct worker {
    struct worker *next;
    struct CUstream_st *stream;
    pthread_t thread;
    bool is_over; /* it will not take the lock again */
};
static struct worker *all_workers;
static bool is_stopping;

uint64_t sim_now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

void sim_work_discard(struct sim_work *work)
{
    if (work == NULL)
        return;
    if (work->destroy != NULL)
        work->destroy(work);
    else
        free(work);
}

/* --- marks */

void sim_mark_keep_locked(struct sim_mark *mark)
{
    mark->references++;
}

void sim_mark_drop_locked(struct sim_mark *mark)
{
    if (mark != NULL && --mark->references == 0)
        free(mark);
}

/*
 * SIMCUDA_BEHIND: what was queued, in the order of the calls, and what the host has waited for. A
 * device that gets nothing new for a second, while the host asks and asks, has done all.
 */
static uint64_t queued, queued_ns, waited_for;
static unsigned asked; /* since something was queued */
/* A thread that only looks, as NCCL's watchdog, has a clock of its own. */
static _Thread_local bool has_queued;
enum { CATCHES_UP_NS = 1000 * 1000 * 1000, CATCHES_UP_ASKED = 20 };

void sim_marks_see_all_locked(void)
{
    waited_for = queued;
}

bool sim_mark_is_seen_locked(const struct sim_mark *mark)
{
    if (!sim_config.is_behind || !has_queued || mark->number <= waited_for)
        return true;
    if (++asked > CATCHES_UP_ASKED && sim_now_ns() - queued_ns > CATCHES_UP_NS)
        sim_marks_see_all_locked();
    return mark->number <= waited_for;
}

CUresult sim_mark_wait_locked(struct sim_mark *mark)
{
    if (mark->number > waited_for)
        waited_for = mark->number;
    sim_mark_keep_locked(mark);
    while (!mark->done && !is_stopping)
        pthread_cond_wait(&sim_progress, &sim_lock);
    const bool is_done = mark->done;
    sim_mark_drop_locked(mark);
    return is_done ? sim_sticky_error() : CUDA_ERROR_DEINITIALIZED;
}

static void forget_after(struct sim_mark *mark)
{
    for (int i = 0; i < mark->after_count; i++)
        sim_mark_drop_locked(mark->after[i]);
    free(mark->after);
    mark->after = NULL;
    mark->after_count = 0;
}

static bool is_ready(const struct sim_mark *mark)
{
    for (int i = 0; i < mark->after_count; i++) {
        if (!mark->after[i]->done)
            return false;
    }
    return true;
}

/* --- the worker */

/* The next stream must not have the handle of one that has just been destroyed: a test that uses it
 * afterwards is refused. */
static void free_later_locked(struct CUstream_st *stream)
{
    enum { KEPT = 1024 };
    static struct CUstream_st *kept[KEPT];
    static unsigned next;
    free(kept[next]);
    kept[next] = stream;
    next = (next + 1) % KEPT;
}

static void free_stream(struct CUstream_st *stream)
{
    sim_table_remove(&streams, &stream->region);
    sim_mark_drop_locked(stream->last);
    pthread_cond_destroy(&stream->wake);
    free_later_locked(stream);
}

/* A destroyed stream goes when nobody runs its work any more. */
static void free_if_over_locked(struct CUstream_st *stream)
{
    if (stream->is_destroyed && !stream->has_worker && stream->eager == NULL &&
        stream->first == NULL)
        free_stream(stream);
}

/* Half of all entries are not late by chance, so that others overtake those that are. */
static unsigned draw_delay_us_locked(const struct sim_work *work)
{
    const unsigned jitter = sim_config.eager ? 0 : sim_config.jitter_us;
    const bool is_late = jitter > 0 && sim_draw_locked(2) == 0;
    return (work != NULL ? sim_config.delay_us : 0) +
           (is_late ? (unsigned)sim_draw_locked(jitter) + 1 : 0);
}

static void delay(unsigned us)
{
    const struct timespec pause = {us / 1000000, (long)(us % 1000000) * 1000};
    if (us > 0)
        nanosleep(&pause, NULL);
}

static void run_locked(struct CUstream_st *stream, struct sim_mark *mark)
{
    struct sim_work *work = mark->work;
    const unsigned delay_us = draw_delay_us_locked(work);
    stream->running = mark;
    if (work != NULL || delay_us > 0) {
        pthread_mutex_unlock(&sim_lock);
        delay(delay_us);
        if (work != NULL && (work->runs_after_error || sim_sticky_error() == CUDA_SUCCESS))
            work->run(work);
        pthread_mutex_lock(&sim_lock);
    }
    stream->running = NULL;
    mark->work = NULL;
    if (work != NULL) {
        /* Nobody finds the work any more; its end may call the program, so no lock is held. */
        pthread_mutex_unlock(&sim_lock);
        sim_work_discard(work);
        pthread_mutex_lock(&sim_lock);
    }
    mark->done = true;
    mark->done_ns = sim_now_ns();
    forget_after(mark);
    sim_mark_drop_locked(mark);
    pthread_cond_broadcast(&sim_progress);
}

static void *work_on_stream(void *argument)
{
    struct worker *worker = argument;
    struct CUstream_st *stream = worker->stream;
    pthread_mutex_lock(&sim_lock);
    sim_thread.is_worker = true;
    sim_thread.running_context = stream->context;
    for (;;) {
        while (stream->first == NULL && !stream->is_destroyed && !is_stopping)
            pthread_cond_wait(&stream->wake, &sim_lock);
        struct sim_mark *mark = stream->first;
        if (mark == NULL || is_stopping)
            break;
        while (!is_ready(mark) && !is_stopping)
            pthread_cond_wait(&sim_progress, &sim_lock);
        if (is_stopping)
            break;
        stream->first = mark->next;
        if (stream->first == NULL)
            stream->last_link = &stream->first;
        run_locked(stream, mark);
    }
    stream->has_worker = false;
    free_if_over_locked(stream);
    workers--;
    worker->is_over = true;
    pthread_cond_broadcast(&sim_progress);
    pthread_mutex_unlock(&sim_lock);
    return NULL;
}

static void join_workers_locked(void)
{
    for (struct worker **link = &all_workers; *link != NULL;) {
        struct worker *worker = *link;
        if (worker->is_over) {
            pthread_join(worker->thread, NULL);
            *link = worker->next;
            free(worker);
        } else {
            link = &worker->next;
        }
    }
}

static void start_worker_locked(struct CUstream_st *stream)
{
    struct worker *worker = sim_zalloc(sizeof(*worker));
    sigset_t all;
    sigset_t before;
    /* Signals are for the program's own threads. */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    join_workers_locked();
    worker->stream = stream;
    worker->next = all_workers;
    all_workers = worker;
    if (pthread_create(&worker->thread, NULL, work_on_stream, worker) != 0) {
        sim_complain("no thread for a stream");
        abort();
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    stream->has_worker = true;
    workers++;
}

void sim_streams_stop(void)
{
    struct timespec limit;
    clock_gettime(CLOCK_REALTIME, &limit);
    limit.tv_sec += STOP_SECONDS;
    pthread_mutex_lock(&sim_lock);
    is_stopping = true;
    pthread_cond_broadcast(&sim_progress);
    for (size_t i = 0; i < streams.count; i++)
        pthread_cond_signal(&((struct CUstream_st *)streams.rows[i])->wake);
    /* A host function that never ends, or that called exit() itself, is not waited for. */
    const int remaining = sim_thread.is_worker ? 1 : 0;
    while (workers > remaining && pthread_cond_timedwait(&sim_progress, &sim_lock, &limit) == 0)
        ;
    join_workers_locked();
    pthread_mutex_unlock(&sim_lock);
}

bool sim_streams_are_stopping_locked(void)
{
    return is_stopping;
}

bool sim_streams_are_stopping(void)
{
    pthread_mutex_lock(&sim_lock);
    const bool result = is_stopping;
    pthread_mutex_unlock(&sim_lock);
    return result;
}

/* --- queueing */

/* The marks that the new entry waits for by the default stream's rules. Returns their number. */
static int implicit_order(const struct CUstream_st *stream, struct sim_mark **after_out)
{
    const struct CUctx_st *context = stream->context;
    int count = 0;
    if (stream->is_legacy) {
        for (const struct CUstream_st *each = context->streams; each != NULL; each = each->next) {
            if (!sim_stream_is_blocking(each) || !sim_stream_is_busy(each))
                continue;
            if (after_out != NULL)
                after_out[count] = each->last;
            count++;
        }
    } else if (sim_stream_is_blocking(stream) && context->legacy != NULL &&
               sim_stream_is_busy(context->legacy)) {
        if (after_out != NULL)
            after_out[count] = context->legacy->last;
        count++;
    }
    return count;
}

/* Nothing is before what is queued now. */
static bool is_next(const struct CUstream_st *stream)
{
    return sim_config.eager && !sim_stream_is_busy(stream) && implicit_order(stream, NULL) == 0;
}

static void set_last(struct CUstream_st *stream, struct sim_mark *mark)
{
    mark->number = ++queued;
    if (sim_config.is_behind) {
        queued_ns = sim_now_ns();
        asked = 0;
        has_queued = true;
    }
    sim_mark_drop_locked(stream->last);
    stream->last = mark;
}

/* Runs work on this thread. The lock is given up meanwhile; then the stream may be gone. */
static void run_eagerly_locked(struct CUstream_st *stream, struct sim_work *work)
{
    struct sim_mark *mark = sim_zalloc(sizeof(*mark));
    const struct sim_thread thread = sim_thread;
    mark->work = work;
    mark->references = 2; /* run_locked drops one */
    set_last(stream, mark);
    stream->eager = mark;
    sim_thread.is_worker = true;
    sim_thread.running_context = stream->context;
    run_locked(stream, mark);
    sim_thread = thread;
    stream->eager = NULL;
    free_if_over_locked(stream);
}

struct sim_mark *sim_stream_queue_locked(struct CUstream_st *stream, struct sim_work *work,
                                         struct sim_mark *after)
{
    struct sim_mark *mark = sim_zalloc(sizeof(*mark));
    if (work == NULL && (after == NULL || after->done) && is_next(stream)) {
        mark->references = 1;
        mark->done = true;
        mark->done_ns = sim_now_ns();
        set_last(stream, mark);
        return mark;
    }
    /* Work that a thread of its own runs is in no queue: the worker waits for it. */
    struct sim_mark *waits_for[] = {after, stream->eager};
    int extra = 0;
    for (int i = 0; i < 2; i++) {
        if (waits_for[i] != NULL && !waits_for[i]->done)
            waits_for[extra++] = waits_for[i];
    }
    const int count = implicit_order(stream, NULL) + extra;
    mark->work = work;
    if (count > 0) {
        mark->after = sim_zalloc((size_t)count * sizeof(mark->after[0]));
        mark->after_count = count;
        implicit_order(stream, mark->after);
        for (int i = 0; i < extra; i++)
            mark->after[count - extra + i] = waits_for[i];
        for (int i = 0; i < count; i++)
            sim_mark_keep_locked(mark->after[i]);
    }
    mark->references = 2; /* the queue's and stream->last's */
    set_last(stream, mark);
    *stream->last_link = mark;
    stream->last_link = &mark->next;
    if (!stream->has_worker)
        start_worker_locked(stream);
    pthread_cond_signal(&stream->wake);
    return mark;
}

CUresult sim_stream_submit(CUstream handle, bool per_thread, struct sim_work *work)
{
    struct CUstream_st *stream;
    pthread_mutex_lock(&sim_lock);
    CUresult result = sim_stream_find_locked(handle, per_thread, &stream);
    if (result == CUDA_SUCCESS && stream->capture != NULL) {
        result = sim_capture_add_locked(stream, work);
        pthread_mutex_unlock(&sim_lock);
        return result;
    }
    if (result == CUDA_SUCCESS && stream->is_legacy)
        result = sim_capture_refuse_legacy_locked(stream->context);
    if (result == CUDA_SUCCESS && !work->may_wait && is_next(stream))
        run_eagerly_locked(stream, work);
    else if (result == CUDA_SUCCESS)
        sim_stream_queue_locked(stream, work, NULL);
    pthread_mutex_unlock(&sim_lock);
    if (result != CUDA_SUCCESS)
        sim_work_discard(work);
    return result;
}

CUresult sim_stream_wait_locked(struct CUstream_st *stream)
{
    /* All marks first: the streams may be gone when the lock comes back. */
    const int others = stream->is_legacy ? implicit_order(stream, NULL) : 0;
    struct sim_mark **marks = sim_zalloc((size_t)(others + 1) * sizeof(marks[0]));
    if (others > 0)
        implicit_order(stream, marks);
    marks[others] = stream->last;
    CUresult result = sim_sticky_error();
    for (int i = 0; i <= others; i++) {
        if (marks[i] != NULL)
            sim_mark_keep_locked(marks[i]);
    }
    for (int i = 0; i <= others; i++) {
        if (marks[i] != NULL)
            result = sim_mark_wait_locked(marks[i]);
        sim_mark_drop_locked(marks[i]);
    }
    free(marks);
    return result;
}

CUresult sim_stream_wait(CUstream handle, bool per_thread)
{
    struct CUstream_st *stream;
    pthread_mutex_lock(&sim_lock);
    CUresult result = sim_stream_find_locked(handle, per_thread, &stream);
    if (result == CUDA_SUCCESS)
        result = sim_capture_refuse_stream_locked(stream);
    if (result == CUDA_SUCCESS)
        result = sim_stream_wait_locked(stream);
    pthread_mutex_unlock(&sim_lock);
    return result;
}

/* On a stream of its own, which is gone again at once; destroyed streams may still have work. */
CUresult sim_context_mark_locked(struct CUctx_st *context, struct sim_mark **mark_out)
{
    const CUresult result = sim_capture_refuse_context_locked(context);
    if (result != CUDA_SUCCESS)
        return result;
    struct CUstream_st *stream = sim_stream_create_locked(context, CU_STREAM_NON_BLOCKING, 0);
    for (size_t i = 0; i < streams.count; i++) {
        const struct CUstream_st *each = (const struct CUstream_st *)streams.rows[i];
        if (each->context == context && each != stream && sim_stream_is_busy(each))
            sim_stream_queue_locked(stream, NULL, each->last);
    }
    *mark_out = sim_stream_queue_locked(stream, NULL, NULL);
    sim_mark_keep_locked(*mark_out);
    sim_stream_destroy_locked(stream);
    return CUDA_SUCCESS;
}

static bool meets(const struct sim_range *range, CUdeviceptr begin, size_t bytes)
{
    return range->bytes > 0 && range->begin < begin + bytes && begin < range->begin + range->bytes;
}

static bool touches(const struct sim_mark *mark, CUdeviceptr begin, size_t bytes)
{
    const struct sim_work *work = mark == NULL ? NULL : mark->work;
    for (int i = 0; work != NULL && i < work->touches_count; i++) {
        if (meets(&work->touches[i], begin, bytes))
            return true;
    }
    for (size_t i = 0; work != NULL && i < work->more_touches_count; i++) {
        if (meets(&work->more_touches[i], begin, bytes))
            return true;
    }
    return false;
}

static bool wait_for_one_running_locked(CUdeviceptr begin, size_t bytes)
{
    for (size_t i = 0; i < streams.count; i++) {
        struct CUstream_st *stream = (struct CUstream_st *)streams.rows[i];
        if (touches(stream->running, begin, bytes)) {
            sim_mark_wait_locked(stream->running);
            return !is_stopping;
        }
    }
    return false;
}

void sim_streams_retire_range_locked(CUdeviceptr begin, size_t bytes, const char *what)
{
    const char *user = NULL;
    for (size_t i = 0; i < streams.count && user == NULL; i++) {
        const struct CUstream_st *stream = (struct CUstream_st *)streams.rows[i];
        if (touches(stream->running, begin, bytes))
            user = stream->running->work->name;
        for (const struct sim_mark *mark = stream->first; mark != NULL && user == NULL;
             mark = mark->next) {
            if (touches(mark, begin, bytes))
                user = mark->work->name;
        }
    }
    if (user == NULL)
        return;
    sim_stats.races++;
    sim_complain("race: %s while %s was queued: 0x%llx, %zu bytes", what, user, begin, bytes);
    while (wait_for_one_running_locked(begin, bytes))
        ;
}

/* --- handles */

static void end_own_streams(void *list)
{
    struct own_stream *own = list;
    own_streams = NULL;
    pthread_mutex_lock(&sim_lock);
    while (own != NULL) {
        struct own_stream *next = own->next;
        const struct sim_region *row = sim_table_find(&streams, (uint64_t)own->stream);
        if (row != NULL && row == &own->stream->region && own->stream->id == own->stream_id &&
            !own->stream->is_destroyed)
            sim_stream_destroy_locked(own->stream);
        free(own);
        own = next;
    }
    pthread_mutex_unlock(&sim_lock);
}

static void make_own_streams_key(void)
{
    pthread_key_create(&own_streams_key, end_own_streams);
}

static struct CUstream_st *own_stream_locked(struct CUctx_st *context)
{
    for (const struct own_stream *own = own_streams; own != NULL; own = own->next) {
        if (own->context_id == context->id)
            return own->stream;
    }
    struct own_stream *own = sim_zalloc(sizeof(*own));
    own->stream = sim_stream_create_locked(context, CU_STREAM_DEFAULT, 0);
    own->stream_id = own->stream->id;
    own->context_id = context->id;
    own->next = own_streams;
    own_streams = own;
    pthread_once(&own_streams_once, make_own_streams_key);
    pthread_setspecific(own_streams_key, own);
    return own->stream;
}

CUresult sim_stream_find_locked(CUstream handle, bool per_thread, struct CUstream_st **stream_out)
{
    const bool is_own = handle == CU_STREAM_PER_THREAD || (handle == NULL && per_thread);
    if (is_own || handle == CU_STREAM_LEGACY || handle == NULL) {
        struct CUctx_st *context;
        const CUresult result = sim_context_get(&context);
        if (result == CUDA_SUCCESS)
            *stream_out = is_own ? own_stream_locked(context) : context->legacy;
        return result;
    }
    const struct sim_region *row = sim_table_find(&streams, (uint64_t)handle);
    if (row == NULL || row != &handle->region || handle->is_destroyed)
        return CUDA_ERROR_INVALID_HANDLE;
    *stream_out = handle;
    return CUDA_SUCCESS;
}

bool sim_stream_is_capturing(CUstream handle, bool per_thread)
{
    struct CUstream_st *stream;
    pthread_mutex_lock(&sim_lock);
    const bool result = sim_stream_find_locked(handle, per_thread, &stream) == CUDA_SUCCESS &&
                        stream->capture != NULL;
    pthread_mutex_unlock(&sim_lock);
    return result;
}

struct CUstream_st *sim_stream_create_locked(struct CUctx_st *context, unsigned flags, int priority)
{
    struct CUstream_st *stream = sim_zalloc(sizeof(*stream));
    stream->region = (struct sim_region){(uint64_t)stream, 1};
    stream->context = context;
    stream->flags = flags;
    stream->priority = priority < PRIORITY_HIGHEST  ? PRIORITY_HIGHEST
                       : priority > PRIORITY_LOWEST ? PRIORITY_LOWEST
                                                    : priority;
    stream->id = sim_new_id_locked();
    stream->last_link = &stream->first;
    pthread_cond_init(&stream->wake, NULL);
    stream->next = context->streams;
    context->streams = stream;
    sim_table_add(&streams, &stream->region);
    return stream;
}

/* Work that is queued still runs; the worker frees the stream after it. */
void sim_stream_destroy_locked(struct CUstream_st *stream)
{
    struct CUstream_st **link = &stream->context->streams;
    while (*link != stream)
        link = &(*link)->next;
    *link = stream->next;
    sim_capture_leave_locked(stream);
    stream->is_destroyed = true;
    if (stream->has_worker)
        pthread_cond_signal(&stream->wake);
    free_if_over_locked(stream);
}
