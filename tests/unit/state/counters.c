/* SPDX-License-Identifier: Apache-2.0 */
/* Counters and gauges, before and after they are in a page. */
#include "runtime/state/counters.h"

#include <string.h>

#include "runtime/driver/flags.h"
#include "tools/simcuda/harness/test.h"
#include "tests/unit/between.h"

enum { GUARD = 0x5a5a5a };
static _Atomic uint64_t shared[MS_FIGURE_COUNT + 1] = {[MS_FIGURE_COUNT] = GUARD};

static void share(void)
{
    atomic_store(&ms_hot.recorded, MS_RECORDED);
    ms_counters_share(shared);
}

MS_TEST(each_figure_has_a_name_of_its_own)
{
    for (int i = 0; i < MS_FIGURE_COUNT; i++) {
        CHECK(ms_counter_names[i][0] != '\0');
        for (int k = 0; k < i; k++)
            CHECK(strcmp(ms_counter_names[i], ms_counter_names[k]) != 0);
    }
}

MS_TEST(figures_counted_before_the_page_are_shared)
{
    for (unsigned i = 0; i < MS_COUNTER_COUNT; i++)
        ms_counter_add((enum ms_counter)i, i + 1);
    ms_counter_move(MS_GAUGE_LIVE, 7);
    share();
    for (unsigned i = 0; i < MS_COUNTER_COUNT; i++)
        CHECK_EQ(shared[i], i + 1);
    CHECK_EQ(shared[MS_GAUGE_LIVE], 7);
    CHECK_EQ(shared[MS_FIGURE_COUNT], GUARD);
    ms_counter_add(0, 10);
    atomic_fetch_add(&ms_counter_figures[0], 100);
    CHECK_EQ(shared[0], 111);
    CHECK_EQ(ms_counter_get(0), 111);
}

/* They are its parent's. */
STORY_ALONE(a_process_that_is_not_recorded_leaves_shared_figures_alone,
            ms_counter_add(MS_COUNT_LOOKUPS, 5), share(),
            atomic_store(&ms_hot.recorded, MS_NOT_RECORDED), ms_counter_add(MS_COUNT_LOOKUPS, 1),
            ms_counter_move(MS_GAUGE_BACKED, 9), EQUALS(shared[MS_COUNT_LOOKUPS], 5),
            EQUALS(shared[MS_GAUGE_BACKED] + shared[MS_GAUGE_BACKED_PEAK], 0),
            EQUALS(ms_counter_get(MS_COUNT_LOOKUPS), 6))

MS_TEST(the_peak_of_a_gauge_is_the_most_that_it_ever_was)
{
    static const enum ms_gauge gauges[] = {MS_GAUGE_BACKED, MS_GAUGE_LIVE};
    share();
    for (int i = 0; i < 2; i++) {
        ms_counter_move(gauges[i], 30);
        ms_counter_move(gauges[i], -20);
        ms_counter_move(gauges[i], 15);
        CHECK_EQ(ms_counter_get(gauges[i]), 25);
        CHECK_EQ(ms_counter_get(gauges[i] + 1), 30);
        ms_counter_move(gauges[i], 6);
        CHECK_EQ(ms_counter_get(gauges[i] + 1), 31);
    }
}

MS_TEST(a_gauge_without_a_peak_leaves_the_figure_behind_it_alone)
{
    for (unsigned i = MS_GAUGE_DEFERRED; i < MS_GAUGE_CHANGED_NS; i++) {
        ms_counter_move((enum ms_gauge)i, 30);
        ms_counter_move((enum ms_gauge)i, -10);
        CHECK_EQ(ms_counter_get(i), 20);
        CHECK_EQ(ms_counter_get(i + 1), 0);
    }
}
