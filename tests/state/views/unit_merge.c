/* SPDX-License-Identifier: Apache-2.0 */
/* Several processes as one: what the page cannot show at its size. */
#include <stdlib.h>

#include "tools/dump/merge.h"
#include "tools/simcuda/harness/test.h"

enum { SAMPLES = 1000, PEAK = 537, MOST = 10 };

static struct ms_state_sample samples[SAMPLES];

static struct ms_snapshot process_of(uint64_t started_ns, uint64_t factor)
{
    for (uint64_t i = 0; i < SAMPLES; i++)
        samples[i] = (struct ms_state_sample){.time_ns = 1000 * (i + 1),
                                              .live_bytes = factor * i,
                                              .deferred_bytes = i,
                                              .h2d_bytes = 2 * i,
                                              .backed_bytes = i == PEAK ? 5000 : i % 100};
    return (struct ms_snapshot){.process = {.started_ns = started_ns},
                                .samples = samples,
                                .sample_count = SAMPLES};
}

MS_TEST(the_moment_with_the_most_memory_stays_of_many)
{
    struct ms_snapshot snapshot = process_of(77, 3);
    size_t count;
    struct moment *moments = moments_of(&snapshot, MOST, &count);
    bool has_peak = false;
    CHECK(moments != NULL);
    CHECK(count > MOST / 2 && count <= MOST);
    for (size_t i = 0; i < count; i++) {
        has_peak = has_peak ||
                   (moments[i].backed_bytes == 5000 && moments[i].time_ns == 1000 * (PEAK + 1));
        CHECK(i == 0 || moments[i].time_ns > moments[i - 1].time_ns);
        CHECK_EQ(moments[i].live_bytes, 3 * moments[i].deferred_bytes);
        CHECK_EQ(moments[i].h2d_bytes, 2 * moments[i].deferred_bytes);
    }
    CHECK(has_peak);
    CHECK_EQ(moments[count - 1].time_ns, 1000 * SAMPLES);
    CHECK_EQ(moments[count - 1].backed_bytes, 99);
    free(moments);
}

MS_TEST(as_many_as_there_is_room_for_stay_all)
{
    struct ms_snapshot snapshot = process_of(0, 1);
    size_t count;
    struct moment *moments = moments_of(&snapshot, SAMPLES, &count);
    CHECK(moments != NULL);
    CHECK_EQ(count, SAMPLES);
    free(moments);
    moments = moments_of(&snapshot, SAMPLES - 1, &count);
    CHECK(moments != NULL);
    CHECK(count <= SAMPLES - 1);
    free(moments);
}

MS_TEST(a_later_process_begins_later_on_the_same_clock)
{
    const struct ms_snapshot snapshots[2] = {process_of(9000500, 1), process_of(9000000, 1)};
    const struct view view = {snapshots, 2};
    CHECK_EQ(view_start_ns(&view), 9000000);
    CHECK_EQ(view_shift_ns(&view, &snapshots[0]), 500);
    CHECK_EQ(view_shift_ns(&view, &snapshots[1]), 0);
}

static struct ms_state_block named_block(uint64_t bytes, uint64_t deferred_bytes)
{
    struct ms_state_block block = {.bytes = bytes, .deferred_bytes = deferred_bytes};
    snprintf(block.name, sizeof(block.name), "layer.weight");
    return block;
}

MS_TEST(a_tensor_of_several_processes_has_the_most_of_one_and_no_sum)
{
    struct ms_state_block first[2] = {named_block(100, 10), named_block(200, 20)};
    struct ms_state_block second[1] = {named_block(250, 40)};
    const struct ms_snapshot snapshots[2] = {{.blocks = first, .block_count = 2},
                                             {.blocks = second, .block_count = 1}};
    size_t count;
    struct tensor_row *rows = view_tensors(&(struct view){snapshots, 2}, &count);
    CHECK(rows != NULL);
    CHECK_EQ(count, 1);
    CHECK_EQ(rows[0].bytes, 300);
    CHECK_EQ(rows[0].deferred_bytes, 40);
    CHECK_EQ(rows[0].blocks, 2);
    free(rows);
}

MS_TEST(a_process_without_samples_has_no_moments)
{
    const struct ms_snapshot snapshot = {0};
    size_t count = 7;
    struct moment *moments = moments_of(&snapshot, MOST, &count);
    CHECK(moments != NULL);
    CHECK_EQ(count, 0);
    free(moments);
}

MS_TEST(causes_are_added_up_but_the_time_of_processes_that_wait_at_once)
{
    struct ms_state_cause causes[2] = {{.kind = MS_EVENT_FALLBACK,
                                        .count = 2,
                                        .bytes = 100,
                                        .duration_ns = 70,
                                        .first_ns = 10,
                                        .last_ns = 20}};
    causes[1] = causes[0];
    causes[1].duration_ns = 50;
    const struct ms_snapshot snapshots[2] = {
        {.process = {.started_ns = 1000}, .causes = &causes[0], .cause_count = 1},
        {.process = {.started_ns = 1500}, .causes = &causes[1], .cause_count = 1}};
    const struct view view = {snapshots, 2};
    size_t count;
    struct ms_state_cause *merged = view_causes(&view, WHOLE_RUN, &count);
    CHECK(merged != NULL);
    CHECK_EQ(count, 1);
    CHECK_EQ(merged[0].count, 4);
    CHECK_EQ(merged[0].bytes, 200);
    CHECK_EQ(merged[0].duration_ns, 70);
    CHECK_EQ(merged[0].first_ns, 10);
    CHECK_EQ(merged[0].last_ns, 520);
    free(merged);
}

static void check_chapter(const struct view *view, enum chapter chapter, uint64_t bytes,
                          uint64_t times, uint64_t ns)
{
    size_t count;
    struct ms_state_cause *causes = view_causes(view, chapter, &count);
    CHECK(causes != NULL);
    CHECK_EQ(count, 1);
    CHECK_EQ(causes[0].bytes, bytes);
    CHECK_EQ(causes[0].count, times);
    CHECK_EQ(causes[0].duration_ns, ns);
    free(causes);
}

MS_TEST(a_chapter_has_its_part_of_the_causes)
{
    struct ms_state_cause causes[3] = {{.kind = MS_EVENT_FALLBACK,
                                        .count = 5,
                                        .bytes = 100,
                                        .duration_ns = 70,
                                        .loaded_count = 2,
                                        .loaded_bytes = 30,
                                        .loaded_duration_ns = 20}};
    causes[1] = causes[0];
    const struct ms_snapshot snapshots[2] = {{.causes = &causes[0], .cause_count = 1},
                                             {.causes = &causes[1], .cause_count = 1}};
    check_chapter(&(struct view){snapshots, 2}, LOADING, 60, 4, 20);
    check_chapter(&(struct view){snapshots, 2}, WORK, 140, 6, 50);
    causes[0].loaded_count = causes[1].loaded_count = 0; /* none of loading */
    size_t count;
    free(view_causes(&(struct view){snapshots, 2}, LOADING, &count));
    CHECK_EQ(count, 0);
}
