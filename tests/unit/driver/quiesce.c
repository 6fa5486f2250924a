/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/driver/quiesce.h"

#include <pthread.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "tools/simcuda/harness/test.h"
#include "tests/unit/between.h"

enum { PATIENCE_MS = 60000 };

static _Atomic int begun, gone_on;
static _Atomic long slept_ms; /* as asked for */

static _Atomic int pauses;
static int call_ends_at; /* the pause in which a call of the test ends */

int nanosleep(const struct timespec *time, struct timespec *left)
{
    slept_ms += time->tv_nsec / (1000 * 1000);
    if (++pauses == call_ends_at)
        ms_quiesce_leave();
    return (int)syscall(SYS_nanosleep, time, left);
}

static void *call(void *unused)
{
    begun++;
    ms_quiesce_enter();
    gone_on++;
    ms_quiesce_leave();
    return unused;
}

static void sleep_ms(long ms)
{
    nanosleep(&(struct timespec){.tv_nsec = ms * 1000 * 1000}, NULL);
}

MS_TEST(calls_are_counted_from_the_start_on)
{
    CHECK(!ms_counts_calls());
    ms_quiesce_start();
    CHECK(ms_counts_calls());
    CHECK(!ms_defers_any());
    CHECK(!ms_is_quiet());
    ms_examining_begin();
    CHECK(ms_defers_any());
    ms_examining_end();
    CHECK(!ms_defers_any());
    CHECK_EQ(ms_hot.unexamined, 1);
}

static long slept_by_one(void)
{
    slept_ms = 0;
    CHECK(ms_quiesce_begin(PATIENCE_MS));
    ms_quiesce_end();
    return slept_ms;
}

MS_TEST(calls_from_before_counting_get_longer_and_once)
{
    CHECK_EQ(slept_by_one(), 100);
    CHECK_EQ(slept_by_one(), 10);
}

STORY_ALONE(a_call_gets_no_longer_where_all_calls_are_counted, ms_quiesce_start(),
            EQUALS(slept_by_one(), 10))

MS_TEST(a_call_waits_for_the_end)
{
    enum { THREADS = 3 };
    pthread_t threads[THREADS];
    CHECK(ms_quiesce_begin(PATIENCE_MS));
    for (int i = 0; i < THREADS; i++)
        CHECK_EQ(pthread_create(&threads[i], NULL, call, NULL), 0);
    while (begun < THREADS)
        sleep_ms(1);
    sleep_ms(50);
    CHECK_EQ(gone_on, 0);
    ms_quiesce_end();
    for (int i = 0; i < THREADS; i++)
        CHECK_EQ(pthread_join(threads[i], NULL), 0);
    CHECK_EQ(gone_on, THREADS);
    CHECK(ms_quiesce_begin(0)); /* none is under way */
    ms_quiesce_end();
}

static pthread_barrier_t barrier;

static void *call_until_told(void *unused)
{
    ms_quiesce_enter();
    pthread_barrier_wait(&barrier);
    pthread_barrier_wait(&barrier);
    ms_quiesce_leave();
    return unused;
}

MS_TEST(quiescing_waits_for_calls_under_way)
{
    pthread_t thread;
    CHECK_EQ(pthread_barrier_init(&barrier, NULL, 2), 0);
    CHECK_EQ(pthread_create(&thread, NULL, call_until_told, NULL), 0);
    pthread_barrier_wait(&barrier);
    CHECK(!ms_quiesce_begin(20));
    ms_quiesce_enter(); /* nobody is held up after that */
    ms_quiesce_leave();
    pthread_barrier_wait(&barrier);
    CHECK(ms_quiesce_begin(PATIENCE_MS));
    ms_quiesce_end();
    CHECK_EQ(pthread_join(thread, NULL), 0);
}

/* Longer than so many nanoseconds. */
MS_TEST(quiescing_waits_so_many_milliseconds_for_a_call)
{
    ms_quiesce_enter();
    ms_quiesce_is_counted = false; /* as if another thread had called */
    pauses = 0;
    call_ends_at = 10;
    CHECK(ms_quiesce_begin(PATIENCE_MS));
    CHECK(pauses >= 10);
    ms_quiesce_end();
}

MS_TEST(calls_that_were_held_up_in_vain_get_a_moment)
{
    ms_quiesce_enter();
    ms_quiesce_is_counted = false;
    slept_ms = 0;
    CHECK(!ms_quiesce_begin(0));
    CHECK_EQ(slept_ms, 1);
    ms_quiesce_leave();
    CHECK(ms_quiesce_begin(0));
    ms_quiesce_end();
}

MS_TEST(quiescing_does_not_wait_for_its_own_thread)
{
    ms_quiesce_enter();
    CHECK(ms_quiesce_begin(0));
    ms_quiesce_enter(); /* a call of the driver's own */
    CHECK(!ms_quiesce_is_counted);
    ms_quiesce_end();
    ms_quiesce_enter();
    CHECK(ms_quiesce_is_counted);
    ms_quiesce_leave();
}
