/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/order/examining.h"

#include <stdatomic.h>

#include "runtime/config/config.h"
#include "runtime/driver/flags.h"
#include "runtime/driver/peers.h"
#include "runtime/memory/backing.h"
#include "tests/unit/between.h"

enum { CONTEXTS = 80 };

/* A driver whose contexts are busy, each by itself; a context is its number. */
static CUcontext current;
static bool is_busy[CONTEXTS], can_tell;
static int marks[CONTEXTS], all_marks;
static void (*on_mark)(void);

static CUcontext context_of(uintptr_t number)
{
    return (CUcontext)number;
}

static CUresult ctx_get_current(CUcontext *context)
{
    *context = current;
    return CUDA_SUCCESS;
}

static CUresult ctx_push_current(CUcontext context)
{
    current = context;
    return CUDA_SUCCESS;
}

static CUresult ctx_pop_current(CUcontext *context)
{
    *context = current;
    current = context_of(1);
    return CUDA_SUCCESS;
}

static CUresult exchange_capture_mode(CUstreamCaptureMode *mode)
{
    (void)mode;
    return CUDA_SUCCESS;
}

static CUresult event_create(CUevent *event, unsigned flags)
{
    (void)flags;
    *event = (CUevent)current;
    return CUDA_SUCCESS;
}

static CUresult event_destroy(CUevent event)
{
    (void)event;
    return CUDA_SUCCESS;
}

static CUresult ctx_record_event(CUcontext context, CUevent event)
{
    CHECK((uintptr_t)context == (uintptr_t)event && current == context);
    marks[(uintptr_t)context]++;
    all_marks++;
    if (on_mark != NULL)
        on_mark();
    return can_tell ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED;
}

static CUresult event_query(CUevent event)
{
    return is_busy[(uintptr_t)event] ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
}

static void set_up(void)
{
    ms_driver = (struct ms_driver){
        .ctx_get_current = ctx_get_current,
        .ctx_push_current = ctx_push_current,
        .ctx_pop_current = ctx_pop_current,
        .exchange_capture_mode = exchange_capture_mode,
        .event_create = event_create,
        .event_destroy = event_destroy,
        .ctx_record_event = ctx_record_event,
        .event_query = event_query,
    };
    ms_config.idle_ms = 0;
    current = context_of(1);
    can_tell = true;
    all_marks = 0;
    ms_examining_expect();
}

static bool is_complete(void)
{
    return ms_examining_is_complete(context_of(1), 0);
}

STORY_ALONE(nothing_is_asked_before_work_can_read_what_the_host_writes, ms_examining_begin(),
            IS(is_complete()), set_up(), is_busy[1] = true, IS(!is_complete()), is_busy[1] = false,
            IS(is_complete()), EQUALS(all_marks, 2))

MS_TEST_AFTER(set_up, a_context_found_done_is_not_asked_again)
{
    ms_examining_begin();
    CHECK(is_complete() && is_complete());
    ms_examining_begin(); /* more of it */
    ms_examining_end();
    CHECK(is_complete());
    CHECK_EQ(all_marks, 1);
    CHECK_EQ(atomic_load(&ms_hot.deferred), 1);
}

STORY_AFTER(set_up, a_context_is_asked_again_if_nothing_was_deferred_meanwhile,
            ms_examining_begin(), IS(is_complete()), ms_examining_end(), ms_examining_begin(),
            is_busy[1] = true, IS(!is_complete() && !is_complete()), is_busy[1] = false,
            IS(is_complete()), EQUALS(all_marks, 4))

STORY_AFTER(set_up, a_call_that_can_reach_anything_is_waited_for, ms_examining_begin(),
            IS(is_complete()), ms_examining_missed(), is_busy[1] = true, IS(!is_complete()))

STORY_AFTER(set_up, a_call_that_comes_while_the_driver_is_asked_counts, ms_examining_begin(),
            on_mark = ms_examining_missed, IS(is_complete()), on_mark = NULL, IS(is_complete()),
            EQUALS(all_marks, 2))

STORY_AFTER(set_up, each_context_that_reaches_the_device_is_asked,
            ms_examining_add_context(context_of(2), 0), ms_examining_add_context(context_of(2), 0),
            ms_examining_add_context(context_of(3), 1), ms_examining_begin(), is_busy[3] = true,
            IS(is_complete()), IS(marks[1] == 1 && marks[2] == 1 && marks[3] == 0),
            ms_examining_missed(), ms_peers_set(0, 1, true), IS(!is_complete()),
            ms_examining_forget_context(context_of(3)), IS(is_complete()), ms_examining_missed(),
            is_busy[2] = true, IS(!is_complete()))

STORY_AFTER(set_up, devices_are_found_done_one_by_one, ms_examining_add_context(context_of(2), 1),
            is_busy[2] = true, ms_examining_begin(), IS(is_complete()),
            IS(!ms_examining_is_complete(context_of(2), 1)), IS(is_complete()))

static bool no_kernel(void)
{
    return ms_examining_no_kernel(context_of(1));
}

STORY_AFTER(set_up, a_context_without_a_launch_runs_no_kernel,
            ms_examining_add_context(context_of(2), 1), ms_examining_begin(), is_busy[2] = true,
            IS(!no_kernel()), is_busy[2] = false, IS(no_kernel()), is_busy[1] = is_busy[2] = true,
            IS(no_kernel()), ms_examining_launched(), IS(!no_kernel()),
            is_busy[1] = is_busy[2] = false, IS(no_kernel()), ms_examining_missed(),
            is_busy[1] = true, IS(!no_kernel()))

/* Launches are not seen then. */
STORY_AFTER(set_up, kernels_are_asked_for_each_time_while_nothing_is_deferred, IS(no_kernel()),
            ms_examining_begin(), is_busy[1] = true, IS(!no_kernel()), is_busy[1] = false,
            IS(no_kernel()), ms_examining_end(), is_busy[1] = true, IS(!no_kernel()),
            ms_examining_begin(), IS(!no_kernel()))

STORY_AFTER(set_up, a_launch_while_the_driver_is_asked_counts, ms_examining_begin(),
            on_mark = ms_examining_launched, IS(no_kernel()), on_mark = NULL, is_busy[1] = true,
            IS(!no_kernel()))

MS_TEST_AFTER(set_up, work_is_never_complete_with_more_contexts_than_are_kept)
{
    for (uintptr_t i = 1; i < CONTEXTS; i++)
        ms_examining_add_context(context_of(i), 0);
    ms_examining_begin();
    CHECK(!is_complete());
    CHECK(!no_kernel());
}

MS_TEST_AFTER(set_up, a_context_the_driver_cannot_tell_of_counts_as_done)
{
    can_tell = false;
    is_busy[1] = true;
    ms_examining_begin();
    CHECK(is_complete());
    is_busy[1] = false;
    CHECK(!no_kernel()); /* but a kernel may be there */
}
