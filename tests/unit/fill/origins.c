/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/fill/origins.h"

#include <stdio.h>

#include "runtime/source/source_internal.h"
#include "tools/simcuda/harness/test.h"

enum { MOST_FILES = 1024, MOST_ORIGINS = 16384, BYTES = 64 << 10 };

/* The only part of a file that matters here is its name. Content of file `inode` is brought to the
 * place of that number. */
static void note_at(unsigned inode, unsigned place, size_t bytes)
{
    static struct ms_source file = {.is_file = true};
    const struct ms_allocation allocation = {.address = 1ULL << 40};
    file.mapped_inode = inode;
    snprintf(file.path, sizeof(file.path), "/models/%u.safetensors", inode);
    const struct ms_extent extent = {
        .begin = (uint64_t)place * BYTES,
        .end = (uint64_t)place * BYTES + bytes,
        .content = {.kind = MS_SOURCE, .source = &file, .source_offset = place}};
    ms_origins_note(&allocation, &extent);
}

static void check_counts(size_t files, size_t origins)
{
    struct ms_origins copy;
    CHECK(ms_origins_copy(&copy));
    CHECK_EQ(copy.file_count, files);
    CHECK_EQ(copy.count, origins);
    ms_origins_cleanup(&copy);
}

MS_TEST(the_1025th_file_makes_it_forget_the_others)
{
    for (unsigned file = 0; file < MOST_FILES; file++)
        note_at(file, file, BYTES);
    note_at(MOST_FILES / 2, MOST_FILES, BYTES); /* it is known */
    check_counts(MOST_FILES, MOST_FILES + 1);
    note_at(MOST_FILES, 7, BYTES);
    check_counts(1, 1);
    note_at(0, 8, BYTES);
    check_counts(2, 2);
}

MS_TEST(the_oldest_of_more_than_16384_places_are_forgotten)
{
    enum { MORE = 3 };
    struct ms_origins copy;
    for (unsigned place = 0; place < MOST_ORIGINS + MORE; place++)
        note_at(1, place, BYTES);
    check_counts(1, MOST_ORIGINS);
    CHECK(ms_origins_copy(&copy));
    CHECK_EQ(copy.list[0].offset, MORE);
    CHECK_EQ(copy.list[MOST_ORIGINS - 1].offset, MOST_ORIGINS + MORE - 1);
    ms_origins_cleanup(&copy);
}

MS_TEST(of_one_address_the_newest_is_the_first)
{
    struct ms_origins copy;
    for (unsigned file = 1; file <= 3; file++)
        note_at(file, 5, BYTES);
    note_at(4, 2, BYTES);
    CHECK(ms_origins_copy(&copy));
    CHECK_EQ(ms_origins_find(&copy, copy.list[1].address), 1);
    CHECK_EQ(copy.list[1].file, 2);
    CHECK(copy.list[1].time > copy.list[2].time && copy.list[2].time > copy.list[3].time);
    ms_origins_cleanup(&copy);
}

MS_TEST(what_is_small_or_of_no_file_is_not_noted)
{
    struct ms_origins copy;
    const struct ms_allocation allocation = {.address = 1ULL << 40};
    const struct ms_extent fill = {.end = BYTES, .content = {.kind = MS_FILL}};
    note_at(1, 1, BYTES - 1);
    ms_origins_note(&allocation, &fill);
    CHECK(!ms_origins_copy(&copy));
}
