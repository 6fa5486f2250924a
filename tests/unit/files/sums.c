/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/files/sums.h"

#include <string.h>

#include "runtime/files/file_internal.h"
#include "tests/unit/counted_pages.h"
#include "tests/unit/between.h"

enum { PART = MS_SUMS_PART, PARTS = 3 };

static unsigned char part[PART];

/* A file of three parts and a piece; nothing else of the struct is used. */
static struct ms_file file = {.recorded = {.st_size = (off_t)PARTS * PART + PART - 1}};

/* That the part has this sum. */
static void check_sum(uint64_t number, uint64_t sum, bool is_seen)
{
    bool was_seen = !is_seen;
    CHECK_EQ(ms_sums_get(&file, number, &was_seen), sum);
    CHECK_EQ(was_seen, is_seen);
}

MS_TEST(the_sum_is_of_a_whole_part_and_says_not_that_it_was_seen)
{
    const size_t places[] = {0, 1, PART / 2, PART - 1};
    const uint64_t zeros = ms_sums_make(part);
    CHECK(zeros != 0);
    for (int bit = 0; bit < 64; bit++) {
        for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++) {
            part[places[i]] = (unsigned char)(bit + 1);
            const uint64_t sum = ms_sums_make(part);
            CHECK(sum != 0 && sum != zeros);
            CHECK_EQ(sum & 1, 0);
            CHECK_EQ(ms_sums_make(part), sum);
            part[places[i]] = 0;
        }
    }
    CHECK_EQ(ms_sums_make(part), zeros);
}

STORY_ALONE(a_file_has_no_sums_at_first, check_sum(0, 0, false), ms_sums_set_seen(&file, 0),
            check_sum(0, 0, false), ms_sums_cleanup(&file), EQUALS(live, 0))

MS_TEST(sums_are_kept_by_their_parts)
{
    static const uint64_t sums[] = {10, 0, 12}, others[] = {20, 22, 24};
    CHECK(ms_sums_add(&file, 0, sums, PARTS));
    check_sum(0, 10, false);
    check_sum(1, 0, false);
    check_sum(2, 12, false);
    CHECK(ms_sums_add(&file, 1, others, 2)); /* the third has one */
    check_sum(0, 10, false);
    check_sum(1, 20, false);
    check_sum(2, 12, false);
    CHECK_EQ(live, 1);
    ms_sums_cleanup(&file);
    CHECK_EQ(live, 0);
}

MS_TEST(a_part_is_seen_by_itself)
{
    static const uint64_t sums[] = {10, 20, 30}, others[] = {40, 40, 40};
    CHECK(ms_sums_add(&file, 0, sums, PARTS));
    ms_sums_set_seen(&file, 1);
    ms_sums_set_seen(&file, 1);
    ms_sums_set_seen(&file, PARTS);
    check_sum(0, 10, false);
    check_sum(1, 20, true);
    check_sum(2, 30, false);
    check_sum(PARTS, 0, false);
    CHECK(ms_sums_add(&file, 0, others, PARTS));
    check_sum(1, 20, true);
    ms_sums_cleanup(&file);
}

MS_TEST(the_piece_at_the_end_has_no_sum)
{
    static const uint64_t sums[] = {10, 20, 30, 40};
    CHECK(ms_sums_add(&file, 2, sums, 4));
    check_sum(2, 10, false);
    check_sum(PARTS, 0, false);
    check_sum(PARTS + 1, 0, false);
    CHECK_EQ(file.sums[PARTS], 0);
    ms_sums_cleanup(&file);
    file = (struct ms_file){.recorded = {.st_size = PART - 1}};
    CHECK(!ms_sums_add(&file, 0, sums, 1));
    check_sum(0, 0, false);
    CHECK_EQ(live, 0);
    file.recorded.st_size = PART;
    CHECK(ms_sums_add(&file, 0, sums, 1));
    check_sum(0, 10, false);
    ms_sums_cleanup(&file);
}

MS_TEST(as_many_sums_as_fill_their_pages_are_kept)
{
    enum { MANY = 4096 / sizeof(uint64_t) * 3 };
    static uint64_t sums[MANY];
    file.recorded.st_size = (off_t)MANY * PART;
    for (uint64_t i = 0; i < MANY; i++)
        sums[i] = 2 * i + 2;
    CHECK(ms_sums_add(&file, 0, sums, MANY));
    for (uint64_t i = 0; i < MANY; i++)
        check_sum(i, 2 * i + 2, false);
    check_sum(MANY, 0, false);
    ms_sums_cleanup(&file);
    CHECK_EQ(live, 0);
}

MS_TEST(a_file_has_no_sums_without_memory_and_needs_it_for_sums_alone)
{
    static const uint64_t none[PARTS], sums[PARTS] = {0, 10, 0};
    may_make = 0;
    CHECK(ms_sums_add(&file, 0, none, PARTS));
    CHECK(!ms_sums_add(&file, 0, sums, PARTS));
    check_sum(1, 0, false);
    may_make = 1;
    CHECK(ms_sums_add(&file, 0, sums, PARTS));
    CHECK(ms_sums_add(&file, 0, sums, PARTS));
    check_sum(1, 10, false);
    ms_sums_cleanup(&file);
    CHECK_EQ(live, 0);
}
