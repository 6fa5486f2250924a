/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/fill/origins.h"

#include <stdio.h>
#include <string.h>

#include "runtime/files/file_internal.h"
#include "runtime/files/file_name.h"
#include "runtime/kernel/call.h"
#include "runtime/memory/recorded_launch.h"
#include "tools/simcuda/harness/test.h"

enum { MOST_FILES = 4, MOST_ORIGINS = 16384, BYTES = 64 << 10 };

static const struct ms_allocation allocation = {.address = 1ULL << 40};

/* The only part of a file that matters here is its name. Content of file `inode` is brought to the
 * place of that number. */
static void note_at(unsigned inode, unsigned place, size_t bytes)
{
    static struct ms_file files[MOST_FILES + 1];
    struct ms_file *file = &files[inode];
    file->source.kind = MS_SOURCE_FILE;
    file->mapped_inode = inode;
    snprintf(file->path, sizeof(file->path), "/models/%u.safetensors", inode);
    const struct ms_extent extent = {
        .begin = (uint64_t)place * BYTES,
        .end = (uint64_t)place * BYTES + bytes,
        .content = {.kind = MS_SOURCE, .source = &file->source, .source_offset = place}};
    ms_origins_note(&allocation, &extent);
}

static void check_count(size_t origins)
{
    struct ms_origins copy;
    CHECK(ms_origins_copy(&copy));
    CHECK_EQ(copy.count, origins);
    ms_origins_cleanup(&copy);
}

static ino_t file_of(const struct ms_origin *origin)
{
    const struct ms_file_name *name = ms_source_name(origin->content.source);
    CHECK(name != NULL);
    return ms_file_name_get(name).inode;
}

MS_TEST(the_oldest_of_more_than_16384_places_are_forgotten)
{
    enum { MORE = 3 };
    struct ms_origins copy;
    for (unsigned place = 0; place < MOST_ORIGINS + MORE; place++)
        note_at(1, place, BYTES);
    check_count(MOST_ORIGINS);
    CHECK(ms_origins_copy(&copy));
    CHECK_EQ(copy.list[0].content.source_offset, MORE);
    CHECK_EQ(copy.list[MOST_ORIGINS - 1].content.source_offset, MOST_ORIGINS + MORE - 1);
    ms_origins_cleanup(&copy);
}

MS_TEST(the_newest_origin_of_an_address_is_the_first)
{
    struct ms_origins copy;
    for (unsigned file = 1; file <= 3; file++)
        note_at(file, 5, BYTES);
    note_at(4, 2, BYTES);
    CHECK(ms_origins_copy(&copy));
    CHECK_EQ(ms_origins_find(&copy, copy.list[1].address), 1);
    CHECK_EQ(file_of(&copy.list[1]), 3);
    CHECK(copy.list[1].time > copy.list[2].time && copy.list[2].time > copy.list[3].time);
    ms_origins_cleanup(&copy);
}

MS_TEST(a_name_of_a_file_is_made_once)
{
    struct ms_origins copy;
    note_at(1, 1, BYTES);
    note_at(1, 2, BYTES);
    CHECK(ms_origins_copy(&copy));
    CHECK_EQ(file_of(&copy.list[0]), 1);
    CHECK(copy.list[0].content.source == copy.list[1].content.source);
    ms_origins_cleanup(&copy);
}

MS_TEST(an_origin_that_gives_other_bytes_is_forgotten)
{
    struct ms_origins copy;
    note_at(1, 1, BYTES);
    note_at(2, 2, BYTES);
    CHECK(ms_origins_copy(&copy));
    ms_origins_forget(&copy.list[0]);
    ms_origins_forget(&copy.list[0]);
    check_count(1);
    ms_origins_cleanup(&copy);
    CHECK(ms_origins_copy(&copy));
    CHECK_EQ(file_of(&copy.list[0]), 2);
    ms_origins_cleanup(&copy);
}

MS_TEST(an_origin_that_is_small_or_of_no_file_is_not_noted)
{
    struct ms_origins copy;
    const struct ms_extent fill = {.end = BYTES, .content = {.kind = MS_FILL}};
    note_at(1, 1, BYTES - 1);
    ms_origins_note(&allocation, &fill);
    CHECK(!ms_origins_copy(&copy));
}

/* --- of launches */

enum { LEAST = 1 << 20 }; /* what of a launch is noted has so many bytes */

static char name[] = "a_kernel";
static struct ms_param_layout layout = {.counted = {.references = 1000}, .name = name};

static struct ms_recorded_launch *record(void)
{
    const struct ms_packed packed = {.count = 0};
    const struct ms_call call = {.function = (CUfunction)1};
    struct ms_recorded_launch *recorded = ms_recorded_launch_create();
    recorded->launch = ms_call_record(&call, &layout, &packed, NULL, 0);
    CHECK(ms_lineage_init(&recorded->before, (size_t)4 * LEAST));
    return recorded;
}

static void note_launch(struct ms_recorded_launch *recorded, size_t begin, size_t bytes)
{
    const struct ms_extent extent = {
        .begin = begin,
        .end = begin + bytes,
        .content = {.kind = MS_LAUNCHED, .recorded = recorded, .source_offset = begin}};
    ms_origins_note(&allocation, &extent);
}

MS_TEST(pieces_of_a_launch_share_a_copy)
{
    struct ms_origins copy;
    struct ms_recorded_launch *one = record(), *other = record();
    note_launch(one, 0, LEAST);
    note_launch(one, LEAST, LEAST);
    note_launch(one, (size_t)2 * LEAST, LEAST - 1); /* too small */
    note_launch(other, (size_t)2 * LEAST, LEAST);
    note_at(1, (3 * LEAST) / BYTES, BYTES);
    note_launch(other, (size_t)3 * LEAST + BYTES, LEAST); /* the newest is of a file */
    CHECK(ms_origins_copy(&copy));
    CHECK_EQ(copy.count, 5);
    for (size_t i = 0; i < 5; i++) {
        CHECK_EQ(copy.list[i].content.kind, i == 3 ? MS_SOURCE : MS_LAUNCHED);
        CHECK(!copy.list[i].content.cached);
    }
    CHECK_EQ(copy.list[1].content.source_offset, LEAST);
    CHECK(copy.list[0].content.recorded == copy.list[1].content.recorded);
    CHECK(copy.list[0].content.recorded != one); /* without its files */
    CHECK(copy.list[1].content.recorded != copy.list[2].content.recorded);
    CHECK(copy.list[2].content.recorded != copy.list[4].content.recorded);
    CHECK(copy.list[0].content.recorded->launch == one->launch);
    CHECK(copy.list[4].content.recorded->launch == other->launch);
    /* Each place has a reference, and so has the copy of the list. */
    CHECK_EQ(copy.list[0].content.recorded->counted.references, 4);
    CHECK_EQ(copy.list[4].content.recorded->counted.references, 2);
    struct ms_recorded_launch *shared = copy.list[0].content.recorded;
    ms_origins_forget(&copy.list[0]);
    CHECK_EQ(shared->counted.references, 3);
    ms_origins_cleanup(&copy);
    CHECK_EQ(shared->counted.references, 1);
    check_count(4);
    ms_recorded_launch_drop(one);
    ms_recorded_launch_drop(other);
}

MS_TEST(a_launch_that_cannot_be_copied_is_not_noted)
{
    struct ms_origins copy;
    struct ms_recorded_launch *recorded = record();
    const struct ms_content resident = {.kind = MS_RESIDENT};
    CHECK(ms_lineage_set(&recorded->before, 0, 10, &resident));
    note_launch(recorded, 0, LEAST);
    CHECK(!ms_origins_copy(&copy));
    ms_recorded_launch_drop(recorded);
}

/* If there are more origins than places, the newest origin is in the place that was taken last. */
MS_TEST(the_newest_is_found_where_places_are_taken_again)
{
    struct ms_origins copy;
    struct ms_recorded_launch *recorded = record();
    for (unsigned place = 0; place < MOST_ORIGINS + 5; place++)
        note_at(1, 100 + place, BYTES);
    note_launch(recorded, 0, LEAST);
    note_launch(recorded, LEAST, LEAST);
    CHECK(ms_origins_copy(&copy));
    CHECK(copy.list[0].content.recorded == copy.list[1].content.recorded);
    ms_origins_cleanup(&copy);
    ms_recorded_launch_drop(recorded);
}
