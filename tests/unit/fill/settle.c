/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/fill/settle.h"

#include <time.h>

#include "runtime/config/config.h"
#include "runtime/driver/flags.h"
#include "runtime/fill/overcommit.h"
#include "runtime/fill/scratch.h"
#include "runtime/memory/space.h"
#include "runtime/state/counters.h"
#include "runtime/state/window.h"
#include "tests/state/page_folder.h"
#include "tests/unit/between.h"
#include "tests/unit/fake_driver.h"
#include "tests/unit/files/files.h"
#include "tests/unit/use_plan.h"

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

/* Whether the window is due for a program that launches for a while. */
static bool is_due_again(void)
{
    bool is_due = false;
    ms_config.settle_ms = 1;
    nanosleep(&(struct timespec){.tv_nsec = 20 * 1000 * 1000}, NULL);
    for (int i = 0; i < 64; i++)
        is_due = ms_window_is_due();
    return is_due;
}

MS_TEST_BETWEEN(start, end, settling_ends_all_deferral)
{
    CHECK(ms_defers_any());
    ms_settle_now("a test");
    CHECK(!ms_defers_any());
    CHECK(ms_allocation_lineage(one)->resident_bytes == BYTES &&
          ms_allocation_lineage(other)->resident_bytes == BYTES);
    CHECK_EQ(ms_counter_get(MS_COUNT_SETTLES), 1);
    CHECK_EQ(ms_counter_get(MS_COUNT_SETTLED_ALLOCATIONS), 2);
    ms_settle_now("a test");
    CHECK_EQ(ms_counter_get(MS_COUNT_SETTLES), 1);
    CHECK(is_due_again());
}

/* The one whose bytes cannot be had stays as it is. */
MS_TEST_BETWEEN(start, end, settling_goes_on_after_an_allocation_that_fails)
{
    fake_fail(FAKE_memset_d32_async, 1, CUDA_ERROR_INVALID_HANDLE);
    ms_settle_now("a test");
    CHECK(fake_has_failed() && ms_defers_any());
    CHECK_EQ(ms_counter_get(MS_COUNT_SETTLED_ALLOCATIONS), 1);
    CHECK_EQ(ms_allocation_lineage(one)->resident_bytes +
                 ms_allocation_lineage(other)->resident_bytes,
             BYTES);
    CHECK(!is_due_again()); /* before something new is recorded */
    ms_settle_now("a test");
    CHECK(!ms_defers_any());
}

MS_TEST_BETWEEN(start, end, settling_ends_where_memory_is_short)
{
    fake_fail(FAKE_mem_create, 1, CUDA_ERROR_OUT_OF_MEMORY);
    ms_settle_now("a test");
    CHECK(fake_has_failed() && ms_defers_any());
    CHECK_EQ(fake.calls[FAKE_mem_create], 1);
    CHECK_EQ(ms_allocation_lineage(other)->resident_bytes, 0);
}

/* --- what is told */

static const char left[] = "not everything could be materialised while settling";

MS_TEST_BETWEEN(start, end, the_log_tells_why_it_settles)
{
    open_log(MS_DEBUG);
    ms_settle_now("a test");
    CHECK_EQ(count_log_lines("settling: a test"), 1);
    CHECK_EQ(count_log_lines(left), 0);
    ms_settle_now("another test"); /* nothing is deferred */
    CHECK_EQ(count_log_lines("settling"), 1);
}

STORY_BETWEEN(start, end, the_log_tells_what_stays_deferred, open_log(MS_INFO),
              fake_fail(FAKE_memset_d32_async, 1, CUDA_ERROR_INVALID_HANDLE),
              ms_settle_now("a test"), EQUALS(count_log_lines(left), 1))

/* Which stays deferred. */
MS_TEST_BETWEEN(start, end, the_log_does_not_tell_of_bytes_other_ranks_keep)
{
    open_log(MS_INFO);
    use_plan(0, BYTES);
    name_tensor(one->address, BYTES, "w");
    ms_settle_now("a test");
    CHECK_EQ(ms_allocation_lineage(one)->resident_bytes + ms_allocation_lineage(one)->cached_bytes,
             BYTES / 2);
    CHECK_EQ(ms_allocation_lineage(other)->resident_bytes, BYTES);
    CHECK(ms_defers_any());
    CHECK_EQ(count_log_lines(left), 0);
    CHECK(!is_due_again());
}

MS_TEST_BETWEEN(start, end, settling_is_an_event_of_the_page)
{
    page_folder_make();
    page_start(MS_STATE_LEAST_BYTES);
    ms_settle_now("a test");
    struct ms_snapshot snapshot = page_read(getpid());
    size_t settles = 0;
    for (size_t i = 0; i < snapshot.event_count; i++) {
        const struct ms_state_event *event = &snapshot.events[i];
        if (event->kind != MS_EVENT_SETTLE)
            continue;
        settles++;
        CHECK_EQ(event->reason, MS_REASON_SETTLE);
        CHECK_EQ(event->bytes, 2 * BYTES);
        CHECK(strcmp(event->text, "a test") == 0);
        CHECK(event->duration_ns > 0);
    }
    CHECK_EQ(settles, 1);
    ms_snapshot_cleanup(&snapshot);
}

/* From then on the program gets what fits. */
MS_TEST_BETWEEN(start, end, a_program_that_has_settled_computes)
{
    bool is_tight;
    ms_config.overcommit = 3;
    CHECK(ms_overcommit_allows(0, 2 * fake.total_bytes, &is_tight));
    ms_settle_now("a test");
    CHECK(!ms_overcommit_allows(0, 2 * fake.total_bytes, &is_tight));
}

STORY_BETWEEN(start, end, no_scratch_memory_stays,
              EQUALS(ms_backing_sink_map(ms_allocation_memory(one), 0, FAKE_GRANULE), CUDA_SUCCESS),
              ms_backing_sink_unmap(ms_allocation_backing(one), 0, FAKE_GRANULE),
              ms_settle_now("a test"), IS(!ms_scratch_drop()))
