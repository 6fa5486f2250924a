/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/fill/settle.h"

#include <time.h>

#include "runtime/config/config.h"
#include "runtime/driver/flags.h"
#include "runtime/memory/space.h"
#include "runtime/state/counters.h"
#include "runtime/state/window.h"
#include "tests/unit/between.h"
#include "tests/unit/fake_driver.h"

enum { GRANULES = 4, BYTES = GRANULES * FAKE_GRANULE };

static const struct ms_content pattern = {.kind = MS_FILL, .pattern = 0x04030201};
static struct ms_allocation *one, *other;

static void start(void)
{
    fake_start();
    one = fake_allocation(BYTES);
    other = fake_allocation(BYTES);
    fake_set(one, 0, BYTES, &pattern);
    fake_set(other, 0, FAKE_GRANULE, &pattern);
}

static void end(void)
{
    fake_check_allocation(one);
    fake_check_allocation(other);
    fake_allocation_free(one);
    fake_allocation_free(other);
    fake_check_empty();
}

/* Of a program that launches for a while. */
static bool is_due_again(void)
{
    bool is_due = false;
    ms_config.settle_ms = 1;
    nanosleep(&(struct timespec){.tv_nsec = 20 * 1000 * 1000}, NULL);
    for (int i = 0; i < 64; i++)
        is_due = ms_window_is_due();
    return is_due;
}

MS_TEST_BETWEEN(start, end, what_is_deferred_gets_memory_and_calls_are_not_looked_at_any_more)
{
    CHECK(ms_defers_any());
    ms_settle_now("a test");
    CHECK(!ms_defers_any());
    CHECK(one->lineage.resident_bytes == BYTES && other->lineage.resident_bytes == BYTES);
    CHECK_EQ(ms_counter_get(MS_COUNT_SETTLES), 1);
    CHECK_EQ(ms_counter_get(MS_COUNT_SETTLED_ALLOCATIONS), 2);
    ms_settle_now("a test");
    CHECK_EQ(ms_counter_get(MS_COUNT_SETTLES), 1);
    CHECK(is_due_again());
}

/* The one whose bytes cannot be had stays as it is. */
MS_TEST_BETWEEN(start, end, one_that_fails_does_not_keep_the_others)
{
    fake_fail(FAKE_memset_d32_async, 1, CUDA_ERROR_INVALID_HANDLE);
    ms_settle_now("a test");
    CHECK(fake_has_failed() && ms_defers_any());
    CHECK_EQ(ms_counter_get(MS_COUNT_SETTLED_ALLOCATIONS), 1);
    CHECK_EQ(one->lineage.resident_bytes + other->lineage.resident_bytes, BYTES);
    CHECK(!is_due_again()); /* before something new is recorded */
    ms_settle_now("a test");
    CHECK(!ms_defers_any());
}

MS_TEST_BETWEEN(start, end, where_memory_is_short_nothing_else_is_tried)
{
    fake_fail(FAKE_mem_create, 1, CUDA_ERROR_OUT_OF_MEMORY);
    ms_settle_now("a test");
    CHECK(fake_has_failed() && ms_defers_any());
    CHECK_EQ(fake.calls[FAKE_mem_create], 1);
    CHECK_EQ(other->lineage.resident_bytes, 0);
}
