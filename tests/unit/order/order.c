/* SPDX-License-Identifier: Apache-2.0 */
#include <pthread.h>
#include <unistd.h>

#include "runtime/config/config.h"
#include "runtime/driver/facts.h"
#include "runtime/driver/flags.h"
#include "runtime/order/order.h"
#include "tests/unit/between.h"

#define CONTEXT ((CUcontext)1)
#define STREAM ((CUstream)7)

/* A driver whose streams and contexts are busy until they are not. */
static int queries, marks, waits, synchronisations;
static bool is_busy, is_stream_busy, knows_marks;
static void (*on_mark)(void);

static CUresult ctx_get_current(CUcontext *context)
{
    *context = CONTEXT;
    return CUDA_SUCCESS;
}

static bool asks_what_is_allowed; /* with an event, in the mode of the program */
static CUstreamCaptureMode mode_now = CU_STREAM_CAPTURE_MODE_GLOBAL;
static CUresult exchange_capture_mode(CUstreamCaptureMode *mode)
{
    const CUstreamCaptureMode before = mode_now;
    mode_now = *mode;
    *mode = before;
    return CUDA_SUCCESS;
}

static CUresult event_create(CUevent *event, unsigned flags)
{
    CHECK_EQ(flags, CU_EVENT_DISABLE_TIMING);
    *event = (CUevent)1;
    return CUDA_SUCCESS;
}

static CUresult event_destroy(CUevent event)
{
    CHECK(event != NULL);
    return CUDA_SUCCESS;
}

static CUresult event_record(CUevent event, CUstream stream)
{
    CHECK(event != NULL && stream == STREAM);
    return CUDA_SUCCESS;
}

static CUresult event_query(CUevent event)
{
    CHECK(event != NULL);
    CHECK_EQ(mode_now,
             asks_what_is_allowed ? CU_STREAM_CAPTURE_MODE_GLOBAL : CU_STREAM_CAPTURE_MODE_RELAXED);
    queries++;
    return is_busy ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
}

static CUresult stream_query(CUstream stream)
{
    CHECK(stream == STREAM);
    CHECK_EQ(mode_now, CU_STREAM_CAPTURE_MODE_RELAXED); /* another thread may begin a capture */
    return is_stream_busy ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
}

static CUresult ctx_record_event(CUcontext context, CUevent event)
{
    CHECK(context == CONTEXT && event != NULL);
    marks++;
    if (on_mark != NULL)
        on_mark();
    return knows_marks ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED;
}

static CUresult event_synchronize(CUevent event)
{
    CHECK(event != NULL);
    waits++;
    return CUDA_SUCCESS;
}

static CUresult ctx_synchronize(void)
{
    synchronisations++;
    return CUDA_SUCCESS;
}

static bool is_idle(void)
{
    return ms_order_context_poll(CONTEXT) == CUDA_SUCCESS;
}

static int yields, yields_late, naps;
WRAPS(sched_yield, nanosleep);
int __wrap_sched_yield(void)
{
    yields++;
    yields_late += naps > 0;
    return 0;
}

int __wrap_nanosleep(const struct timespec *time, struct timespec *left)
{
    CHECK(time->tv_sec == 0 && time->tv_nsec == 50000 && left == NULL);
    naps++;
    return 0;
}

static void set_up(void)
{
    ms_driver = (struct ms_driver){
        .ctx_get_current = ctx_get_current,
        .exchange_capture_mode = exchange_capture_mode,
        .event_create = event_create,
        .event_destroy = event_destroy,
        .event_record = event_record,
        .event_query = event_query,
        .event_synchronize = event_synchronize,
        .stream_query = stream_query,
        .ctx_record_event = ctx_record_event,
        .ctx_synchronize = ctx_synchronize,
    };
    ms_config.idle_ms = 5;
    atomic_store(&ms_hot.gated, 1);
    knows_marks = true;
    is_busy = is_stream_busy = false;
    on_mark = NULL;
    /* A stream that was found idle makes the next waits patient again. */
    CHECK(is_idle() && ms_order_may_record(STREAM));
    queries = marks = waits = synchronisations = 0;
}

static int queries_of_context(void)
{
    queries = 0;
    CHECK(!is_idle());
    return queries;
}

static int queries_of_stream(void)
{
    queries = 0;
    CHECK(!ms_order_may_record(STREAM));
    return queries;
}

MS_TEST_AFTER(set_up, a_wait_is_short_after_one_of_its_own_kind_was_in_vain)
{
    is_busy = true;
    const int patient = queries_of_context(), hasty = queries_of_context();
    CHECK(patient > hasty && hasty > 0);
    CHECK_EQ(queries_of_stream(), patient);
    CHECK_EQ(queries_of_stream(), hasty);
    is_busy = false;
    CHECK(is_idle());
    is_busy = true;
    const int usual = queries_of_context();
    CHECK(usual < patient && usual > hasty);
    CHECK_EQ(queries_of_stream(), hasty);
}

/* Each test has a process of its own, and set_up found all idle. */
MS_TEST_AFTER(set_up, waits_last_for_longer_until_one_was_in_vain)
{
    struct ms_patience patience = {0};
    ms_config.idle_ms = 20;
    CHECK_EQ(ms_order_patience(&patience), 1000);
    ms_order_waited(&patience, false);
    CHECK_EQ(ms_order_patience(&patience), 1000);
    ms_order_waited(&patience, true);
    CHECK_EQ(ms_order_patience(&patience), 0);
    ms_order_waited(&patience, false);
    CHECK_EQ(ms_order_patience(&patience), 20);
    ms_config.idle_ms = 5000;
    CHECK_EQ(ms_order_patience(&patience), 5000);
    patience = (struct ms_patience){0};
    CHECK_EQ(ms_order_patience(&patience), 5000);
    ms_config.idle_ms = 0;
    CHECK_EQ(ms_order_patience(&patience), 0);
}

MS_TEST_AFTER(set_up, long_waits_are_over_when_they_have_lasted_for_ten_seconds)
{
    struct ms_patience patience = {0};
    ms_config.idle_ms = 20;
    for (int second = 0; second < 11; second++) {
        CHECK_EQ(ms_order_patience(&patience), second < 10 ? 1000 : 20);
        patience.began_ns -= UINT64_C(1000000000);
        ms_order_waited(&patience, false);
    }
}

/* If a wait lasted for longer, or began behind its end, the clock or the thread stood still. */
MS_TEST_AFTER(set_up, a_wait_that_lasts_too_long_is_not_counted)
{
    static const int64_t seconds_ago[] = {10, 1000, -1000};
    struct ms_patience patience = {0};
    for (size_t i = 0; i < 3; i++) {
        ms_order_patience(&patience);
        patience.began_ns -= (uint64_t)seconds_ago[i] * UINT64_C(1000000000);
        ms_order_waited(&patience, false);
        CHECK_EQ(patience.spent_ns, 0);
    }
    ms_order_patience(&patience);
    patience.began_ns -= UINT64_C(9000000000);
    ms_order_waited(&patience, false);
    CHECK(patience.spent_ns >= UINT64_C(9000000000));
}

MS_TEST_AFTER(set_up, an_event_is_waited_for_or_asked_once)
{
    CHECK(ms_order_event_passes((CUevent)1, CONTEXT, true));
    CHECK(ms_order_event_passes((CUevent)1, CONTEXT, false));
    is_busy = true;
    queries = 0;
    CHECK(!ms_order_event_passes((CUevent)1, CONTEXT, false));
    CHECK_EQ(queries, 1);
    CHECK(!ms_order_event_passes((CUevent)1, CONTEXT, true));
    const int patient = queries;
    CHECK(patient > 2);
    CHECK(!ms_order_event_passes((CUevent)1, CONTEXT, true)); /* the last one was in vain */
    CHECK(queries - patient < patient);
    CHECK_EQ(mode_now, CU_STREAM_CAPTURE_MODE_GLOBAL);
}

static CUresult stream_result;
static CUresult use_stream(CUstream stream)
{
    CHECK(stream == STREAM);
    CHECK_EQ(mode_now, CU_STREAM_CAPTURE_MODE_RELAXED);
    return stream_result;
}

static CUresult stream_get_ctx(CUstream stream, CUcontext *context)
{
    CHECK(stream == STREAM);
    *context = (CUcontext)2;
    return stream_result;
}

/* As many steps as there are in so many milliseconds, and none where it is done. */
MS_TEST_AFTER(set_up, a_poll_spins_first_and_sleeps_then)
{
    static const int milliseconds[] = {0, 1, 7};
    asks_what_is_allowed = true;
    CHECK_EQ(ms_order_event_poll((CUevent)1, 7), CUDA_SUCCESS);
    CHECK_EQ(yields + naps, 0);
    is_busy = true;
    for (size_t i = 0; i < 3; i++) {
        queries = yields = yields_late = naps = 0;
        CHECK_EQ(ms_order_event_poll((CUevent)1, (uint64_t)milliseconds[i]), CUDA_ERROR_NOT_READY);
        CHECK(yields == 64 && yields_late == 0 && naps == 20 * milliseconds[i]);
        CHECK_EQ(queries, 1 + yields + naps);
    }
}

MS_TEST_AFTER(set_up, a_wait_and_a_query_return_the_drivers_answer)
{
    static const CUresult results[] = {CUDA_SUCCESS, CUDA_ERROR_INVALID_HANDLE};
    ms_driver.stream_synchronize = ms_driver.stream_query = use_stream;
    ms_driver.stream_get_ctx = stream_get_ctx;
    for (size_t i = 0; i < 2; i++) {
        stream_result = results[i];
        CHECK_EQ(ms_order_stream_wait(STREAM), results[i]);
        CHECK_EQ(ms_order_stream_query(STREAM), results[i]);
        CHECK_EQ(mode_now, CU_STREAM_CAPTURE_MODE_GLOBAL);
        CHECK(ms_order_stream_context(STREAM) == (i == 0 ? (CUcontext)2 : NULL));
        CHECK(ms_order_stream_context(CU_STREAM_LEGACY) == CONTEXT);
        CHECK(ms_order_stream_context(CU_STREAM_PER_THREAD) == CONTEXT);
    }
}

static CUresult refuse_mode(CUstreamCaptureMode *mode)
{
    CHECK(mode != NULL);
    return CUDA_ERROR_INVALID_CONTEXT;
}

static CUresult refuse_event(CUevent *event, unsigned flags)
{
    CHECK(event != NULL && flags == CU_EVENT_DISABLE_TIMING);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

/* Nothing is taken for done, and nothing is asked in the wrong mode. */
MS_TEST_AFTER(set_up, a_thread_that_cannot_ask_takes_nothing_for_done)
{
    ms_driver.stream_synchronize = use_stream;
    for (int i = 0; i < 2; i++) {
        const CUresult wanted = i == 0 ? CUDA_ERROR_INVALID_CONTEXT : CUDA_ERROR_OUT_OF_MEMORY;
        ms_driver.exchange_capture_mode = i == 0 ? refuse_mode : exchange_capture_mode;
        ms_driver.event_create = i == 1 ? refuse_event : event_create;
        CHECK_EQ(ms_order_context_poll(CONTEXT), wanted);
        CHECK(!ms_order_context_ends_within(CONTEXT, 0) && !ms_order_may_record(STREAM));
        CHECK(ms_order_host_may_change(STREAM));
        CHECK_EQ(queries + marks + waits, 0);
        CHECK_EQ(mode_now, CU_STREAM_CAPTURE_MODE_GLOBAL);
    }
    CHECK_EQ(ms_order_context_wait(CONTEXT), CUDA_SUCCESS); /* without an event */
    CHECK_EQ(synchronisations, 1);
    ms_driver.exchange_capture_mode = refuse_mode;
    CHECK_EQ(ms_order_stream_wait(STREAM), CUDA_ERROR_INVALID_CONTEXT);
    CHECK_EQ(ms_order_stream_query(STREAM), CUDA_ERROR_INVALID_CONTEXT);
    CHECK_EQ(ms_order_context_wait(CONTEXT), CUDA_ERROR_INVALID_CONTEXT);
    CHECK(!ms_order_event_passes((CUevent)1, CONTEXT, true));
    CHECK_EQ(queries + marks + waits, 0);
}

/* The next call would be taken: who has failed makes none. */
static CUresult refuse_mode_once(CUstreamCaptureMode *mode)
{
    CHECK(mode != NULL);
    ms_driver.exchange_capture_mode = exchange_capture_mode;
    return CUDA_ERROR_INVALID_CONTEXT;
}

MS_TEST_AFTER(set_up, a_thread_that_cannot_change_its_capture_mode_asks_nothing)
{
    for (int i = 0; i < 7; i++) {
        ms_driver.stream_synchronize = ms_driver.stream_query = use_stream;
        ms_driver.exchange_capture_mode = refuse_mode_once;
        const CUresult result = i == 0   ? ms_order_context_poll(CONTEXT)
                                : i == 1 ? ms_order_context_wait(CONTEXT)
                                : i == 2 ? ms_order_stream_wait(STREAM)
                                : i == 3 ? ms_order_stream_query(STREAM)
                                         : CUDA_ERROR_INVALID_CONTEXT;
        CHECK_EQ(result, CUDA_ERROR_INVALID_CONTEXT);
        CHECK(i != 4 || !ms_order_context_ends_within(CONTEXT, 0));
        CHECK(i < 5 || !ms_order_event_passes((CUevent)1, CONTEXT, i == 5));
        CHECK(ms_driver.exchange_capture_mode == exchange_capture_mode);
        CHECK_EQ(queries + marks + waits + synchronisations, 0);
    }
}

MS_TEST_AFTER(set_up, within_a_time_a_context_ends_or_does_not)
{
    CHECK(ms_order_context_ends_within(CONTEXT, 0));
    is_busy = true;
    queries = 0;
    CHECK(!ms_order_context_ends_within(CONTEXT, 0));
    const int once = queries;
    CHECK(!ms_order_context_ends_within(CONTEXT, 20));
    CHECK(queries - once > once);
}

/* An end without a begin may be of a capture that was there before. */
STORY_AFTER(set_up, captures_are_counted, ms_order_set_capture(false), IS(!ms_is_capturing()),
            ms_order_set_capture(true), ms_order_set_capture(true), ms_order_set_capture(false),
            IS(ms_is_capturing() && !ms_order_may_record(STREAM)), ms_order_set_capture(false),
            IS(!ms_is_capturing() && ms_order_may_record(STREAM)))

STORY_AFTER(set_up, a_gate_is_for_copies_too_where_the_shim_has_started,
            atomic_store(&ms_hot.gated, 0), ms_order_add_gate(),
            IS(!ms_is_gated() && atomic_load(&ms_hot.gated_copies) == 0),
            atomic_store(&ms_hot.started, 1), ms_order_add_gate(),
            IS(ms_is_gated() && atomic_load(&ms_hot.gated_copies) == 1))

/* Where nothing gates it, it is only asked whether it is a stream. */
STORY_AFTER(set_up, an_ungated_stream_need_not_be_idle, ms_driver.stream_query = use_stream,
            atomic_store(&ms_hot.gated, 0), stream_result = CUDA_ERROR_NOT_READY,
            IS(ms_order_may_record(STREAM)), stream_result = CUDA_SUCCESS,
            IS(ms_order_may_record(STREAM)), stream_result = CUDA_ERROR_INVALID_HANDLE,
            IS(!ms_order_may_record(STREAM)), EQUALS(queries, 0))

MS_TEST_AFTER(set_up, a_context_is_never_idle_where_the_driver_cannot_tell)
{
    knows_marks = false;
    CHECK(!is_idle());
    CHECK_EQ(marks, 1);
    CHECK_EQ(queries, 0);
}

MS_TEST_AFTER(set_up, a_context_with_a_capture_is_not_asked)
{
    ms_order_set_capture(true);
    CHECK(!is_idle());
    CHECK_EQ(marks, 0);
    ms_order_set_capture(false);
    CHECK(is_idle());
    CHECK_EQ(marks, 1);
}

MS_TEST_AFTER(set_up, a_context_is_waited_for_by_an_event_where_the_driver_has_it)
{
    CHECK_EQ(ms_order_context_wait(CONTEXT), CUDA_SUCCESS);
    CHECK_EQ(waits, 1);
    CHECK_EQ(synchronisations, 0);
    knows_marks = false;
    CHECK_EQ(ms_order_context_wait(CONTEXT), CUDA_SUCCESS);
    CHECK_EQ(waits, 1);
    CHECK_EQ(synchronisations, 1);
}

MS_TEST_AFTER(set_up, a_context_whose_events_come_too_early_is_waited_for_without)
{
    ms_facts_set_unmet(0, MS_FACT_BIT(MS_FACT_CONTEXT_EVENT));
    CHECK_EQ(ms_order_context_wait(CONTEXT), CUDA_SUCCESS);
    CHECK_EQ(marks + waits, 0);
    CHECK_EQ(synchronisations, 1);
    CHECK(!is_idle());
}

STORY_AFTER(set_up, a_context_with_a_capture_is_not_waited_for, ms_order_set_capture(true),
            EQUALS(ms_order_context_wait(CONTEXT), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED),
            EQUALS(marks + waits + synchronisations, 0), ms_order_set_capture(false))

STORY_AFTER(set_up, only_during_a_capture_the_driver_is_asked_what_that_allows, is_busy = true,
            asks_what_is_allowed = true, EQUALS(ms_order_capture_allows(), CUDA_SUCCESS),
            EQUALS(queries, 0), ms_order_set_capture(true),
            EQUALS(ms_order_capture_allows(), CUDA_ERROR_NOT_READY), EQUALS(queries, 1),
            ms_order_set_capture(false))

MS_TEST_AFTER(set_up, whether_host_memory_may_change_is_asked_without_a_wait)
{
    CHECK(!ms_order_host_may_change(STREAM));
    is_busy = true;
    queries = 0;
    CHECK(ms_order_host_may_change(STREAM)); /* other streams that it would wait for */
    const int asked = queries;
    CHECK(asked < queries_of_stream());
    is_stream_busy = true;
    queries = 0;
    CHECK(ms_order_host_may_change(STREAM));
    CHECK_EQ(queries, 0);
    atomic_store(&ms_hot.gated, 0);
    CHECK(!ms_order_host_may_change(STREAM));
}

static void *wait_in_thread(void *result)
{
    ms_order_forbid_waits();
    *(CUresult *)result = ms_order_context_wait(CONTEXT);
    return NULL;
}

MS_TEST_AFTER(set_up, a_thread_that_may_not_wait_waits_for_no_context)
{
    pthread_t thread;
    CUresult result = CUDA_SUCCESS;
    CHECK(pthread_create(&thread, NULL, wait_in_thread, &result) == 0);
    pthread_join(thread, NULL);
    CHECK_EQ(result, CUDA_ERROR_NOT_READY);
    CHECK_EQ(marks + waits + synchronisations, 0);
    CHECK_EQ(ms_order_context_wait(CONTEXT), CUDA_SUCCESS);
}

/* --- a capture of another thread */

static pthread_t other;
static _Atomic bool may_begin;

static void *begin_capture(void *unused)
{
    ms_order_set_capture(true);
    atomic_store(&may_begin, true);
    return unused;
}

static void start_other(void)
{
    CHECK(pthread_create(&other, NULL, begin_capture, NULL) == 0);
    for (int i = 0; i < 50 && !atomic_load(&may_begin); i++)
        usleep(1000);
    CHECK(!atomic_load(&may_begin));
}

STORY_AFTER(set_up, a_capture_does_not_begin_while_a_context_is_waited_for, on_mark = start_other,
            EQUALS(ms_order_context_wait(CONTEXT), CUDA_SUCCESS), pthread_join(other, NULL),
            IS(atomic_load(&may_begin)), ms_order_set_capture(false),
            atomic_store(&may_begin, false))

STORY_AFTER(set_up, a_capture_does_not_begin_while_a_context_is_asked, on_mark = start_other,
            IS(is_idle()), pthread_join(other, NULL), IS(atomic_load(&may_begin)),
            ms_order_set_capture(false), EQUALS(atomic_load(&ms_hot.captures), 0))
