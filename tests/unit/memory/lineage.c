/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/memory/lineage.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/files/host_snapshot.h"
#include "runtime/memory/extent_states.h"
#include "runtime/memory/invariants.h"
#include "runtime/memory/memory_internal.h"
#include "runtime/memory/recorded_launch.h"
#include "runtime/state/counters.h"
#include "tests/unit/between.h"
#include "tests/unit/snapshot_of.h"

/* The slow, obvious twin: what each byte holds. */
enum { BYTES = 257, SOURCES = 3 };

struct byte {
    enum ms_kind kind;
    unsigned char value; /* MS_FILL */
    const void *source;  /* or step */
    uint64_t offset;     /* in either */
    bool present;
    enum ms_locality locality;
    bool is_remote_copy, is_in_sequence;
};

static struct ms_source *sources[SOURCES];
static struct ms_recorded_launch steps[2] = {{.counted = {.references = 1}},
                                             {.counted = {.references = 1}}};

/* Stores without memory: a count of references is what a lineage needs of one. */
static struct {
    _Alignas(16) struct ms_counted counted;
    char rest[240];
} store_of[2] = {{.counted = {.references = 1}}, {.counted = {.references = 1}}};

static void make_sources(void)
{
    char text[BYTES] = {0};
    for (int i = 0; i < SOURCES; i++) {
        sources[i] = snapshot_of(text, sizeof(text));
        CHECK(sources[i] != NULL);
    }
}

static struct byte byte_of(const struct ms_content *content, size_t begin, size_t at)
{
    struct byte byte = {.kind = content->kind};
    if (content->kind == MS_FILL)
        byte.value = (unsigned char)(content->pattern >> (8 * (at & 3)));
    if (content->kind == MS_SOURCE) {
        byte.source = content->source;
        byte.offset = content->source_offset + (at - begin);
    }
    if (content->kind == MS_LAUNCHED) {
        byte.source = content->recorded;
        byte.offset = content->source_offset + (at - begin);
    }
    if (content->kind == MS_PARKED) {
        byte.source = content->parked;
        byte.offset = content->source_offset + (at - begin);
    }
    byte.present = content->kind == MS_RESIDENT || content->cached;
    byte.locality = content->locality;
    byte.is_remote_copy = content->is_remote_copy;
    byte.is_in_sequence = content->is_in_sequence;
    return byte;
}

static void check_valid(const struct ms_lineage *lineage)
{
    struct ms_violation violation;
    if (!ms_lineage_is_valid(lineage, &violation))
        ms_test_fail(__FILE__, __LINE__, "%s: not true of %llu to %llu", violation.rule,
                     (unsigned long long)violation.begin, (unsigned long long)violation.end);
}

static void check_same(const struct ms_lineage *lineage, const struct byte *twin)
{
    check_valid(lineage);
    size_t resident = 0;
    size_t present = 0;
    size_t remote = 0, absent = 0;
    for (size_t at = 0; at < BYTES; at++) {
        const struct ms_extent extent = ms_lineage_at(lineage, at);
        CHECK_EQ(extent.begin, at);
        CHECK(extent.end > at);
        const struct byte seen = byte_of(&extent.content, at, at);
        CHECK_EQ(seen.kind, twin[at].kind);
        CHECK_EQ(seen.value, twin[at].value);
        CHECK(seen.source == twin[at].source);
        CHECK_EQ(seen.offset, twin[at].offset);
        CHECK_EQ(seen.present, twin[at].present);
        CHECK_EQ(seen.locality, twin[at].locality);
        CHECK_EQ(seen.is_remote_copy, twin[at].is_remote_copy);
        CHECK_EQ(seen.is_in_sequence, twin[at].is_in_sequence);
        CHECK_EQ(ms_lineage_any(lineage, at, at + 1, MS_OF_OTHERS), seen.locality == MS_REMOTE);
        CHECK_EQ(ms_lineage_any(lineage, at, at + 1, MS_OF_KIND(MS_ABSENT)),
                 seen.kind == MS_ABSENT);
        remote += seen.locality == MS_REMOTE;
        absent += seen.kind == MS_ABSENT;
        CHECK_EQ(!ms_lineage_any(lineage, at, at + 1, MS_MISSING), seen.present);
        CHECK_EQ(!ms_lineage_any(lineage, at, at + 1, MS_PRESENT), !seen.present);
        CHECK(!ms_lineage_any(lineage, at, at, MS_PRESENT | MS_MISSING)); /* of no bytes */
        present += seen.present;
        resident += seen.kind == MS_RESIDENT;
    }
    CHECK_EQ(lineage->resident_bytes, resident);
    CHECK_EQ(lineage->remote_bytes, remote);
    CHECK_EQ(ms_lineage_any(lineage, 0, BYTES, MS_OF_OTHERS), remote > 0);
    CHECK_EQ(lineage->kind_bytes[MS_ABSENT], absent);
    CHECK_EQ(ms_lineage_any(lineage, 0, BYTES, MS_OF_KIND(MS_ABSENT)), absent > 0);
    CHECK_EQ(lineage->resident_bytes + lineage->cached_bytes, present);
    CHECK_EQ(!ms_lineage_any(lineage, 0, BYTES, MS_MISSING), present == BYTES);
    CHECK_EQ(!ms_lineage_any(lineage, 0, BYTES, MS_PRESENT), present == 0);
}

static struct ms_content random_content(void)
{
    struct ms_content content = {.kind = (enum ms_kind)(rand() % MS_KIND_COUNT)};
    if (content.kind == MS_FILL)
        content.pattern = rand() % 2 == 0 ? 0 : 0x04030201;
    if (content.kind == MS_SOURCE) {
        content.source = sources[rand() % SOURCES];
        content.source_offset = (uint64_t)(rand() % 8);
    }
    if (content.kind == MS_LAUNCHED) {
        content.recorded = &steps[rand() % 2];
        content.source_offset = (uint64_t)(rand() % 8);
    }
    if (content.kind == MS_PARKED) {
        content.parked = (struct ms_parked *)&store_of[rand() % 2];
        content.source_offset = (uint64_t)(rand() % 8);
    }
    if (content.kind == MS_ABSENT)
        content.locality = MS_REMOTE;
    content.cached = rand() % 3 == 0;
    content.cached &= ms_content_state_is_legal(&content);
    content.is_in_sequence = rand() % 4 == 0;
    content.is_in_sequence &= ms_content_marks_are_legal(&content);
    return content;
}

static enum ms_locality wanted_standing;
static bool wanted_foreign;

static void set_standing(struct ms_content *content)
{
    struct ms_content wanted = *content;
    wanted.locality = wanted_standing;
    wanted.is_remote_copy = wanted_foreign;
    if (ms_content_state_is_legal(&wanted) && ms_content_marks_are_legal(&wanted))
        *content = wanted;
}

/* Some ascending ranges, also ones that touch, of the lineage and of its twin. */
static void change_some(struct ms_lineage *lineage, struct byte *twin)
{
    struct ms_range ranges[16];
    size_t count = 0;
    wanted_standing = (enum ms_locality)(rand() % 3);
    wanted_foreign = rand() % 3 == 0;
    for (size_t at = (size_t)rand() % 40; at < BYTES && count < 16;) {
        const size_t end = at + 1 + (size_t)rand() % 30;
        ranges[count++] = (struct ms_range){at, end < BYTES ? end : BYTES};
        at = end + (size_t)rand() % 3 * ((size_t)rand() % 40);
    }
    CHECK(ms_lineage_change(lineage, ranges, count, set_standing));
    for (size_t i = 0; i < count; i++) {
        for (size_t at = ranges[i].begin; at < ranges[i].end; at++) {
            struct ms_content content = {.kind = twin[at].kind,
                                         .locality = twin[at].locality,
                                         .cached = twin[at].present && twin[at].kind != MS_RESIDENT,
                                         .is_remote_copy = twin[at].is_remote_copy,
                                         .is_in_sequence = twin[at].is_in_sequence};
            set_standing(&content);
            twin[at].locality = content.locality;
            twin[at].is_remote_copy = content.is_remote_copy;
        }
    }
}

static const struct ms_extent *extent_of(const struct ms_lineage *of, size_t index)
{
    struct ms_walk walk = {of, 0, SIZE_MAX};
    const struct ms_extent *extent = ms_lineage_walk(&walk);
    while (index-- > 0)
        extent = ms_lineage_walk(&walk);
    return extent;
}

static bool change_all(struct ms_lineage *lineage, size_t begin, size_t end,
                       ms_content_change *change)
{
    const struct ms_range range = {begin, end};
    return ms_lineage_change(lineage, &range, 1, change);
}

static void drop_cache(struct ms_content *content)
{
    content->cached = false;
}

MS_TEST(random_writes_match_the_model)
{
    const unsigned seed = 20240611;
    printf("# seed %u\n", seed);
    srand(seed);
    make_sources();
    struct byte twin[BYTES] = {0};
    struct ms_lineage lineage;
    CHECK(ms_lineage_init(&lineage, BYTES));
    check_same(&lineage, twin);

    for (int recorded = 0; recorded < 5000; recorded++) {
        const size_t begin = (size_t)rand() % BYTES;
        const size_t length = (size_t)rand() % (rand() % 4 == 0 ? BYTES : 16);
        const size_t end = begin + length < BYTES ? begin + length : BYTES;
        const struct ms_content content = random_content();
        CHECK(ms_lineage_set(&lineage, begin, end, &content));
        for (size_t at = begin; at < end; at++)
            twin[at] = byte_of(&content, begin, at);
        if (recorded % 3 == 0)
            change_some(&lineage, twin);
        if (recorded % 50 == 0) {
            CHECK(change_all(&lineage, 0, BYTES, drop_cache));
            for (size_t at = 0; at < BYTES; at++)
                twin[at].present = twin[at].kind == MS_RESIDENT;
        }
        check_same(&lineage, twin);
    }
    ms_lineage_cleanup(&lineage);
    for (int i = 0; i < 2; i++) {
        CHECK_EQ(steps[i].counted.references, 1);
        CHECK_EQ(store_of[i].counted.references, 1);
    }
    for (int i = 0; i < SOURCES; i++)
        ms_source_drop(sources[i]);
    CHECK_EQ(ms_counter_get(MS_GAUGE_SNAPSHOT), 0); /* every reference was given back */
}

MS_TEST_AFTER(make_sources, contiguous_pieces_of_a_source_join)
{
    struct ms_lineage lineage;
    CHECK(ms_lineage_init(&lineage, BYTES));
    for (size_t at = 0; at < 64; at += 16) {
        const struct ms_content content = {.kind = MS_SOURCE,
                                           .source = sources[0],
                                           .source_offset = 100 + at};
        CHECK(ms_lineage_set(&lineage, at, at + 16, &content));
    }
    CHECK_EQ(lineage.extents.count, 2); /* the source, and the undefined rest */
    CHECK_EQ(extent_of(&lineage, 0)->end, 64);
    CHECK_EQ(lineage.deferred_bytes, 64);
    ms_lineage_cleanup(&lineage);
}

MS_TEST_AFTER(make_sources, a_copied_picture_survives_the_change)
{
    struct ms_lineage lineage;
    CHECK(ms_lineage_init(&lineage, BYTES));
    const struct ms_content content = {.kind = MS_SOURCE, .source = sources[1], .source_offset = 7};
    CHECK(ms_lineage_set(&lineage, 10, 100, &content));
    ms_source_drop(sources[1]); /* the lineage holds it now */

    size_t count;
    struct ms_extent *picture = ms_lineage_copy(&lineage, 50, 120, &count);
    CHECK(picture != NULL);
    ms_lineage_cleanup(&lineage);
    CHECK_EQ(count, 2);
    CHECK_EQ(picture[0].begin, 50);
    CHECK_EQ(picture[0].end, 100);
    CHECK_EQ(picture[0].content.source_offset, 47);
    CHECK_EQ(picture[1].end, 120);
    CHECK_EQ(picture[1].content.kind, MS_UNDEFINED);
    CHECK_EQ(ms_counter_get(MS_GAUGE_SNAPSHOT), SOURCES * BYTES);
    ms_lineage_free_copy(picture, count);
    CHECK_EQ(ms_counter_get(MS_GAUGE_SNAPSHOT), (SOURCES - 1) * BYTES);
}

MS_TEST_AFTER(make_sources, a_part_is_a_lineage_of_its_own)
{
    struct ms_lineage lineage, part;
    CHECK(ms_lineage_init(&lineage, BYTES));
    const struct ms_content content = {.kind = MS_SOURCE, .source = sources[1], .source_offset = 7};
    const struct ms_content fill = {.kind = MS_FILL, .pattern = 0x44332211};
    CHECK(ms_lineage_set(&lineage, 10, 50, &content));
    CHECK(ms_lineage_set(&lineage, 50, 100, &fill));
    CHECK(ms_lineage_extract(&lineage, 21, 90, &part));
    ms_lineage_cleanup(&lineage);
    check_valid(&part);
    CHECK_EQ(part.bytes, 69);
    CHECK_EQ(part.extents.count, 2);
    CHECK_EQ(extent_of(&part, 0)->content.source_offset, 18);
    CHECK_EQ(extent_of(&part, 1)->begin, 29);
    /* The byte at 52 was 0x11, which now stands at 31. */
    CHECK_EQ(extent_of(&part, 1)->content.pattern >> (8 * (31 & 3)) & 0xff, 0x11);
    ms_lineage_cleanup(&part);
}

MS_TEST_AFTER(make_sources, bytes_that_are_forgotten_are_dead_unless_present)
{
    struct ms_lineage lineage;
    CHECK(ms_lineage_init(&lineage, BYTES));
    const struct ms_content fill = {.kind = MS_FILL};
    const struct ms_content cached = {.kind = MS_FILL, .cached = true};
    CHECK(change_all(&lineage, 0, BYTES, ms_carve_make_dead));
    CHECK_EQ(lineage.kind_bytes[MS_DEAD], BYTES);
    CHECK(change_all(&lineage, 10, 60, ms_carve_make_undefined));
    CHECK_EQ(lineage.kind_bytes[MS_DEAD], BYTES - 50);
    CHECK(ms_lineage_set(&lineage, 20, 30, &fill));
    CHECK(ms_lineage_set(&lineage, 30, 40, &cached));
    CHECK(change_all(&lineage, 10, 60, ms_carve_make_dead)); /* what was written stays */
    CHECK_EQ(lineage.deferred_bytes, 20);
    CHECK(change_all(&lineage, 10, 60, ms_carve_forget));
    check_valid(&lineage);
    CHECK_EQ(lineage.deferred_bytes, 0);
    CHECK_EQ(lineage.resident_bytes, 10);
    CHECK_EQ(lineage.cached_bytes, 0);
    CHECK_EQ(lineage.kind_bytes[MS_DEAD], BYTES - 10);
    ms_lineage_cleanup(&lineage);
}

MS_TEST(patterns_keep_their_bytes_when_moved)
{
    const uint32_t pattern = 0x44332211;
    for (size_t from = 0; from < 8; from++) {
        for (size_t to = 0; to < 8; to++) {
            const uint32_t moved = ms_lineage_move_pattern(pattern, from, to);
            for (size_t i = 0; i < 4; i++)
                CHECK_EQ(moved >> (8 * ((to + i) & 3)) & 0xff,
                         pattern >> (8 * ((from + i) & 3)) & 0xff);
        }
    }
}

static uint64_t snapshot_bytes_of(struct ms_lineage *lineages, size_t count)
{
    for (size_t i = 0; i < count; i++)
        ms_lineage_cleanup(&lineages[i]);
    return ms_counter_get(MS_GAUGE_SNAPSHOT);
}

/* Two lineages with the same snapshot; the second one keeps a part of it. */
static void make_two(struct ms_lineage lineages[2], bool is_shared)
{
    const struct ms_content content = {.kind = MS_SOURCE, .source = sources[0]};
    if (is_shared)
        ms_host_snapshot_share(sources[0]);
    for (size_t i = 0; i < 2; i++) {
        CHECK(ms_lineage_init(&lineages[i], BYTES));
        CHECK(ms_lineage_set(&lineages[i], 0, i == 0 ? BYTES : 10, &content));
    }
    ms_source_drop(sources[0]);
}

static bool becomes_cached(struct ms_lineage *lineage, size_t begin, size_t end)
{
    const struct ms_range range = {begin, end};
    CHECK(ms_lineage_set_present(lineage, &range, 1));
    check_valid(lineage);
    return ms_lineage_at(lineage, begin).content.cached;
}

MS_TEST_AFTER(make_sources, a_shared_snapshot_is_cached_while_another_extent_wants_it)
{
    struct ms_lineage lineages[2];
    size_t count;
    make_two(lineages, true);
    CHECK(becomes_cached(&lineages[0], 0, 20));
    struct ms_extent *copy = ms_lineage_copy(&lineages[1], 0, BYTES, &count);
    CHECK(ms_lineage_set(&lineages[1], 0, 10, &(struct ms_content){.kind = MS_FILL}));
    CHECK(becomes_cached(&lineages[0], 20, 40)); /* for the copy */
    ms_lineage_free_copy(copy, count);
    CHECK(!becomes_cached(&lineages[0], 50, 60)); /* one extent alone */
    CHECK_EQ(lineages[0].cached_bytes, 40);
    CHECK_EQ(snapshot_bytes_of(lineages, 2), (SOURCES - 1) * BYTES);
}

MS_TEST_AFTER(make_sources, bytes_that_no_extent_wants_any_more_are_forgotten)
{
    struct ms_lineage lineages[2];
    struct ms_host_snapshot *snapshot = ms_source_snapshot(sources[0]);
    make_two(lineages, true);
    CHECK(becomes_cached(&lineages[0], 0, BYTES));
    CHECK(ms_host_snapshot_data(snapshot) != NULL);
    CHECK(!becomes_cached(&lineages[1], 0, 10));
    CHECK(ms_host_snapshot_data(snapshot) == NULL);
    CHECK_EQ(ms_counter_get(MS_GAUGE_SNAPSHOT), (SOURCES - 1) * BYTES);
    CHECK_EQ(lineages[0].cached_bytes, BYTES);
    CHECK_EQ(snapshot_bytes_of(lineages, 2), (SOURCES - 1) * BYTES);
}

MS_TEST_AFTER(make_sources, a_snapshot_that_is_not_copied_on_becomes_resident)
{
    struct ms_lineage lineages[2];
    make_two(lineages, false);
    CHECK(!becomes_cached(&lineages[0], 0, BYTES));
    CHECK_EQ(lineages[0].resident_bytes, BYTES);
    CHECK_EQ(snapshot_bytes_of(lineages, 2), (SOURCES - 1) * BYTES);
}

MS_TEST(a_snapshot_beyond_the_limit_is_refused)
{
    char text[100] = {0};
    ms_host_snapshot_set_limit(150);
    struct ms_source *first = snapshot_of(text, sizeof(text));
    CHECK(first != NULL);
    CHECK(snapshot_of(text, sizeof(text)) == NULL);
    CHECK_EQ(ms_counter_get(MS_GAUGE_SNAPSHOT), 100);
    ms_source_drop(first);
    struct ms_source *again = snapshot_of(text, sizeof(text));
    CHECK(again != NULL);
    ms_source_drop(again);
}
