/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/memory/invariants.h"

#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "runtime/base/heap.h"
#include "runtime/memory/carve.h"
#include "runtime/memory/extent_states.h"
#include "runtime/memory/memory_internal.h"
#include "runtime/memory/recorded_launch.h"
#include "runtime/memory/space.h"
#include "tests/unit/snapshot_of.h"
#include "tools/simcuda/harness/test.h"
#include "tests/unit/between.h"

/*
 * A valid allocation, of which the tests break one thing at a time:
 *
 *     0      64     128          256      384    448    512        576   640         900   1000
 *     | res. | fill | fill       | launch | copy | abs. | resident | dead | undefined | dead |
 *     | block                    | block                |                 | block     |
 *     | backed      |                            | under the sink | backed   |
 */
enum { GRANULE = 64, BYTES = 1000 };

static struct ms_recorded_launch recorded = {.counted = {.references = 1},
                                             .before = {.bytes = BYTES}};
static struct ms_chunk *chunks; /* of it */
static struct ms_inside allocation;
static struct ms_extent *extents; /* of it */

static struct ms_sink_mapping *add_sunk(struct ms_range range)
{
    struct ms_sink_mapping *sink = ms_heap_zalloc(sizeof(*sink) + sizeof(sink->ranges[0]));
    CHECK(sink != NULL);
    *sink = (struct ms_sink_mapping){.next = allocation.backing.sinks, .count = 1};
    sink->ranges[0] = range;
    return allocation.backing.sinks = sink;
}

static void set(size_t begin, size_t end, struct ms_content content)
{
    CHECK(ms_lineage_set(&allocation.lineage, begin, end, &content));
    extents = ms_sorted_item(&allocation.lineage.extents, (struct ms_position){0, 0});
}

static struct ms_block *block_at(size_t index)
{
    return ms_sorted_item(&allocation.blocks.all, (struct ms_position){0, index});
}

static void make(void)
{
    struct ms_source *copy = snapshot_of("some bytes that were copied, and that are kept "
                                         "until somebody needs them",
                                         64);
    static const struct ms_chunk backed[] = {{0, 2 * GRANULE}, {8 * GRANULE, 9 * GRANULE}};
    allocation = (struct ms_inside){.facts = {.address = 1 << 20, .bytes = BYTES},
                                    .backing = {.address = 1 << 20,
                                                .bytes = 16 * GRANULE,
                                                .granule = GRANULE,
                                                .chunks.item_bytes = sizeof(*backed),
                                                .backed_bytes = 3 * GRANULE},
                                    .dead_memory = GRANULE};
    struct ms_sorted *all = &allocation.backing.chunks;
    CHECK(ms_sorted_insert(all, (struct ms_position){0, 0}, backed, 2));
    chunks = ms_sorted_item(all, (struct ms_position){0, 0});
    CHECK(ms_lineage_init(&allocation.lineage, BYTES));
    set(0, 64, (struct ms_content){.kind = MS_RESIDENT});
    set(64, 128, (struct ms_content){.kind = MS_FILL, .locality = MS_LOCAL, .cached = true});
    set(128, 256, (struct ms_content){.kind = MS_FILL, .is_remote_copy = true});
    set(256, 384, (struct ms_content){.kind = MS_LAUNCHED, .recorded = &recorded});
    set(384, 448, (struct ms_content){.kind = MS_SOURCE, .source = copy});
    set(448, 512, (struct ms_content){.kind = MS_ABSENT, .locality = MS_REMOTE});
    set(512, 576, (struct ms_content){.kind = MS_RESIDENT});
    set(576, 640, (struct ms_content){.kind = MS_DEAD});
    set(640, 900, (struct ms_content){.locality = MS_REMOTE});
    set(900, BYTES, (struct ms_content){.kind = MS_DEAD});
    CHECK_EQ(allocation.lineage.extents.count, 10);
    CHECK(ms_carve_add_block(&allocation.facts, 0, 256));
    CHECK(ms_carve_add_block(&allocation.facts, 256, 512));
    CHECK(ms_carve_add_block(&allocation.facts, 640, 900));
    add_sunk((struct ms_range){448, 512});
    ms_source_drop(copy);
}

static void check_rule(void (*break_it)(void), const char *rule)
{
    struct ms_violation violation = {.rule = "none"};
    make();
    CHECK(ms_allocation_is_valid(&allocation.facts, &violation));
    break_it();
    CHECK(!ms_allocation_is_valid(&allocation.facts, &violation));
    if (strcmp(violation.rule, rule) != 0)
        ms_test_fail(__FILE__, __LINE__, "\"%s\" was found instead of \"%s\"", violation.rule,
                     rule);
    CHECK(violation.begin <= violation.end); /* where it is, in that order */
}

/* A test of which the body breaks a rule. */
#define MS_BREAKS(name, rule)           \
    static void break_##name(void);     \
    MS_TEST(name)                       \
    {                                   \
        check_rule(break_##name, rule); \
    }                                   \
    static void break_##name(void)

MS_BREAKS(leave_a_gap, "extents are sorted, without gaps")
{
    extents[1].begin++;
}

MS_BREAKS(add_an_empty_extent, "extents are sorted, without gaps")
{
    extents[0].end = 0;
    extents[1].begin = 0;
}

MS_BREAKS(end_too_early, "extents end where the lineage does")
{
    ms_sorted_remove(&allocation.lineage.extents, (struct ms_position){0, 9}, 1);
}

MS_BREAKS(cache_what_is_undefined, "states are those of extent_states.h")
{
    extents[8].content.cached = true;
}

MS_BREAKS(mark_a_sequence_where_nothing_was_written, "marks are where extent_states.h allows them")
{
    extents[8].content.is_in_sequence = true;
}

MS_BREAKS(make_neighbours_alike, "neighbours differ")
{
    extents[2].content = extents[1].content;
}

MS_BREAKS(change_deferred_bytes, "deferred_bytes is the sum of its extents")
{
    allocation.lineage.deferred_bytes++;
}

MS_BREAKS(change_resident_bytes, "resident_bytes is the sum of its extents")
{
    allocation.lineage.resident_bytes--;
}

MS_BREAKS(change_dead_bytes, "kind_bytes is the sum of its extents")
{
    allocation.lineage.kind_bytes[MS_DEAD]++;
}

MS_BREAKS(change_cached_bytes, "cached_bytes is the sum of its extents")
{
    allocation.lineage.cached_bytes++;
}

MS_BREAKS(change_away_bytes, "remote_bytes is the sum of its extents")
{
    allocation.lineage.remote_bytes--;
}

MS_BREAKS(change_file_bytes, "file_bytes is the sum of its extents")
{
    allocation.lineage.file_bytes++;
}

MS_BREAKS(change_kind_bytes, "kind_bytes is the sum of its extents")
{
    allocation.lineage.kind_bytes[MS_LAUNCHED]++;
}

MS_BREAKS(change_more_than_there_is, "what has changed lies in the lineage")
{
    allocation.lineage.changed_end = BYTES + 1;
}

MS_BREAKS(swap_chunks, "chunks are granules, sorted")
{
    const struct ms_chunk first = chunks[0];
    chunks[0] = chunks[1];
    chunks[1] = first;
}

MS_BREAKS(cut_a_granule, "chunks are granules, sorted")
{
    chunks[1].end--;
}

MS_BREAKS(leave_the_reservation, "chunks are granules, sorted")
{
    chunks[1].end = 17 * GRANULE;
}

MS_BREAKS(change_backed_bytes, "backed_bytes is the sum of its chunks")
{
    allocation.backing.backed_bytes -= GRANULE;
}

MS_BREAKS(sink_half_a_granule, "sink mappings are sorted granules")
{
    allocation.backing.sinks->ranges[0].begin += GRANULE / 2;
}

MS_BREAKS(sink_what_is_backed, "no granule is both backed and mapped to a sink")
{
    allocation.backing.sinks->ranges[0].end += GRANULE;
}

MS_BREAKS(sink_twice, "no granule is mapped to a sink twice")
{
    add_sunk((struct ms_range){6 * GRANULE, 8 * GRANULE});
}

/* --- of addresses that the program has reserved */

/* The first chunk is in a mapping of the shim's, the second one is a real mapping. */
static struct ms_program_mapping *make_mapped(void)
{
    static const struct ms_program_mapping mapped[] = {
        {.begin = 0, .end = 4 * GRANULE},
        {.begin = 4 * GRANULE, .end = 6 * GRANULE},
        {.begin = 8 * GRANULE, .end = 9 * GRANULE, .is_real = true}};
    make();
    struct ms_backing *backing = &allocation.backing;
    backing->is_programs = true;
    backing->mapped_bytes = 7 * GRANULE;
    backing->mappings.item_bytes = sizeof(*mapped);
    CHECK(ms_sorted_insert(&backing->mappings, (struct ms_position){0, 0}, mapped, 3));
    chunks[1].is_pinned = true;
    struct ms_violation violation;
    CHECK(ms_backing_is_valid(backing, &violation));
    return ms_sorted_item(&backing->mappings, (struct ms_position){0, 0});
}

static const char chunk_rule[] = "a chunk lies in one mapping, pinned if that is real",
                  mapping_rule[] = "mappings are granules, sorted",
                  mapped_rule[] = "mapped_bytes is the sum of its mappings";

static void check_violation(const char *rule, uint64_t begin, uint64_t end)
{
    struct ms_violation violation = {.rule = "none"};
    CHECK(!ms_backing_is_valid(&allocation.backing, &violation));
    if (strcmp(violation.rule, rule) != 0)
        ms_test_fail(__FILE__, __LINE__, "\"%s\" was found instead of \"%s\"", violation.rule,
                     rule);
    CHECK_EQ(violation.begin, begin);
    CHECK_EQ(violation.end, end);
}

MS_TEST(a_chunk_lies_in_one_mapping)
{
    make_mapped();
    chunks[0].begin = 2 * GRANULE;
    chunks[0].end = 4 * GRANULE;
    struct ms_violation violation;
    CHECK(ms_backing_is_valid(&allocation.backing, &violation)); /* up to its end */
    chunks[0].begin = 3 * GRANULE;
    chunks[0].end = 5 * GRANULE; /* in two */
    check_violation(chunk_rule, 3 * GRANULE, 5 * GRANULE);
    make_mapped();
    chunks[0].begin = 6 * GRANULE;
    chunks[0].end = 8 * GRANULE; /* before one */
    check_violation(chunk_rule, 6 * GRANULE, 8 * GRANULE);
    make_mapped();
    chunks[1].begin = 9 * GRANULE;
    chunks[1].end = 10 * GRANULE; /* behind all */
    check_violation(chunk_rule, 9 * GRANULE, 10 * GRANULE);
}

STORY_ALONE(a_pinned_chunk_is_a_real_mapping, make_mapped(), chunks[0].is_pinned = true,
            check_violation(chunk_rule, 0, 2 * GRANULE), make_mapped(), chunks[1].is_pinned = false,
            check_violation(chunk_rule, 8 * GRANULE, 9 * GRANULE))

MS_TEST(mappings_are_granules)
{
    make_mapped()[1].end--;
    check_violation(mapping_rule, 4 * GRANULE, 6 * GRANULE - 1);
    make_mapped()[1].begin -= GRANULE;
    check_violation(mapping_rule, 3 * GRANULE, 6 * GRANULE);
    make_mapped()[2].end = 17 * GRANULE;
    check_violation(mapping_rule, 8 * GRANULE, 17 * GRANULE);
    make_mapped();
    allocation.backing.mapped_bytes++;
    check_violation(mapped_rule, 0, 16 * GRANULE);
}

MS_BREAKS(take_another_address, "lineage and backing are the allocation's")
{
    allocation.facts.address += GRANULE;
}

MS_BREAKS(take_another_size, "lineage and backing are the allocation's")
{
    allocation.facts.bytes--;
}

MS_BREAKS(swap_blocks, "blocks are sorted parts of a carved allocation")
{
    block_at(1)->begin = 128;
}

MS_TEST(a_violation_tells_the_place_of_a_broken_block)
{
    struct ms_violation violation;
    make();
    block_at(1)->begin = 128;
    CHECK(!ms_allocation_is_valid(&allocation.facts, &violation));
    CHECK_EQ(violation.begin, 128);
    CHECK_EQ(violation.end, block_at(1)->end);
}

MS_BREAKS(end_a_block_behind_all, "blocks are sorted parts of a carved allocation")
{
    block_at(2)->end = BYTES + 1;
}

MS_BREAKS(carve_no_more, "blocks are sorted parts of a carved allocation")
{
    allocation.is_carved = false;
}

MS_BREAKS(unmap_what_is_present, "what is present is backed")
{
    ms_sorted_remove(&allocation.backing.chunks, (struct ms_position){0, 1}, 1);
    allocation.backing.backed_bytes -= GRANULE;
}

MS_BREAKS(unmap_half_of_what_is_present, "what is present is backed")
{
    chunks[0].end = GRANULE;
    allocation.backing.backed_bytes -= GRANULE;
}

MS_BREAKS(leave_dead_bytes_in_a_block, "what is dead lies in no block, and what is deferred in one")
{
    block_at(1)->end = 580;
}

MS_BREAKS(leave_dead_bytes_without_blocks,
          "what is dead lies in no block, and what is deferred in one")
{
    ms_sorted_cleanup(&allocation.blocks.all);
    allocation.is_carved = false;
}

MS_BREAKS(defer_outside_of_blocks, "what is dead lies in no block, and what is deferred in one")
{
    block_at(0)->end = 200;
}

MS_BREAKS(outgrow_a_launch, "what an extent refers to can give its bytes")
{
    extents[3].content.source_offset = BYTES - 127;
}

MS_BREAKS(keep_what_a_launch_was_over, "what an extent refers to can give its bytes")
{
    recorded.before.cached_bytes = 1;
}

MS_BREAKS(nest_launches_too_deeply, "what an extent refers to can give its bytes")
{
    recorded.depth = MS_MAX_LAUNCH_DEPTH + 1;
}

MS_BREAKS(cache_a_copy, "what an extent refers to can give its bytes")
{
    struct ms_source *copy = extents[4].content.source;
    set(64, 128, (struct ms_content){.kind = MS_SOURCE, .source = copy, .cached = true});
}

MS_BREAKS(count_more_dead, "dead_memory is present, in no block")
{
    allocation.dead_memory++;
}

/* --- the table */

/* The same in other words. */
static bool may_be(const struct ms_content *content)
{
    const enum ms_kind kind = content->kind;
    const bool can_be_cached = kind == MS_FILL || kind == MS_SOURCE || kind == MS_LAUNCHED;
    if (content->cached && !can_be_cached)
        return false;
    if (ms_content_is_present(content) &&
        (content->locality == MS_REMOTE || content->is_remote_copy))
        return false;
    if (content->is_remote_copy &&
        (ms_content_is_nothing(content) || content->locality == MS_LOCAL))
        return false;
    if (kind == MS_ABSENT)
        return content->locality == MS_REMOTE;
    return content->locality == MS_UNKNOWN ||
           (kind != MS_DEAD && kind != MS_UNMAPPED && kind != MS_RESIDENT);
}

MS_TEST(every_state_of_content_is_legal_as_the_table_says)
{
    int legal = 0;
    for (int i = 0; i < MS_KIND_COUNT * 3 * 2 * 2; i++) {
        const struct ms_content content = {.kind = (enum ms_kind)(i / 12),
                                           .locality = (enum ms_locality)(i % 3),
                                           .cached = i / 3 % 2 != 0,
                                           .is_remote_copy = i / 6 % 2 != 0};
        if (ms_content_state_is_legal(&content) != may_be(&content))
            ms_test_fail(__FILE__, __LINE__, "kind %d, locality %d, cached %d, remote copy %d",
                         (int)content.kind, (int)content.locality, content.cached,
                         content.is_remote_copy);
        legal += ms_content_state_is_legal(&content);
    }
    CHECK(legal == 34);
}

MS_TEST(a_mark_does_not_change_which_states_are_legal)
{
    for (int i = 0; i < MS_KIND_COUNT * 2; i++) {
        struct ms_content content = {.kind = (enum ms_kind)(i / 2), .cached = i % 2 != 0};
        const bool is_legal = ms_content_state_is_legal(&content);
        content.is_shadowed = content.is_in_sequence = true;
        CHECK(ms_content_state_is_legal(&content) == is_legal);
    }
}

MS_TEST(a_shadow_is_of_bytes_that_a_replay_gives)
{
    for (int kind = 0; kind < MS_KIND_COUNT; kind++) {
        const struct ms_content content = {.kind = (enum ms_kind)kind, .is_shadowed = true};
        CHECK(ms_content_marks_are_legal(&content) ==
              (kind == MS_FILL || kind == MS_SOURCE || kind == MS_LAUNCHED));
    }
}

MS_TEST(a_sequence_is_of_bytes_that_are_copied_on_without_memory)
{
    for (int i = 0; i < MS_KIND_COUNT * 2; i++) {
        const enum ms_kind kind = (enum ms_kind)(i / 2);
        const struct ms_content content = {.kind = kind,
                                           .locality = kind == MS_ABSENT ? MS_REMOTE : MS_UNKNOWN,
                                           .cached = i % 2 != 0,
                                           .is_in_sequence = true};
        if (ms_content_state_is_legal(&content))
            CHECK(ms_content_marks_are_legal(&content) ==
                  (!ms_content_is_present(&content) && !ms_content_is_nothing(&content) &&
                   kind != MS_ABSENT));
    }
}

/* --- at the end of a claim */

/* So many claims end in a process of its own, which then ends by that signal; or 0. */
static int signal_of_claims(int claims)
{
    int status;
    const pid_t child = fork();
    if (child == 0) {
        while (claims-- > 0)
            ms_check_allocation(&allocation.facts);
        _exit(0);
    }
    CHECK(child > 0 && waitpid(child, &status, 0) == child);
    return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

STORY_ALONE(the_process_ends, make(), EQUALS(signal_of_claims(1), 0), allocation.dead_memory++,
            EQUALS(signal_of_claims(1), SIGABRT))

/* Many extents are not looked at each time, but when enough claims have ended. */
MS_TEST(many_extents_are_checked_sometimes)
{
    make();
    CHECK(ms_lineage_set(&allocation.lineage, 640, 900, &(struct ms_content){.kind = MS_FILL}));
    for (size_t at = 640; at < 900; at += 2)
        set(at, at + 1, (struct ms_content){.kind = MS_FILL, .pattern = 1});
    for (size_t at = 128; at < 256; at += 2)
        set(at, at + 1, (struct ms_content){.kind = MS_FILL, .pattern = 1});
    for (size_t at = 256; at < 512; at += 2)
        set(at, at + 1, (struct ms_content){.kind = MS_FILL, .pattern = 1});
    CHECK(allocation.lineage.extents.count > 512);
    CHECK_EQ(signal_of_claims(100), 0);
    allocation.dead_memory++;
    CHECK_EQ(signal_of_claims(8), 0);
    CHECK_EQ(signal_of_claims(16), SIGABRT);
}
