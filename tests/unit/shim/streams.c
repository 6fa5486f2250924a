/* SPDX-License-Identifier: Apache-2.0 */
/* Captures as programs begin and end them: which count, and what the driver is asked. */
#include <string.h>

#include "runtime/fill/settle.h"
#include "runtime/order/order.h"
#include "shim/newer.h"
#include "tests/unit/between.h"
#include "tests/unit/shim/real_side.h"

#define CAPTURED ((CUstream)0x10)

static CUstreamCaptureStatus status, status_later; /* before the capture's end, and behind it */
static CUresult asked, asked_later, answer;
static unsigned questions, ends, settled;
static bool was_counted; /* when the driver began the capture */

WRAPS(ms_settle_now);

void __wrap_ms_settle_now(const char *why)
{
    CHECK_EQ(atomic_load(&ms_hot.captures), settled++);
    CHECK(strcmp(why, "a capture begins") == 0);
}

static CUresult begin(void)
{
    was_counted = ms_is_capturing();
    return answer;
}

static CUresult tell_status(CUstream stream, CUstreamCaptureStatus *status_out)
{
    questions++;
    CHECK(stream == CAPTURED);
    const CUresult result = ends == 0 ? asked : asked_later;
    if (result == CUDA_SUCCESS)
        *status_out = ends == 0 ? status : status_later;
    return result;
}

REAL(cuStreamBeginCapture, (CUstream stream), return begin())
REAL(cuStreamBeginCapture_v2, (CUstream stream, CUstreamCaptureMode mode), return begin())
REAL(cuStreamIsCapturing, (CUstream stream, CUstreamCaptureStatus *status_out),
     return tell_status(stream, status_out))
REAL(cuStreamIsCapturing_ptsz, (CUstream stream, CUstreamCaptureStatus *status_out),
     return tell_status(stream, status_out))
REAL(cuStreamEndCapture, (CUstream stream, CUgraph *graph), ends++; return answer)
REAL(cuStreamEndCapture_ptsz, (CUstream stream, CUgraph *graph), ends++; return answer)
REAL(cuLaunchHostFunc, (CUstream stream, CUhostFn function, void *data), return answer)

static void start(void)
{
    status = CU_STREAM_CAPTURE_STATUS_ACTIVE;
    status_later = CU_STREAM_CAPTURE_STATUS_NONE;
    asked = asked_later = answer = CUDA_SUCCESS;
    questions = ends = settled = 0;
    atomic_store(&ms_hot.started, 1);
    atomic_store(&ms_hot.captures, 0);
    atomic_store(&ms_hot.gated, 0);
}

static void begin_capture(void)
{
    CHECK_EQ(cuStreamBeginCapture_v2(CAPTURED, CU_STREAM_CAPTURE_MODE_RELAXED), CUDA_SUCCESS);
    CHECK(ms_is_capturing());
}

/* Checks the result that the program gets, and whether the capture counts no more. */
static void end_capture(CUresult expected, bool has_ended, unsigned expected_questions)
{
    CUgraph graph;
    CHECK_EQ(cuStreamEndCapture(CAPTURED, &graph), expected);
    CHECK_EQ(ends, 1);
    CHECK_EQ(questions, expected_questions);
    CHECK_EQ(ms_is_capturing(), !has_ended);
}

MS_TEST_AFTER(start, a_capture_settles_and_counts_before_it_begins)
{
    CHECK_EQ(cuStreamBeginCapture_v2(CAPTURED, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
    CHECK_EQ(settled, 1);
    CHECK(was_counted && ms_is_capturing());
}

MS_TEST_AFTER(start, a_capture_that_does_not_begin_counts_no_more)
{
    answer = CUDA_ERROR_ILLEGAL_STATE;
    CHECK_EQ(cuStreamBeginCapture(CAPTURED), CUDA_ERROR_ILLEGAL_STATE);
    CHECK(was_counted && !ms_is_capturing());
}

STORY_AFTER(start, a_capture_that_ends_counts_no_more, begin_capture(),
            end_capture(CUDA_SUCCESS, true, 1))

STORY_AFTER(start, a_capture_that_ends_counts_no_more_though_the_stream_cannot_be_asked,
            begin_capture(), asked = asked_later = CUDA_ERROR_OUT_OF_MEMORY,
            end_capture(CUDA_SUCCESS, true, 1))

MS_TEST_AFTER(start, the_end_of_a_thread_s_own_default_stream_counts_likewise)
{
    CUgraph graph;
    begin_capture();
    CHECK_EQ(cuStreamEndCapture_ptsz(CAPTURED, &graph), CUDA_SUCCESS);
    CHECK(!ms_is_capturing());
}

STORY_AFTER(start, an_end_that_fails_and_ends_the_capture_counts, begin_capture(),
            answer = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED,
            end_capture(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, true, 2))

STORY_AFTER(start, an_end_that_fails_and_leaves_the_capture_does_not_count, begin_capture(),
            answer = CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD,
            status_later = CU_STREAM_CAPTURE_STATUS_ACTIVE,
            end_capture(CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD, false, 2))

MS_TEST_AFTER(start, an_end_in_a_stream_that_captures_nothing_does_not_count)
{
    begin_capture(); /* in another one */
    answer = CUDA_ERROR_ILLEGAL_STATE;
    status = CU_STREAM_CAPTURE_STATUS_NONE;
    end_capture(CUDA_ERROR_ILLEGAL_STATE, false, 1);
}

STORY_AFTER(start, an_end_that_fails_does_not_count_where_the_stream_cannot_be_asked,
            begin_capture(), answer = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED,
            asked = CUDA_ERROR_OUT_OF_MEMORY,
            end_capture(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, false, 1), ends = questions = 0,
            asked = CUDA_SUCCESS, asked_later = CUDA_ERROR_OUT_OF_MEMORY,
            end_capture(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, false, 2))

STORY_AFTER(start, each_of_two_captures_counts, begin_capture(),
            EQUALS(cuStreamBeginCapture((CUstream)0x20), CUDA_SUCCESS),
            end_capture(CUDA_SUCCESS, false, 1), ends = questions = 0,
            end_capture(CUDA_SUCCESS, true, 1))

MS_TEST_AFTER(start, a_function_of_the_host_is_a_gate)
{
    answer = CUDA_ERROR_NOT_SUPPORTED;
    CHECK(!ms_is_gated());
    CHECK_EQ(cuLaunchHostFunc(CAPTURED, NULL, NULL), CUDA_ERROR_NOT_SUPPORTED);
    CHECK(ms_is_gated());
}
