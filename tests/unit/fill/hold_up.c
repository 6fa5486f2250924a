/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/fill/hold_up.h"

#include <pthread.h>
#include <string.h>

#include "runtime/config/config.h"
#include "runtime/driver/flags.h"
#include "runtime/driver/quiesce.h"
#include "runtime/fill/evict.h"
#include "runtime/fill/delayed_free.h"
#include "runtime/order/examining.h"
#include "tests/unit/between.h"
#include "tests/unit/fake_driver.h"

static struct ms_fault fault;

/* How long calls are held up, each time, and how often they do not end. */
enum { MOST_TIMES = 16 };
static uint64_t patiences[MOST_TIMES];
static size_t times, times_in_vain;
WRAPS(ms_quiesce_begin);
bool __wrap_ms_quiesce_begin(uint64_t ms)
{
    CHECK(times < MOST_TIMES);
    patiences[times++] = ms;
    return times > times_in_vain && __real_ms_quiesce_begin(ms);
}

static void start(void)
{
    fake_start();
    ms_config.suspend_ms = 30;
    ms_examining_add_context(FAKE_CONTEXT, 0);
    ms_quiesce_start();
    fault = (struct ms_fault){0};
}

static void end(void)
{
    ms_examining_forget_context(FAKE_CONTEXT);
    fake_check_empty();
}

static bool says(const char *text)
{
    return strstr(fault.text, text) != NULL;
}

static void *call(void *gone_on)
{
    ms_quiesce_enter();
    *(_Atomic bool *)gone_on = true;
    ms_quiesce_leave();
    return NULL;
}

/* A call of another thread gets to the driver. */
static void check_calls_pass(void)
{
    _Atomic bool gone_on = false;
    pthread_t thread;
    CHECK_EQ(pthread_create(&thread, NULL, call, (void *)&gone_on), 0);
    CHECK_EQ(pthread_join(thread, NULL), 0);
    CHECK(gone_on);
}

MS_TEST_BETWEEN(start, end, calls_of_a_quiet_program_wait_until_the_end)
{
    _Atomic bool gone_on = false;
    pthread_t thread;
    CHECK(ms_hold_up_begin(&fault) && ms_hold_up_is_quiet());
    CHECK_EQ(pthread_create(&thread, NULL, call, (void *)&gone_on), 0);
    nanosleep(&(struct timespec){.tv_nsec = 20 * 1000 * 1000}, NULL);
    CHECK(!gone_on);
    ms_hold_up_end();
    CHECK_EQ(pthread_join(thread, NULL), 0);
    CHECK(gone_on);
}

STORY_BETWEEN(start, end, holding_up_fails_while_a_stream_is_captured,
              atomic_store(&ms_hot.captures, 1), IS(!ms_hold_up_begin(&fault) && says("captured")),
              IS(!ms_hold_up_is_quiet()), atomic_store(&ms_hot.captures, 0), check_calls_pass(),
              IS(ms_hold_up_begin(&fault)), ms_hold_up_end())

STORY_BETWEEN(start, end, a_busy_device_is_waited_for_and_then_told, fake.is_busy = true,
              IS(!ms_hold_up_begin(&fault) && says("still busy") && says("30 ms")),
              check_calls_pass(), fake.is_busy = false, IS(ms_hold_up_begin(&fault)),
              ms_hold_up_end())

/* The longest wait may be no time at all: holding up is then tried once. */
STORY_BETWEEN(start, end, holding_up_without_time_is_tried_once, ms_config.suspend_ms = 0,
              IS(ms_hold_up_begin(&fault)), ms_hold_up_end(), fake.is_busy = true,
              IS(!ms_hold_up_begin(&fault) && says("after 0 ms")), fake.is_busy = false)

STORY_BETWEEN(start, end, late_payloads_are_not_quiet, atomic_store(&ms_hot.late_payloads, 1),
              IS(!ms_hold_up_begin(&fault) && says("still busy")),
              atomic_store(&ms_hot.late_payloads, 0), check_calls_pass())

STORY_BETWEEN(start, end, reads_that_are_not_queued_are_not_quiet, ms_evict_hold(),
              IS(!ms_hold_up_is_quiet()), IS(!ms_hold_up_begin(&fault) && says("still busy")),
              ms_evict_let_go(), check_calls_pass(), IS(ms_hold_up_is_quiet()))

STORY_BETWEEN(start, end, work_that_comes_meanwhile_is_not_quiet,
              IS(ms_hold_up_begin(&fault) && ms_hold_up_is_quiet()), fake.is_busy = true,
              IS(!ms_hold_up_is_quiet()), fake.is_busy = false,
              atomic_store(&ms_hot.late_payloads, 1), IS(!ms_hold_up_is_quiet()),
              atomic_store(&ms_hot.late_payloads, 0), IS(ms_hold_up_is_quiet()), ms_hold_up_end())

/* Also where no context is known, whose capture would be seen. */
STORY_BETWEEN(start, end, a_capture_is_not_quiet, ms_examining_forget_context(FAKE_CONTEXT),
              IS(ms_hold_up_is_quiet()), atomic_store(&ms_hot.captures, 1),
              IS(!ms_hold_up_is_quiet()), atomic_store(&ms_hot.captures, 0))

static int queries_left; /* until the device is idle */

static CUresult query_event(CUevent event)
{
    (void)event;
    return queries_left-- > 0 ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
}

STORY_BETWEEN(start, end, a_device_that_is_busy_for_a_while_is_waited_for,
              ms_driver.event_query = query_event, ms_config.suspend_ms = 100000, queries_left = 50,
              IS(ms_hold_up_begin(&fault)), IS(queries_left < 0), ms_hold_up_end())

/* Some 64 queries take a few microseconds. */
STORY_BETWEEN(start, end, an_event_that_ends_late_is_waited_for_behind_the_claims_too,
              IS(ms_hold_up_begin(&fault)), ms_driver.event_query = query_event, queries_left = 100,
              IS(ms_hold_up_is_quiet()), IS(queries_left < 0), ms_hold_up_end())

MS_TEST_BETWEEN(start, end, holding_up_runs_delayed_frees)
{
    struct ms_allocation *allocation = fake_allocation(FAKE_GRANULE);
    fake_set(allocation, 0, FAKE_GRANULE, &(struct ms_content){.kind = MS_RESIDENT});
    ms_space_remove(ms_space_claim(allocation->address));
    ms_delayed_free_add(allocation, NULL, NULL);
    CHECK_EQ(fake.physical_bytes, FAKE_GRANULE);
    CHECK(ms_hold_up_begin(&fault));
    CHECK_EQ(fake.physical_bytes, 0);
    ms_hold_up_end();
}

/* Which its work may wait for. */
MS_TEST(holding_up_fails_while_the_device_is_busy)
{
    fake_start();
    ms_config.suspend_ms = 0;
    ms_examining_add_context(FAKE_CONTEXT, 0);
    fake.is_busy = true;
    CHECK(!ms_hold_up_begin(&fault) && says("still busy"));
    CHECK(!ms_counts_calls()); /* as it does from the first time on that any is */
}

/* Up to a limit: they may have to go on before one that is waited for ends. */
MS_TEST_BETWEEN(start, end, calls_are_held_up_longer_each_time)
{
    static const uint64_t wanted[] = {10,  20,   40,   80,   160,   320,
                                      640, 1280, 2560, 5120, 10000, 10000};
    ms_config.suspend_ms = 100000;
    times_in_vain = sizeof(wanted) / sizeof(*wanted) - 1;
    CHECK(ms_hold_up_begin(&fault));
    ms_hold_up_end();
    CHECK_EQ(times, times_in_vain + 1);
    for (size_t i = 0; i < times; i++)
        CHECK_EQ(patiences[i], wanted[i]);
}
