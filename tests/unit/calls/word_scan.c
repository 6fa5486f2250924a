/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/calls/word_scan.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/simcuda/harness/test.h"
#include "tests/unit/between.h"

enum { MOST = 400, ROUNDS = 20000 };

static unsigned char bytes[MOST];

static uint64_t word_at(size_t at)
{
    uint64_t word;
    memcpy(&word, bytes + at, sizeof(word));
    return word;
}

static bool holds(const struct ms_range *windows, uint64_t word)
{
    for (int i = 0; i < MS_WORD_WINDOWS; i++) {
        if (word >= windows[i].begin && word < windows[i].end)
            return true;
    }
    return false;
}

/* The slow, obvious twin. From `skip_from` on it looks for no words in `skipped`. */
static void check_skipping(const struct ms_range *windows, size_t begin, size_t count,
                           size_t skip_from, struct ms_range skipped)
{
    struct ms_words words;
    size_t offset;
    uint64_t word;
    ms_word_scan_begin(&words, bytes + begin, count, windows);
    for (size_t at = 0; at + 8 <= count; at++) {
        if (at >= skip_from)
            words.skipped = skipped;
        word = word_at(begin + at);
        if (!holds(windows, word) ||
            (at >= skip_from && word >= skipped.begin && word < skipped.end))
            continue;
        CHECK(ms_word_scan_next(&words, &offset, &word));
        CHECK_EQ(offset, at);
        CHECK_EQ(word, word_at(begin + at));
    }
    CHECK(!ms_word_scan_next(&words, &offset, &word));
}

static void check(const struct ms_range *windows, size_t begin, size_t count)
{
    check_skipping(windows, begin, count, SIZE_MAX, (struct ms_range){0, 0});
}

static uint64_t draw(void)
{
    static const uint64_t near[] = {0, 0x302000000, 0x5a5b00000000, 0x7f0012345678, UINT64_MAX};
    const uint64_t base = near[rand() % 5];
    return base + ((uint64_t)rand() << (rand() % 24)) - (base > 0 && rand() % 3 == 0);
}

MS_TEST(every_word_in_a_window_is_found)
{
    const unsigned seed = 20261122;
    printf("# seed %u\n", seed);
    srand(seed);
    for (int round = 0; round < ROUNDS; round++) {
        struct ms_range windows[MS_WORD_WINDOWS];
        for (int i = 0; i < MS_WORD_WINDOWS; i++) {
            windows[i].begin = draw();
            windows[i].end =
                rand() % 4 == 0 ? 0 : windows[i].begin + ((uint64_t)rand() << rand() % 12);
        }
        const size_t begin = (size_t)rand() % 40, count = (size_t)rand() % (MOST - begin);
        memset(bytes, rand() % 2 == 0 ? 0 : rand(), sizeof(bytes));
        for (int i = rand() % 30; i > 0 && count >= 8; i--) {
            const uint64_t word = rand() % 2 == 0
                                      ? windows[i % MS_WORD_WINDOWS].begin + (uint64_t)rand() % 99
                                      : draw();
            memcpy(bytes + begin + (size_t)rand() % (count - 7), &word, sizeof(word));
        }
        check(windows, begin, count);
        check_skipping(windows, begin, count, (size_t)rand() % MOST,
                       (struct ms_range){windows[0].begin + 10, windows[0].begin + 60});
    }
}

/* Addresses in a row, of which most are skipped; some bytes among them are others. */
MS_TEST(a_scan_finds_an_address_between_words_it_skips)
{
    const struct ms_range windows[MS_WORD_WINDOWS] = {{0x5a5b00000000, 0x5a5e00000000},
                                                      {0x010000000000, 0x010000001000}};
    const struct ms_range skipped = {rand() % 2 == 0 ? 0 : 0x5a5b00000000, 0x5a5c00000000};
    static const unsigned char special[] = {0, 0, 0, 1, 0x5a, 0x5b, 0x5d};
    for (int round = 0; round < ROUNDS; round++) {
        const size_t begin = (size_t)rand() % 16, count = MOST - begin - (size_t)rand() % 16;
        for (size_t at = begin; at + 8 <= MOST; at += 8) {
            const uint64_t word =
                0x5a5b00000000 + (uint64_t)rand() + ((uint64_t)(rand() % 9 == 0) << 32);
            memcpy(bytes + at, &word, sizeof(word));
        }
        for (int i = rand() % 12; i > 0; i--)
            bytes[rand() % MOST] = special[(size_t)rand() % sizeof(special)];
        check_skipping(windows, begin, count, 0, skipped);
        check_skipping(windows, begin, count, (size_t)rand() % MOST, skipped);
    }
}

MS_TEST(a_scan_finds_each_word_around_those_it_skips)
{
    const struct ms_range windows[MS_WORD_WINDOWS] = {{0x5a5b00000000, 0x5a5e00000000}};
    const struct ms_range skipped = {0x5a5b12345678, 0x5a5c12345678};
    const uint64_t values[] = {skipped.begin - 1, skipped.begin, skipped.end - 1, skipped.end};
    for (int i = 0; i < 4; i++) {
        for (size_t other = 0; other + 8 <= MOST; other += 8) {
            for (size_t at = 0; at + 8 <= MOST; at += 8)
                memcpy(bytes + at, at == other ? &values[i] : &values[1 + i % 2], 8);
            check_skipping(windows, 0, MOST, 0, skipped);
        }
    }
}

MS_TEST(both_ends_of_a_window_count)
{
    const struct ms_range windows[MS_WORD_WINDOWS] = {{0x5a5b00000000, 0x5a5c00000001}};
    const uint64_t values[] = {0x5a5affffffff, 0x5a5b00000000, 0x5a5c00000000, 0x5a5c00000001};
    for (size_t at = 0; at < 100; at++) {
        for (int i = 0; i < 4; i++) {
            memset(bytes, 0, sizeof(bytes));
            memcpy(bytes + at, &values[i], 8);
            check(windows, 0, 108);
            check(windows, 0, at + 8);
            check(windows, 0, at + 7);
        }
    }
}

/* --- which words are looked at one by one */

static void check_planes(struct ms_range window, size_t count, const struct ms_word_plane *planes)
{
    const struct ms_range windows[MS_WORD_WINDOWS] = {{5, 5}, window};
    struct ms_words words;
    ms_word_scan_begin(&words, bytes, sizeof(bytes), windows);
    CHECK_EQ(words.window_count, 1);
    CHECK_EQ(words.windows[0].plane_count, count);
    for (size_t i = 0; i < count; i++) {
        CHECK_EQ(words.windows[0].planes[i].at, planes[i].at);
        CHECK_EQ(words.windows[0].planes[i].low, planes[i].low);
        CHECK_EQ(words.windows[0].planes[i].span, planes[i].span);
    }
}

/* The highest byte that is not zero first, and the one below it; only where there is none, those
 * above it. */
STORY_ALONE(a_word_is_looked_at_by_its_highest_bytes,
            check_planes((struct ms_range){0x5a5b00000000, 0x5a5e00000000}, 2,
                         (struct ms_word_plane[]){{1, 0x5a, 0}, {0, 0x5b, 2}}),
            check_planes((struct ms_range){0x5a5b00000000, 0x5a5e00000001}, 2,
                         (struct ms_word_plane[]){{1, 0x5a, 0}, {0, 0x5b, 3}}),
            check_planes((struct ms_range){0x5a5b00000000, 0x5c0000000000}, 2,
                         (struct ms_word_plane[]){{1, 0x5a, 1}, {0, 0, 0xff}}),
            check_planes((struct ms_range){0x8000000000, 0x10000000000}, 4,
                         (struct ms_word_plane[]){
                             {0, 0x80, 0x7f}, {1, 0, 0}, {2, 0, 0}, {3, 0, 0}}),
            check_planes((struct ms_range){0x12000000000000, 0x12550000000001}, 2,
                         (struct ms_word_plane[]){{2, 0x12, 0}, {1, 0, 0x55}}),
            check_planes((struct ms_range){0x300000000, 0x700000000}, 4,
                         (struct ms_word_plane[]){{0, 3, 3}, {1, 0, 0}, {2, 0, 0}, {3, 0, 0}}),
            check_planes((struct ms_range){0x1000, 0x2000}, 4,
                         (struct ms_word_plane[]){{0, 0, 0}, {1, 0, 0}, {2, 0, 0}, {3, 0, 0}}))

/* Words that agree in some of these bytes are not looked at. */
MS_TEST(all_bytes_of_a_word_that_are_compared_must_be_the_windows)
{
    const struct ms_range windows[MS_WORD_WINDOWS] = {{0x5a5b00000000, 0x5a5e00000000}};
    const uint64_t found = 0x5a5c00000000, upper = 0x5a7700000000, lower = 0x775c00000000;
    struct ms_words words;
    size_t at;
    uint64_t word;
    memset(bytes, 0, sizeof(bytes));
    memcpy(bytes + 8, &upper, 8);
    memcpy(bytes + 24, &lower, 8);
    memcpy(bytes + 40, &found, 8);
    memcpy(bytes + 56, &found, 8);
    ms_word_scan_begin(&words, bytes, sizeof(bytes), windows);
    CHECK(ms_word_scan_next(&words, &at, &word) && at == 40);
    CHECK_EQ(words.marks, UINT64_C(1) << 56);
}
