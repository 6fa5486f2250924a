/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/state/window.h"

#include <time.h>

#include "runtime/config/config.h"
#include "runtime/driver/flags.h"
#include "tests/unit/between.h"

enum { SETTLE_MS = 1000, LAUNCHES = 64 };

/* The clock of this test, which the linker puts before libc's (meson.build). */
static long now_ms = 5000;
WRAPS(clock_gettime);

int __wrap_clock_gettime(clockid_t clock, struct timespec *time)
{
    (void)clock;
    *time = (struct timespec){now_ms / 1000, now_ms % 1000 * 1000 * 1000};
    return 0;
}

static void start(void)
{
    ms_config.settle_ms = SETTLE_MS;
    ms_window_open();
}

/* So many launches, of which none is due but perhaps the last. */
static bool launch(int count)
{
    for (int i = 1; i < count; i++)
        CHECK(!ms_window_is_due());
    return ms_window_is_due();
}

MS_TEST_AFTER(start, the_window_ends_when_the_program_launches_for_a_while)
{
    now_ms += SETTLE_MS;
    CHECK(!launch(LAUNCHES - 1));
    CHECK(!ms_window_now().is_settled && !ms_keeps_memory());
    CHECK(ms_window_is_due());
    CHECK(ms_window_now().is_settled && ms_window_now().has_moved_on && ms_keeps_memory());
    CHECK(!launch(2 * LAUNCHES)); /* once, however many threads come */
}

STORY_AFTER(start, many_launches_in_a_moment_do_not_end_it, now_ms += SETTLE_MS - 1,
            IS(!launch(10 * LAUNCHES)), now_ms++, IS(ms_window_is_due()))

STORY_AFTER(start, a_record_starts_the_time_and_the_launches_anew, now_ms += SETTLE_MS - 1,
            IS(!launch(LAUNCHES - 1)), ms_window_extend(), now_ms += SETTLE_MS - 1,
            IS(!launch(LAUNCHES)), now_ms++, IS(ms_window_is_due()), ms_window_open(),
            now_ms += SETTLE_MS, IS(!launch(LAUNCHES - 1)), IS(ms_window_is_due()))

STORY_AFTER(start, a_window_in_vain_is_tried_again_after_a_new_record, ms_window_end(true),
            IS(ms_window_now().is_settled && !ms_window_now().has_moved_on), now_ms += SETTLE_MS,
            IS(!launch(2 * LAUNCHES)), ms_window_extend(), now_ms += SETTLE_MS,
            IS(launch(LAUNCHES)))

STORY_AFTER(start, an_allocation_opens_the_next_one, now_ms += SETTLE_MS, IS(launch(LAUNCHES)),
            ms_window_open(),
            IS(!ms_window_now().is_settled && !ms_window_now().has_moved_on && !ms_keeps_memory()))

STORY_AFTER(start, a_window_without_a_time_never_ends, ms_config.settle_ms = 0,
            now_ms += 1000 * 1000, IS(!launch(2 * LAUNCHES)))
