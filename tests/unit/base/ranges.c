/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/base/ranges.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/simcuda/harness/test.h"

/* The slow, obvious twin: a list is a set of numbers. */
enum { NUMBERS = 200 };

static void add_random(struct ms_ranges *ranges, bool *twin, bool ordered)
{
    const int count = rand() % 12;
    uint64_t at = 0;
    for (int i = 0; i < count && at < NUMBERS; i++) {
        const uint64_t begin = ordered ? at + (uint64_t)rand() % 20 : (uint64_t)rand() % NUMBERS;
        uint64_t end = begin + (uint64_t)rand() % 20;
        end = end < NUMBERS ? end : NUMBERS;
        CHECK(ms_ranges_add(ranges, begin, end));
        for (uint64_t n = begin; n < end; n++)
            twin[n] = true;
        at = begin > end ? begin : end;
    }
    ms_ranges_sort(ranges);
}

static void check_same(const struct ms_ranges *ranges, const bool *twin)
{
    bool seen[NUMBERS] = {false};
    for (size_t i = 0; i < ranges->count; i++) {
        const struct ms_range range = ranges->list[i];
        CHECK(range.begin < range.end && range.end <= NUMBERS);
        CHECK(i == 0 || ranges->list[i - 1].end < range.begin);
        for (uint64_t n = range.begin; n < range.end; n++)
            seen[n] = true;
    }
    CHECK(memcmp(seen, twin, sizeof(seen)) == 0);
}

MS_TEST(lists_are_sets)
{
    const unsigned seed = 20261121;
    printf("# seed %u\n", seed);
    srand(seed);
    for (int round = 0; round < 20000; round++) {
        struct ms_ranges from = {0}, what = {0}, rest = {0};
        bool from_twin[NUMBERS] = {false}, what_twin[NUMBERS] = {false};
        add_random(&from, from_twin, round % 2 == 0);
        add_random(&what, what_twin, round % 3 == 0);
        check_same(&from, from_twin);
        check_same(&what, what_twin);
        CHECK(ms_ranges_subtract(&from, &what, &rest));
        for (int n = 0; n < NUMBERS; n++)
            from_twin[n] = from_twin[n] && !what_twin[n];
        check_same(&rest, from_twin);
        ms_ranges_cleanup(&from);
        ms_ranges_cleanup(&what);
        ms_ranges_cleanup(&rest);
    }
}
