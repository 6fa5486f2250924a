/* SPDX-License-Identifier: Apache-2.0 */
/* Which streams are captured, and what is not allowed meanwhile. */
#include "tools/simcuda/driver/capture.h"

#include <string.h>

struct sim_capture *sim_captures;

static struct sim_capture *find_locked(uint64_t id)
{
    struct sim_capture *capture = sim_captures;
    while (capture != NULL && capture->id != id)
        capture = capture->next;
    return capture;
}

bool sim_capture_is_live_locked(uint64_t capture_id)
{
    return capture_id != 0 && find_locked(capture_id) != NULL;
}

CUresult sim_capture_add_locked(struct CUstream_st *stream, struct sim_work *work)
{
    return stream->capture->add_locked(stream, work);
}

/* --- what is not allowed meanwhile */

static bool forbids_unsafe_calls(const struct sim_capture *capture, CUstreamCaptureMode mode)
{
    if (capture->mode == CU_STREAM_CAPTURE_MODE_RELAXED)
        return false;
    if (capture->thread == &sim_thread)
        return true;
    return mode == CU_STREAM_CAPTURE_MODE_GLOBAL && capture->mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
}

CUresult sim_capture_refuse_unsafe_locked(void)
{
    CUresult result = CUDA_SUCCESS;
    if (sim_thread.capture_mode == CU_STREAM_CAPTURE_MODE_RELAXED)
        return CUDA_SUCCESS;
    for (struct sim_capture *capture = sim_captures; capture != NULL; capture = capture->next) {
        if (forbids_unsafe_calls(capture, sim_thread.capture_mode)) {
            capture->is_invalid = true;
            result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
        }
    }
    return result;
}

CUresult sim_capture_refuse_unsafe(void)
{
    pthread_mutex_lock(&sim_lock);
    const CUresult result = sim_capture_refuse_unsafe_locked();
    pthread_mutex_unlock(&sim_lock);
    return result;
}

bool sim_capture_has_stream_of(const struct sim_capture *capture, const struct CUctx_st *context,
                               bool blocking_only)
{
    for (int i = 0; i < capture->streams_count; i++) {
        const struct CUstream_st *stream = capture->streams[i];
        if (stream != NULL && stream->context == context &&
            (!blocking_only || sim_stream_is_blocking(stream)))
            return true;
    }
    return false;
}

static CUresult refuse_locked(const struct CUctx_st *context, bool blocking_only, CUresult refusal)
{
    CUresult result = CUDA_SUCCESS;
    for (struct sim_capture *capture = sim_captures; capture != NULL; capture = capture->next) {
        if (sim_capture_has_stream_of(capture, context, blocking_only)) {
            capture->is_invalid = true;
            result = refusal;
        }
    }
    return result;
}

/* Blocking streams take part in the order of the context's legacy stream. */
CUresult sim_capture_refuse_legacy_locked(struct CUctx_st *context)
{
    return refuse_locked(context, true, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
}

CUresult sim_capture_refuse_context_locked(const struct CUctx_st *context)
{
    return refuse_locked(context, false, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
}

CUresult sim_capture_refuse_stream_locked(struct CUstream_st *stream)
{
    if (stream->is_legacy)
        return sim_capture_refuse_legacy_locked(stream->context);
    if (stream->capture == NULL)
        return CUDA_SUCCESS;
    stream->capture->is_invalid = true;
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

CUresult sim_capture_refuse_event_locked(const struct sim_capture_point *point)
{
    struct sim_capture *capture = point->capture_id == 0 ? NULL : find_locked(point->capture_id);
    if (capture == NULL) /* it has ended, and the event was not recorded since */
        return point->capture_id == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    capture->is_invalid = true;
    return CUDA_ERROR_CAPTURED_EVENT;
}

void sim_capture_leave_locked(struct CUstream_st *stream)
{
    struct sim_capture *capture = stream->capture;
    if (capture == NULL)
        return;
    capture->is_invalid = true;
    capture->streams[stream->capture_index] = NULL;
    if (capture->origin == stream)
        capture->origin = NULL;
    stream->capture = NULL;
}

/* --- events */

CUresult sim_capture_record_locked(struct CUstream_st *stream, struct sim_capture_point *point_out)
{
    const struct sim_capture *capture = stream->capture;
    if (capture->is_invalid)
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    point_out->capture_id = capture->id;
    memcpy(point_out->seen, capture->seen[stream->capture_index], sizeof(point_out->seen));
    return CUDA_SUCCESS;
}

bool sim_capture_join_locked(struct sim_capture *capture, struct CUstream_st *stream)
{
    if (capture->streams_count == SIM_CAPTURE_STREAMS_MAX)
        return false;
    stream->capture = capture;
    stream->capture_index = capture->streams_count;
    capture->streams[capture->streams_count++] = stream;
    return true;
}

CUresult sim_capture_wait_locked(struct CUstream_st *stream, const struct sim_capture_point *point)
{
    struct sim_capture *capture = point->capture_id == 0 ? NULL : find_locked(point->capture_id);
    if (stream->is_legacy) {
        capture->is_invalid = true;
        return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    }
    if (stream->capture != NULL && stream->capture != capture) {
        stream->capture->is_invalid = true;
        if (capture == NULL)
            return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
        capture->is_invalid = true;
        return CUDA_ERROR_STREAM_CAPTURE_MERGE;
    }
    if (capture->is_invalid)
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    if (stream->capture == NULL && !sim_capture_join_locked(capture, stream)) {
        capture->is_invalid = true;
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    unsigned *seen = capture->seen[stream->capture_index];
    for (int i = 0; i < capture->streams_count; i++) {
        if (point->seen[i] > seen[i])
            seen[i] = point->seen[i];
    }
    return CUDA_SUCCESS;
}
