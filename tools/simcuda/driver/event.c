/* SPDX-License-Identifier: Apache-2.0 */
/* Events: references to the mark that was last in a stream when the event was recorded. */
#include "tools/simcuda/driver/event_shared.h"
#include "tools/simcuda/driver/state.h"

#include <stdlib.h>

enum { FLAGS_KNOWN = CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS };

struct CUevent_st {
    struct sim_region region; /* begin: the handle */
    struct CUctx_st *context;
    unsigned flags;
    struct sim_mark *mark; /* NULL: never recorded, counts as done */
    struct sim_capture_point captured;
    struct sim_shared_event *shared; /* of one that processes share; else NULL */
};
static struct sim_table events;

static CUresult find_locked(CUevent handle)
{
    const struct sim_region *row = sim_table_find(&events, (uint64_t)handle);
    return row != NULL && row == &handle->region ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

static void destroy_locked(CUevent event)
{
    sim_table_remove(&events, &event->region);
    sim_mark_drop_locked(event->mark);
    sim_shared_event_drop_locked(event->shared);
    free(event);
}

static void end_all_locked(struct CUctx_st *context)
{
    for (size_t i = events.count; i > 0; i--) {
        CUevent event = (CUevent)events.rows[i - 1];
        if (event->context == context)
            destroy_locked(event);
    }
}

__attribute__((constructor)) static void add_ender(void)
{
    static struct sim_ender ender = {.end_locked = end_all_locked};
    sim_context_add_ender(&ender);
}

static CUevent add(struct CUctx_st *context, unsigned flags, struct sim_shared_event *shared)
{
    CUevent event = sim_zalloc(sizeof(*event));
    event->region = (struct sim_region){(uint64_t)event, 1};
    event->context = context;
    event->flags = flags;
    event->shared = shared;
    pthread_mutex_lock(&sim_lock);
    sim_table_add(&events, &event->region);
    pthread_mutex_unlock(&sim_lock);
    return event;
}

CUresult cuEventCreate(CUevent *phEvent, unsigned int Flags)
{
    SIM_ENTER(cuEventCreate);
    struct CUctx_st *context;
    const bool is_shared = (Flags & CU_EVENT_INTERPROCESS) != 0;
    if (phEvent == NULL || (Flags & ~(unsigned)FLAGS_KNOWN) != 0 ||
        (is_shared && (Flags & CU_EVENT_DISABLE_TIMING) == 0))
        return CUDA_ERROR_INVALID_VALUE;
    const CUresult result = sim_context_get(&context);
    if (result != CUDA_SUCCESS)
        return result;
    struct sim_shared_event *shared = is_shared ? sim_shared_event_create() : NULL;
    if (is_shared && shared == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *phEvent = add(context, Flags, shared);
    return CUDA_SUCCESS;
}

static CUresult destroy(CUevent event)
{
    pthread_mutex_lock(&sim_lock);
    const CUresult result = find_locked(event);
    if (result == CUDA_SUCCESS)
        destroy_locked(event);
    pthread_mutex_unlock(&sim_lock);
    return result;
}

CUresult cuEventDestroy_v2(CUevent hEvent)
{
    SIM_ENTER(cuEventDestroy_v2);
    return destroy(hEvent);
}

CUresult cuEventDestroy(CUevent hEvent)
{
    SIM_ENTER(cuEventDestroy);
    return destroy(hEvent);
}

/* --- events of several processes */

CUresult cuIpcGetEventHandle(CUipcEventHandle *pHandle, CUevent event)
{
    SIM_ENTER(cuIpcGetEventHandle);
    if (pHandle == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&sim_lock);
    CUresult result = find_locked(event);
    /* One that was opened is its exporter's to hand on. */
    if (result == CUDA_SUCCESS && (event->flags & CU_EVENT_INTERPROCESS) == 0)
        result = CUDA_ERROR_INVALID_HANDLE;
    if (result == CUDA_SUCCESS)
        sim_shared_event_export(event->shared, pHandle);
    pthread_mutex_unlock(&sim_lock);
    return result;
}

CUresult cuIpcOpenEventHandle(CUevent *phEvent, CUipcEventHandle handle)
{
    SIM_ENTER(cuIpcOpenEventHandle);
    struct CUctx_st *context;
    struct sim_shared_event *shared;
    if (phEvent == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = sim_context_get(&context);
    if (result == CUDA_SUCCESS)
        result = sim_shared_event_open(&handle, &shared);
    if (result == CUDA_SUCCESS)
        *phEvent = add(context, CU_EVENT_DISABLE_TIMING, shared);
    return result;
}

/* --- recording and waiting on streams */

static struct sim_mark *queue_record_locked(CUevent event, struct CUstream_st *stream)
{
    struct sim_work *work =
        event->shared != NULL ? sim_shared_event_record_locked(event->shared) : NULL;
    return sim_stream_queue_locked(stream, work, NULL);
}

static void queue_wait_locked(CUevent event, struct CUstream_st *stream)
{
    const uint64_t newest = event->shared != NULL ? sim_shared_event_newest(event->shared) : 0;
    if (event->shared == NULL) {
        if (event->mark != NULL && !event->mark->done)
            sim_stream_queue_locked(stream, NULL, event->mark);
    } else if (!sim_shared_event_is_done(event->shared, newest)) {
        sim_stream_queue_locked(stream, sim_shared_event_wait_work_locked(event->shared, newest),
                                NULL);
    }
}

static bool is_done_locked(CUevent event)
{
    if (event->shared != NULL)
        return sim_shared_event_is_done(event->shared, sim_shared_event_newest(event->shared));
    return event->mark == NULL || (event->mark->done && sim_mark_is_seen_locked(event->mark));
}

/* SIMCUDA_BREAK: before the work. */
static void complete_locked(CUevent event)
{
    sim_mark_drop_locked(event->mark);
    event->mark = NULL;
}

static CUresult record(CUevent event, CUstream handle, unsigned flags, bool per_thread)
{
    struct CUstream_st *stream;
    if ((flags & ~(unsigned)CU_EVENT_RECORD_EXTERNAL) != 0)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&sim_lock);
    CUresult result = find_locked(event);
    if (result == CUDA_SUCCESS)
        result = sim_stream_find_locked(handle, per_thread, &stream);
    if (result == CUDA_SUCCESS && stream->context != event->context)
        result = CUDA_ERROR_INVALID_HANDLE;
    if (result == CUDA_SUCCESS && stream->is_legacy)
        result = sim_capture_refuse_legacy_locked(stream->context);
    if (result == CUDA_SUCCESS && stream->capture != NULL) {
        result = flags == 0 ? sim_capture_record_locked(stream, &event->captured)
                            : CUDA_ERROR_NOT_SUPPORTED;
    } else if (result == CUDA_SUCCESS) {
        struct sim_mark *mark = queue_record_locked(event, stream);
        sim_mark_keep_locked(mark);
        sim_mark_drop_locked(event->mark);
        event->mark = mark;
        event->captured.capture_id = 0;
        if (sim_is_broken(SIM_BROKEN_EVENT))
            complete_locked(event);
    }
    pthread_mutex_unlock(&sim_lock);
    return result;
}

SIM_TWINS(cuEventRecord, _ptsz, (CUevent hEvent, CUstream hStream),
          record(hEvent, hStream, 0, per_thread))

SIM_TWINS(cuEventRecordWithFlags, _ptsz, (CUevent hEvent, CUstream hStream, unsigned int flags),
          record(hEvent, hStream, flags, per_thread))

CUresult cuCtxRecordEvent(CUcontext hCtx, CUevent hEvent)
{
    SIM_ENTER(cuCtxRecordEvent);
    struct sim_mark *mark;
    pthread_mutex_lock(&sim_lock);
    CUresult result = sim_context_check_locked(hCtx);
    if (result == CUDA_SUCCESS)
        result = find_locked(hEvent);
    if (result == CUDA_SUCCESS && hEvent->context != hCtx)
        result = CUDA_ERROR_INVALID_HANDLE;
    if (result == CUDA_SUCCESS)
        result = hEvent->shared == NULL ? sim_context_mark_locked(hCtx, &mark)
                                        : CUDA_ERROR_NOT_SUPPORTED;
    if (result == CUDA_SUCCESS) {
        sim_mark_drop_locked(hEvent->mark);
        hEvent->mark = mark;
        hEvent->captured.capture_id = 0;
        if (sim_is_broken(SIM_BROKEN_CONTEXT_EVENT))
            complete_locked(hEvent);
    }
    pthread_mutex_unlock(&sim_lock);
    return result;
}

static CUresult stream_wait(CUstream handle, CUevent event, unsigned flags, bool per_thread)
{
    struct CUstream_st *stream;
    if ((flags & ~(unsigned)CU_EVENT_WAIT_EXTERNAL) != 0)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&sim_lock);
    CUresult result = find_locked(event);
    if (result == CUDA_SUCCESS)
        result = sim_stream_find_locked(handle, per_thread, &stream);
    const bool is_captured =
        result == CUDA_SUCCESS && sim_capture_is_live_locked(event->captured.capture_id);
    if (result == CUDA_SUCCESS && (is_captured || stream->capture != NULL)) {
        result = flags == 0 ? sim_capture_wait_locked(stream, &event->captured)
                            : CUDA_ERROR_NOT_SUPPORTED;
    } else if (result == CUDA_SUCCESS) {
        if (stream->is_legacy)
            result = sim_capture_refuse_legacy_locked(stream->context);
        if (result == CUDA_SUCCESS)
            queue_wait_locked(event, stream);
    }
    pthread_mutex_unlock(&sim_lock);
    return result;
}

SIM_TWINS(cuStreamWaitEvent, _ptsz, (CUstream hStream, CUevent hEvent, unsigned int Flags),
          stream_wait(hStream, hEvent, Flags, per_thread))

/* --- the host's side: unsafe during a capture, also for events outside of it */

static CUresult check_host_call(CUevent event)
{
    pthread_mutex_lock(&sim_lock);
    CUresult result = find_locked(event);
    if (result == CUDA_SUCCESS)
        result = sim_capture_refuse_event_locked(&event->captured);
    pthread_mutex_unlock(&sim_lock);
    return result != CUDA_SUCCESS ? result : sim_capture_refuse_unsafe();
}

CUresult cuEventQuery(CUevent hEvent)
{
    SIM_ENTER(cuEventQuery);
    CUresult result = check_host_call(hEvent);
    if (result != CUDA_SUCCESS)
        return result;
    pthread_mutex_lock(&sim_lock);
    result = find_locked(hEvent);
    if (result == CUDA_SUCCESS && !is_done_locked(hEvent))
        result = CUDA_ERROR_NOT_READY;
    pthread_mutex_unlock(&sim_lock);
    return result;
}

/* The lock is given away meanwhile; a reference keeps what is waited for. */
static CUresult wait_for_shared_locked(struct sim_shared_event *shared)
{
    const uint64_t newest = sim_shared_event_newest(shared);
    sim_shared_event_keep_locked(shared);
    pthread_mutex_unlock(&sim_lock);
    const bool is_done = sim_shared_event_wait(shared, newest);
    pthread_mutex_lock(&sim_lock);
    sim_shared_event_drop_locked(shared);
    const CUresult error = sim_sticky_error();
    return is_done || error != CUDA_SUCCESS ? error : CUDA_ERROR_DEINITIALIZED;
}

CUresult cuEventSynchronize(CUevent hEvent)
{
    SIM_ENTER(cuEventSynchronize);
    CUresult result = check_host_call(hEvent);
    if (result != CUDA_SUCCESS)
        return result;
    pthread_mutex_lock(&sim_lock);
    result = find_locked(hEvent);
    struct sim_shared_event *shared = result == CUDA_SUCCESS ? hEvent->shared : NULL;
    if (shared != NULL)
        result = wait_for_shared_locked(shared);
    else if (result == CUDA_SUCCESS && hEvent->mark != NULL)
        result = sim_mark_wait_locked(hEvent->mark);
    pthread_mutex_unlock(&sim_lock);
    return result;
}

static CUresult elapsed(float *milliseconds_out, CUevent start, CUevent end)
{
    if (milliseconds_out == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&sim_lock);
    CUresult result = find_locked(start);
    if (result == CUDA_SUCCESS)
        result = find_locked(end);
    if (result == CUDA_SUCCESS && (((start->flags | end->flags) & CU_EVENT_DISABLE_TIMING) != 0 ||
                                   start->mark == NULL || end->mark == NULL))
        result = CUDA_ERROR_INVALID_HANDLE;
    if (result == CUDA_SUCCESS && (!start->mark->done || !end->mark->done))
        result = CUDA_ERROR_NOT_READY;
    if (result == CUDA_SUCCESS)
        *milliseconds_out =
            (float)((double)(int64_t)(end->mark->done_ns - start->mark->done_ns) / 1e6);
    pthread_mutex_unlock(&sim_lock);
    return result;
}

CUresult cuEventElapsedTime(float *pMilliseconds, CUevent hStart, CUevent hEnd)
{
    SIM_ENTER(cuEventElapsedTime);
    return elapsed(pMilliseconds, hStart, hEnd);
}

CUresult cuEventElapsedTime_v2(float *pMilliseconds, CUevent hStart, CUevent hEnd)
{
    SIM_ENTER(cuEventElapsedTime_v2);
    return elapsed(pMilliseconds, hStart, hEnd);
}
