/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/memory/recorded_launch.h"

#include "runtime/fill/replay.h"
#include "tests/unit/between.h"
#include "tests/unit/counted_heap.h"
#include "tests/unit/files/files.h"
#include "tests/unit/snapshot_of.h"

enum { BYTES = 4096 };

static struct ms_param_layout layout = {.counted = {.references = 1000}};
static struct test_file file;
static struct ms_source *snapshot; /* what stands for another source in a copy; NULL: nothing */
static int before;                 /* pieces of memory */

static void start(void)
{
    static const char bytes[BYTES];
    make_test_file(&file, "/tmp", BYTES);
    snapshot = snapshot_of(bytes, BYTES);
    before = live;
}

static void end(void)
{
    CHECK_EQ(live, before);
    CHECK_EQ(layout.counted.references, 1000);
    CHECK_EQ(((const struct ms_counted *)snapshot)->references, 1);
    ms_source_drop(snapshot);
    ms_source_drop(file.source);
}

static void set(struct ms_lineage *lineage, size_t begin, size_t end, struct ms_content content)
{
    CHECK(ms_lineage_set(lineage, begin, end, &content));
}

static struct ms_content of_file(void)
{
    return (struct ms_content){.kind = MS_SOURCE, .source = file.source, .source_offset = 7};
}

/* Over a block that was never written. */
static struct ms_recorded_launch *record(void)
{
    const struct ms_packed packed = {.count = 0};
    const struct ms_call call = {.function = (CUfunction)1};
    struct ms_recorded_launch *recorded = ms_recorded_launch_create();
    CHECK(recorded != NULL);
    recorded->launch = ms_call_record(&call, &layout, &packed, NULL, 0);
    recorded->depth = 3;
    recorded->input_depth = 2;
    recorded->allocation_id = 4711;
    recorded->address = 1 << 20;
    recorded->context = (CUcontext)5;
    recorded->device = 6;
    CHECK(ms_lineage_init(&recorded->before, BYTES));
    return recorded;
}

static void add_input(struct ms_recorded_launch *recorded)
{
    recorded->input = __wrap_ms_heap_zalloc(sizeof(*recorded->input));
    recorded->input->allocation_id = 12;
    recorded->input->address = 1 << 30;
    CHECK(ms_lineage_init(&recorded->input->lineage, BYTES));
}

/* With an input, and another launch before it. */
static struct ms_recorded_launch *record_much(void)
{
    struct ms_recorded_launch *recorded = record(), *inner = record();
    add_input(recorded);
    set(&inner->before, 10, 20, of_file());
    set(&recorded->before, 0, 100,
        (struct ms_content){.kind = MS_LAUNCHED, .recorded = inner, .source_offset = 9});
    set(&recorded->before, 200, 300, (struct ms_content){.kind = MS_FILL, .pattern = 5});
    set(&recorded->before, 300, 400, (struct ms_content){.kind = MS_DEAD});
    set(&recorded->input->lineage, 50, BYTES, of_file());
    ms_recorded_launch_drop(inner);
    return recorded;
}

MS_TEST_BETWEEN(start, end, the_last_reference_frees_all_that_it_needs)
{
    struct ms_recorded_launch *recorded = record_much();
    ms_counted_take(&recorded->counted);
    const int many = live;
    ms_recorded_launch_drop(recorded);
    CHECK_EQ(live, many);
    ms_recorded_launch_drop(recorded);
    may_make = 0;
    CHECK(ms_recorded_launch_create() == NULL);
    may_make = 1000000;
}

MS_TEST_BETWEEN(start, end, launched_content_knows_where_its_launch_wrote_it)
{
    struct ms_recorded_launch *recorded = record();
    const struct ms_content content = {.kind = MS_LAUNCHED,
                                       .recorded = recorded,
                                       .source_offset = 10};
    CHECK(ms_recorded_launch_is_at(&content, 4711, (1 << 20) + 10));
    CHECK(!ms_recorded_launch_is_at(&content, 4711, (1 << 20) + 11));
    CHECK(!ms_recorded_launch_is_at(&content, 4712, (1 << 20) + 10));
    ms_recorded_launch_drop(recorded);
}

/* --- whether a replay gives the same */

static bool is_current(struct ms_recorded_launch *recorded)
{
    const struct ms_content content = {.kind = MS_LAUNCHED, .recorded = recorded};
    return ms_replay_is_current(&content);
}

MS_TEST_BETWEEN(start, end, a_changed_file_anywhere_behind_it_makes_other_bytes)
{
    struct ms_recorded_launch *much = record_much(), *inner = record(), *outer = record(),
                              *with_input = record(), *none = record();
    set(&inner->before, BYTES - 1, BYTES, of_file()); /* the last of its extents */
    set(&outer->before, 0, 10, (struct ms_content){.kind = MS_LAUNCHED, .recorded = inner});
    add_input(with_input);
    set(&with_input->input->lineage, 0, 10, of_file());
    set(&none->before, 0, 10, (struct ms_content){.kind = MS_FILL});
    const struct ms_content content = of_file(), fill = {.kind = MS_FILL};
    CHECK(ms_replay_is_current(&content) && ms_replay_is_current(&fill));
    CHECK(is_current(much) && is_current(outer) && is_current(with_input) && is_current(none));
    CHECK_EQ(truncate(file.path, 5), 0);
    CHECK(!ms_replay_is_current(&content) && ms_replay_is_current(&fill));
    CHECK(!is_current(much) && !is_current(inner) && !is_current(outer));
    CHECK(!is_current(with_input) && is_current(none));
    ms_recorded_launch_drop(much);
    ms_recorded_launch_drop(inner);
    ms_recorded_launch_drop(outer);
    ms_recorded_launch_drop(with_input);
    ms_recorded_launch_drop(none);
}

/* --- copies */

static struct ms_source *replace(struct ms_source *source, void *argument)
{
    CHECK(source == file.source && argument == &file);
    if (snapshot != NULL)
        ms_counted_take((struct ms_counted *)snapshot);
    return snapshot;
}

static struct ms_recorded_launch *copy_of(const struct ms_recorded_launch *recorded)
{
    return ms_recorded_launch_copy(recorded, replace, &file);
}

static void check_extent(const struct ms_lineage *lineage, size_t begin, size_t end,
                         enum ms_kind kind)
{
    const struct ms_extent extent = ms_lineage_at(lineage, begin);
    CHECK_EQ(extent.content.kind, kind);
    CHECK_EQ(extent.end, end);
}

MS_TEST_BETWEEN(start, end, a_copy_has_other_files_and_is_else_the_same)
{
    struct ms_recorded_launch *recorded = record_much();
    recorded->only_writes = recorded->has_sources = true;
    recorded->input->loads.in_row = 4;
    recorded->input->written_at = 3;
    struct ms_recorded_launch *copy = copy_of(recorded);
    CHECK(copy != NULL && copy->launch == recorded->launch);
    ms_recorded_launch_drop(recorded);
    CHECK(copy->depth == 3 && copy->input_depth == 2 && copy->allocation_id == 4711);
    CHECK(copy->has_sources);
    CHECK(copy->address == 1 << 20 && copy->context == (CUcontext)5 && copy->device == 6);
    CHECK(copy->before.bytes == BYTES && copy->input->lineage.bytes == BYTES);
    CHECK(copy->input->allocation_id == 12 && copy->input->address == 1 << 30);
    CHECK(copy->input->loads.in_row == 4 && copy->input->written_at == 3 && copy->only_writes);
    check_extent(&copy->before, 0, 100, MS_LAUNCHED);
    check_extent(&copy->before, 100, 200, MS_UNDEFINED);
    check_extent(&copy->before, 200, 300, MS_FILL);
    check_extent(&copy->before, 300, 400, MS_DEAD);
    check_extent(&copy->before, 400, BYTES, MS_UNDEFINED);
    check_extent(&copy->input->lineage, 0, 50, MS_UNDEFINED);
    check_extent(&copy->input->lineage, 50, BYTES, MS_SOURCE);
    const struct ms_content content = ms_lineage_at(&copy->input->lineage, 50).content;
    CHECK(content.source == snapshot && content.source_offset == 7);
    const struct ms_content launched = ms_lineage_at(&copy->before, 0).content;
    CHECK_EQ(launched.source_offset, 9);
    CHECK(ms_lineage_at(&launched.recorded->before, 10).content.source == snapshot);
    ms_recorded_launch_drop(copy);
}

static void check_not_copied(struct ms_recorded_launch *recorded)
{
    const int there = live;
    CHECK(copy_of(recorded) == NULL);
    CHECK_EQ(live, there);
    ms_recorded_launch_drop(recorded);
}

MS_TEST_BETWEEN(start, end, a_launch_that_cannot_be_repeated_is_not_copied)
{
    struct ms_recorded_launch *recorded = record();
    set(&recorded->before, 0, 10, (struct ms_content){.kind = MS_ABSENT, .locality = MS_REMOTE});
    check_not_copied(recorded);
    layout.is_forgotten = true;
    check_not_copied(record());
    layout.is_forgotten = false;
    struct ms_source *other = snapshot;
    snapshot = NULL;
    check_not_copied(record_much());
    snapshot = other;
    recorded = record();
    add_input(recorded);
    set(&recorded->input->lineage, 0, 10, (struct ms_content){.kind = MS_RESIDENT});
    check_not_copied(recorded);
}

/* Records a launch with so many extents. */
static struct ms_recorded_launch *record_pieces(size_t pieces)
{
    struct ms_recorded_launch *recorded = record();
    for (size_t i = 1; i < pieces; i++)
        set(&recorded->before, i, i + 1,
            (struct ms_content){.kind = MS_FILL, .pattern = (uint32_t)i});
    set(&recorded->before, pieces - 1, BYTES, (struct ms_content){.kind = MS_FILL});
    CHECK_EQ(recorded->before.extents.count, pieces);
    return recorded;
}

MS_TEST_BETWEEN(start, end, very_many_extents_are_not_copied)
{
    check_not_copied(record_pieces(65));
    struct ms_recorded_launch *recorded = record_pieces(64), *copy = copy_of(recorded);
    CHECK(copy != NULL && copy->before.extents.count == 64);
    ms_recorded_launch_drop(copy);
    ms_recorded_launch_drop(recorded);
}

MS_TEST_BETWEEN(start, end, a_copy_of_a_launch_without_memory_leaves_nothing)
{
    struct ms_recorded_launch *recorded = record_much(), *copy = NULL;
    const int there = live;
    for (int most = 0; copy == NULL; most++) {
        CHECK_EQ(live, there);
        may_make = most;
        copy = copy_of(recorded);
        may_make = 1000000;
    }
    CHECK(live > there + 5); /* the launch and its input, one before it, and three lineages */
    ms_recorded_launch_drop(copy);
    ms_recorded_launch_drop(recorded);
}
