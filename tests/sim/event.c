/* SPDX-License-Identifier: Apache-2.0 */
/* Events: references to the mark that was last in a stream when the event was recorded. */
#include "tests/sim/state.h"

#include <stdlib.h>

enum { FLAGS_KNOWN = CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS };

struct CUevent_st {
    struct sim_region region; /* begin: the handle */
    struct CUctx_st *context;
    unsigned flags;
    struct sim_mark *mark; /* NULL: never recorded, counts as done */
    struct sim_capture_point captured;
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
    free(event);
}

void sim_events_end_locked(struct CUctx_st *context)
{
    for (size_t i = events.count; i > 0; i--) {
        CUevent event = (CUevent)events.rows[i - 1];
        if (event->context == context)
            destroy_locked(event);
    }
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
    CUevent event = sim_zalloc(sizeof(*event));
    event->region = (struct sim_region){(uint64_t)event, 1};
    event->context = context;
    event->flags = Flags;
    pthread_mutex_lock(&sim_lock);
    sim_table_add(&events, &event->region);
    pthread_mutex_unlock(&sim_lock);
    *phEvent = event;
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

/* --- recording and waiting on streams */

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
        struct sim_mark *mark = sim_stream_queue_locked(stream, NULL, NULL);
        sim_mark_keep_locked(mark);
        sim_mark_drop_locked(event->mark);
        event->mark = mark;
        event->captured.capture_id = 0;
    }
    pthread_mutex_unlock(&sim_lock);
    return result;
}

CUresult cuEventRecord(CUevent hEvent, CUstream hStream)
{
    SIM_ENTER(cuEventRecord);
    return record(hEvent, hStream, 0, false);
}

CUresult cuEventRecord_ptsz(CUevent hEvent, CUstream hStream)
{
    SIM_ENTER(cuEventRecord_ptsz);
    return record(hEvent, hStream, 0, true);
}

CUresult cuEventRecordWithFlags(CUevent hEvent, CUstream hStream, unsigned int flags)
{
    SIM_ENTER(cuEventRecordWithFlags);
    return record(hEvent, hStream, flags, false);
}

CUresult cuEventRecordWithFlags_ptsz(CUevent hEvent, CUstream hStream, unsigned int flags)
{
    SIM_ENTER(cuEventRecordWithFlags_ptsz);
    return record(hEvent, hStream, flags, true);
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
        if (result == CUDA_SUCCESS && event->mark != NULL && !event->mark->done)
            sim_stream_queue_locked(stream, NULL, event->mark);
    }
    pthread_mutex_unlock(&sim_lock);
    return result;
}

CUresult cuStreamWaitEvent(CUstream hStream, CUevent hEvent, unsigned int Flags)
{
    SIM_ENTER(cuStreamWaitEvent);
    return stream_wait(hStream, hEvent, Flags, false);
}

CUresult cuStreamWaitEvent_ptsz(CUstream hStream, CUevent hEvent, unsigned int Flags)
{
    SIM_ENTER(cuStreamWaitEvent_ptsz);
    return stream_wait(hStream, hEvent, Flags, true);
}

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
    if (result == CUDA_SUCCESS && hEvent->mark != NULL && !hEvent->mark->done)
        result = CUDA_ERROR_NOT_READY;
    pthread_mutex_unlock(&sim_lock);
    return result;
}

CUresult cuEventSynchronize(CUevent hEvent)
{
    SIM_ENTER(cuEventSynchronize);
    CUresult result = check_host_call(hEvent);
    if (result != CUDA_SUCCESS)
        return result;
    pthread_mutex_lock(&sim_lock);
    result = find_locked(hEvent);
    if (result == CUDA_SUCCESS && hEvent->mark != NULL)
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
