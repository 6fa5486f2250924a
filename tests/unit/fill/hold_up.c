/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/fill/hold_up.h"

#include <pthread.h>
#include <string.h>

#include "runtime/config/config.h"
#include "runtime/driver/flags.h"
#include "runtime/driver/quiesce.h"
#include "runtime/memory/examining.h"
#include "tests/unit/between.h"
#include "tests/unit/fake_driver.h"

static struct ms_fault fault;

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

MS_TEST_BETWEEN(start, end, of_a_quiet_program_calls_wait_until_the_end)
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

MS_TEST_BETWEEN(start, end, while_a_stream_is_captured_nothing_is_held_up)
{
    atomic_store(&ms_hot.captures, 1);
    CHECK(!ms_hold_up_begin(&fault) && says("captured"));
    CHECK(!ms_hold_up_is_quiet());
    atomic_store(&ms_hot.captures, 0);
    check_calls_pass();
    CHECK(ms_hold_up_begin(&fault));
    ms_hold_up_end();
}

MS_TEST_BETWEEN(start, end, a_busy_device_is_waited_for_and_then_told)
{
    fake.is_busy = true;
    CHECK(!ms_hold_up_begin(&fault) && says("still busy") && says("30 ms"));
    check_calls_pass();
    fake.is_busy = false;
    CHECK(ms_hold_up_begin(&fault));
    ms_hold_up_end();
}

/* What it waits for at most may be no time at all: it is tried once. */
MS_TEST_BETWEEN(start, end, without_time_it_is_tried_once)
{
    ms_config.suspend_ms = 0;
    CHECK(ms_hold_up_begin(&fault));
    ms_hold_up_end();
    fake.is_busy = true;
    CHECK(!ms_hold_up_begin(&fault) && says("after 0 ms"));
    fake.is_busy = false;
}

MS_TEST_BETWEEN(start, end, late_payloads_are_not_quiet)
{
    atomic_store(&ms_hot.late_payloads, 1);
    CHECK(!ms_hold_up_begin(&fault) && says("still busy"));
    atomic_store(&ms_hot.late_payloads, 0);
    check_calls_pass();
}
