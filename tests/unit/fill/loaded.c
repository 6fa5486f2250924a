/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/fill/loaded.h"

#include <pthread.h>
#include <semaphore.h>

#include "runtime/files/host_snapshot.h"
#include "runtime/fill/materialise.h"
#include "runtime/fill/replay.h"
#include "runtime/fill/reuse.h"
#include "runtime/memory/bytes.h"
#include "runtime/memory/carve.h"
#include "runtime/memory/space.h"
#include "runtime/state/counters.h"
#include "tests/unit/between.h"
#include "tests/unit/fake_driver.h"
#include "tests/unit/files/files.h"

enum { BYTES = 32 * FAKE_GRANULE, PART = 12 * FAKE_GRANULE, AT = 5 * FAKE_GRANULE };

static struct test_file file;
static struct ms_allocation *whole, *part;

/* A tensor of a file, and another one of bytes in the middle of it. */
static void start(void)
{
    fake_start();
    whole = fake_allocation(BYTES);
    part = fake_allocation(PART);
    make_test_file(&file, "/tmp", BYTES);
    fake_set(whole, 0, BYTES, &(struct ms_content){.kind = MS_SOURCE, .source = file.source});
    fake_set(part, 0, PART,
             &(struct ms_content){.kind = MS_SOURCE, .source = file.source, .source_offset = AT});
}

static void end(void)
{
    fake_check_allocation(whole);
    fake_check_allocation(part);
    fake_allocation_free(whole);
    fake_allocation_free(part);
    fake_check_empty();
    ms_source_drop(file.source);
}

/* Returns how many bytes were sent for it. */
static size_t need(struct ms_allocation *allocation, enum ms_need need)
{
    const uint64_t before = ms_counter_get(MS_COUNT_H2D_BYTES);
    CHECK(ms_space_claim(allocation->address) == allocation);
    CHECK_EQ(ms_materialise(allocation, 0, allocation->bytes, need), CUDA_SUCCESS);
    ms_space_release(allocation);
    return ms_counter_get(MS_COUNT_H2D_BYTES) - before;
}

static void check_bytes(void)
{
    CHECK_BYTES((void *)(uintptr_t)whole->address, file.data, BYTES);
    CHECK_BYTES((void *)(uintptr_t)part->address, file.data + AT, PART);
}

MS_TEST_BETWEEN(start, end, a_part_of_what_is_in_memory_is_copied)
{
    CHECK_EQ(need(whole, MS_NEED_READ), BYTES);
    CHECK_EQ(need(part, MS_NEED_READ), 0);
    check_bytes();
    CHECK(ms_lineage_at(ms_allocation_lineage(part), 0).content.cached);
}

MS_TEST_BETWEEN(start, end, around_a_part_that_is_in_memory_the_rest_is_read)
{
    CHECK_EQ(need(part, MS_NEED_READ), PART);
    CHECK_EQ(need(whole, MS_NEED_READ), BYTES - PART);
    check_bytes();
}

/* The program overwrites bytes of both places: pieces of the file are left, with gaps between them.
 * Returns how many bytes of the file are left in the second place, and so in both. */
static size_t cut_both(size_t piece, size_t gap)
{
    const struct ms_content zeros = {.kind = MS_FILL};
    size_t left = PART;
    for (size_t at = 0; at + piece + gap <= PART; at += piece + gap) {
        fake_set(whole, AT + at + piece, AT + at + piece + gap, &zeros);
        fake_set(part, at + piece, at + piece + gap, &zeros);
        left -= gap;
    }
    return left;
}

static void check_pieces_of_both(size_t piece, size_t gap)
{
    const unsigned char *in_part = (void *)(uintptr_t)part->address;
    const unsigned char *in_whole = (void *)(uintptr_t)(whole->address + AT);
    for (size_t at = 0; at < PART; at++) {
        const bool is_left =
            at % (piece + gap) < piece || at >= PART / (piece + gap) * (piece + gap);
        CHECK_EQ(in_part[at], is_left ? file.data[AT + at] : 0);
        CHECK_EQ(in_whole[at], in_part[at]);
    }
}

MS_TEST_BETWEEN(start, end, near_pieces_of_a_file_are_sent_once)
{
    enum { GAP = MS_LOADED_NEAR - 1, PIECE = GAP };
    const size_t left = cut_both(PIECE, GAP);
    CHECK(left >= MS_LOADED_LEAST);
    CHECK_EQ(need(part, MS_NEED_READ), left);
    CHECK_EQ(need(whole, MS_NEED_READ), BYTES - PART);
    check_pieces_of_both(PIECE, GAP);
}

MS_TEST_BETWEEN(start, end, pieces_of_a_file_with_wide_gaps_are_sent_twice)
{
    enum { GAP = MS_LOADED_NEAR, PIECE = GAP };
    const size_t left = cut_both(PIECE, GAP);
    CHECK_EQ(need(part, MS_NEED_READ), left);
    fake_set(whole, 0, AT, &(struct ms_content){.kind = MS_FILL});
    fake_set(whole, AT + PART, BYTES, &(struct ms_content){.kind = MS_FILL});
    CHECK_EQ(need(whole, MS_NEED_READ), left);
    check_pieces_of_both(PIECE, GAP);
}

MS_TEST_BETWEEN(start, end, pieces_of_a_file_that_are_few_bytes_are_sent_twice)
{
    enum { GAP = MS_LOADED_NEAR - 1, PIECE = 100 };
    const size_t left = cut_both(PIECE, GAP);
    CHECK(left < MS_LOADED_LEAST);
    CHECK_EQ(need(part, MS_NEED_READ), left);
    fake_set(whole, 0, AT, &(struct ms_content){.kind = MS_FILL});
    fake_set(whole, AT + PART, BYTES, &(struct ms_content){.kind = MS_FILL});
    CHECK_EQ(need(whole, MS_NEED_READ), left);
}

/* Pieces that stand elsewhere in the file are no run. */
MS_TEST_BETWEEN(start, end, pieces_of_a_file_in_another_order_are_sent_twice)
{
    enum { PIECE = MS_LOADED_LEAST / 2 };
    for (size_t at = 0; at + PIECE <= PART; at += PIECE) {
        const struct ms_content content = {.kind = MS_SOURCE,
                                           .source = file.source,
                                           .source_offset = PART - PIECE - at};
        fake_set(part, at, at + PIECE, &content);
        fake_set(whole, at, at + PIECE, &content);
    }
    fake_set(whole, PART, BYTES, &(struct ms_content){.kind = MS_FILL});
    CHECK_EQ(need(part, MS_NEED_READ), PART);
    CHECK_EQ(need(whole, MS_NEED_READ), PART);
}

/* The bytes stand in the middle of an allocation. */
MS_TEST_BETWEEN(start, end, bytes_read_into_a_part_of_an_allocation_are_copied)
{
    const struct ms_content content = {.kind = MS_SOURCE,
                                       .source = file.source,
                                       .source_offset = AT};
    fake_set(whole, 0, BYTES, &(struct ms_content){.kind = MS_UNDEFINED});
    fake_set(whole, 3 * FAKE_GRANULE, 3 * FAKE_GRANULE + PART, &content);
    CHECK_EQ(need(whole, MS_NEED_READ), PART);
    CHECK_EQ(need(part, MS_NEED_READ), 0);
    CHECK_BYTES((void *)(uintptr_t)part->address, file.data + AT, PART);
}

MS_TEST_BETWEEN(start, end, bytes_that_may_have_been_written_since_are_read)
{
    need(whole, MS_NEED_READ_WRITE);
    memset((void *)(uintptr_t)whole->address, 1, BYTES);
    CHECK_EQ(need(part, MS_NEED_READ), PART);
    CHECK_BYTES((void *)(uintptr_t)part->address, file.data + AT, PART);
}

MS_TEST_BETWEEN(start, end, bytes_of_a_freed_allocation_are_read)
{
    need(whole, MS_NEED_READ);
    fake_allocation_free(whole);
    CHECK_EQ(need(part, MS_NEED_READ), PART);
    whole = fake_allocation(BYTES);
    CHECK_BYTES((void *)(uintptr_t)part->address, file.data + AT, PART);
}

static sem_t is_claimed, is_read;

static void *work_on_whole(__attribute__((unused)) void *argument)
{
    CHECK(ms_space_claim(whole->address) == whole);
    sem_post(&is_claimed);
    CHECK_EQ(sem_wait(&is_read), 0);
    ms_space_release(whole);
    return NULL;
}

MS_TEST_BETWEEN(start, end, bytes_another_thread_works_on_are_read)
{
    pthread_t thread;
    need(whole, MS_NEED_READ);
    CHECK_EQ(pthread_create(&thread, NULL, work_on_whole, NULL), 0);
    CHECK_EQ(sem_wait(&is_claimed), 0);
    CHECK_EQ(need(part, MS_NEED_READ), PART);
    sem_post(&is_read);
    CHECK_EQ(pthread_join(thread, NULL), 0);
    check_bytes();
}

MS_TEST_BETWEEN(start, end, bytes_the_driver_does_not_copy_are_read)
{
    need(whole, MS_NEED_READ);
    fake_fail(FAKE_memcpy_dtod_async, 1, CUDA_ERROR_UNKNOWN);
    CHECK_EQ(need(part, MS_NEED_READ), PART);
    check_bytes();
}

/* --- the table itself */

enum { LEAST = 256 << 10, PLACES = 1024 };

static CUdeviceptr target;

static void note(const struct ms_source *source, uint64_t offset, size_t bytes, CUdeviceptr address)
{
    ms_loaded_note(&(struct ms_loaded_place){source, offset, bytes, address}, MS_LOADED_IS_THERE);
}

/* Copies these bytes of the file to `target`. Returns the copied range, which is the file's. */
static struct ms_range copy(struct ms_allocation *allocation, uint64_t offset, size_t bytes)
{
    CHECK(ms_space_claim(allocation->address) == allocation);
    memset((void *)(uintptr_t)target, 0xee, BYTES);
    const struct ms_loaded_place place = {file.source, offset, bytes, target};
    const struct ms_range range = ms_loaded_copy(allocation->context, &place, NULL);
    CHECK(ms_space_try_claim(allocation->address) == NULL); /* it is the caller's still */
    ms_space_release(allocation);
    CHECK(range.begin == range.end || (offset <= range.begin && range.end <= offset + bytes));
    CHECK_BYTES((void *)(uintptr_t)(target + (range.begin - offset)), file.data + range.begin,
                range.end - range.begin);
    return range;
}

static void check_copied(uint64_t offset, size_t bytes, uint64_t begin, uint64_t end)
{
    const struct ms_range range = copy(part, offset, bytes);
    CHECK_EQ(range.begin, begin);
    CHECK_EQ(range.end, end);
}

static bool is_copied(uint64_t offset, size_t bytes)
{
    const struct ms_range range = copy(part, offset, bytes);
    return range.begin < range.end;
}

static void start_with_target(void)
{
    start();
    target = fake_program_memory(BYTES);
    need(whole, MS_NEED_READ);
}

static void end_with_target(void)
{
    fake_program_memory_free(target);
    end();
}

MS_TEST_BETWEEN(start_with_target, end_with_target, the_common_part_is_copied)
{
    check_copied(AT, LEAST, AT, AT + LEAST);
    check_copied(AT, 1, AT, AT + 1);
    check_copied(BYTES - LEAST, BYTES, BYTES - LEAST, BYTES);
    check_copied(BYTES - 1, BYTES, BYTES - 1, BYTES);
    check_copied(BYTES, BYTES, 0, 0);
    check_copied(0, BYTES, 0, BYTES); /* as often as it is wanted */
}

/* Small pieces of a file are not searched for, and those of exactly so many bytes are. */
MS_TEST_BETWEEN(start, end, small_pieces_of_files_are_read_again)
{
    for (size_t bytes = LEAST - 1; bytes <= LEAST; bytes++) {
        const struct ms_content content = {.kind = MS_SOURCE, .source = file.source};
        fake_set(part, 0, PART, &(struct ms_content){.kind = MS_RESIDENT});
        fake_set(part, 0, bytes, &content);
        fake_set(whole, 0, BYTES, &(struct ms_content){.kind = MS_RESIDENT});
        fake_set(whole, 0, BYTES, &content);
        CHECK_EQ(need(whole, MS_NEED_READ), BYTES);
        CHECK_EQ(need(part, MS_NEED_READ), bytes < LEAST ? bytes : 0);
        fake_set(whole, 0, BYTES, &(struct ms_content){.kind = MS_RESIDENT});
        fake_set(whole, 0, BYTES, &content);
        fake_set(part, 0, bytes, &content);
        CHECK_EQ(need(part, MS_NEED_READ), bytes);
        CHECK_EQ(need(whole, MS_NEED_READ), bytes < LEAST ? BYTES : BYTES - bytes);
    }
    CHECK_BYTES((void *)(uintptr_t)part->address, file.data, LEAST);
}

/* The places are too far from each other to become one. */
static void note_others(const struct ms_source *other, size_t count)
{
    for (size_t i = 0; i < count; i++)
        note(other, 0, LEAST, whole->address + i * FAKE_GRANULE);
}

MS_TEST_BETWEEN(start_with_target, end_with_target, the_oldest_place_goes)
{
    struct test_file other;
    make_test_file(&other, "/tmp", BYTES);
    note_others(other.source, PLACES - 1);
    CHECK(is_copied(0, BYTES));
    note_others(other.source, 1);
    CHECK(!is_copied(0, BYTES));
    ms_source_drop(other.source);
}

/* Forgets all places. */
static void forget_all(void)
{
    static const struct ms_source nothing;
    note_others(&nothing, PLACES);
}

/* True if a place at `address` and another in `whole`, `gap` bytes behind it and noted after
 * `others` others, give all of their bytes in one copy. */
static bool is_one_place(size_t gap, size_t others, CUdeviceptr address)
{
    struct test_file other;
    make_test_file(&other, "/tmp", BYTES);
    forget_all();
    note(file.source, 0, LEAST, address);
    note_others(other.source, others);
    note(file.source, LEAST + gap, LEAST, whole->address + LEAST + gap);
    ms_source_drop(other.source);
    const struct ms_range range = copy(part, 0, 2 * LEAST + gap);
    return range.begin == 0 && range.end == 2 * LEAST + gap;
}

/* Each is one place, or differs in one thing. */
MS_TEST_BETWEEN(start_with_target, end_with_target, places_that_go_on_from_each_other_become_one)
{
    enum { NEAR = 16 << 10 };
    CHECK(is_one_place(0, 0, whole->address));
    CHECK(is_one_place(NEAR - 1, 0, whole->address));
    CHECK(!is_one_place(NEAR, 0, whole->address));
    CHECK(is_one_place(0, 3, whole->address));
    CHECK(!is_one_place(0, 4, whole->address));
    CHECK(!is_one_place(0, 0, part->address));
}

MS_TEST_BETWEEN(start_with_target, end_with_target, a_place_becomes_longer_on_both_sides)
{
    forget_all();
    note(file.source, LEAST, LEAST, whole->address + LEAST);
    note(file.source, 0, LEAST, whole->address);
    note(file.source, LEAST / 2, LEAST, whole->address + LEAST / 2);
    note(file.source, 2 * LEAST, LEAST, whole->address + 2 * LEAST);
    check_copied(0, BYTES, 0, 3 * LEAST);
}

MS_TEST_BETWEEN(start_with_target, end_with_target, bytes_of_another_file_are_not_copied)
{
    struct test_file other;
    make_test_file(&other, "/tmp", BYTES);
    CHECK(ms_space_claim(part->address) == part);
    const struct ms_loaded_place place = {other.source, 0, BYTES, target};
    const struct ms_range range = ms_loaded_copy(part->context, &place, NULL);
    ms_space_release(part);
    CHECK_EQ(range.end, 0);
    ms_source_drop(other.source);
}

enum { WANTED = BYTES / 2 };

/* Whether noted bytes are copied that are as read, but for [begin, end), by now `content`. */
static bool is_copied_after(size_t begin, size_t end, const struct ms_content *content)
{
    const struct ms_content read = {.kind = MS_SOURCE, .cached = true, .source = file.source};
    fake_set(whole, 0, BYTES, &read);
    note(file.source, 0, WANTED, whole->address);
    fake_set(whole, begin, end, content);
    return is_copied(0, WANTED);
}

/* Each content differs from what was read in one thing. */
MS_TEST_BETWEEN(start_with_target, end_with_target, a_place_with_other_bytes_by_now_is_not_copied)
{
    struct test_file other;
    make_test_file(&other, "/tmp", BYTES);
    const struct ms_content same = {.kind = MS_SOURCE, .cached = true, .source = file.source};
    struct ms_content changed = same;
    CHECK(is_copied_after(0, BYTES, &same));
    changed.kind = MS_FILL;
    CHECK(!is_copied_after(0, BYTES, &changed));
    changed = same;
    changed.cached = false;
    CHECK(!is_copied_after(0, BYTES, &changed));
    changed = same;
    changed.source = other.source;
    CHECK(!is_copied_after(0, BYTES, &changed));
    changed = same;
    changed.source_offset = FAKE_GRANULE;
    CHECK(!is_copied_after(0, BYTES - FAKE_GRANULE, &changed));
    ms_source_drop(other.source);
}

/* Piece by piece, what is still there is copied, and what has changed is not. */
MS_TEST_BETWEEN(start_with_target, end_with_target, pieces_around_changed_bytes_are_copied)
{
    enum { HOLE = WANTED / 2, HOLE_END = HOLE + 3 };
    const struct ms_content resident = {.kind = MS_RESIDENT};
    CHECK(is_copied_after(HOLE, HOLE_END, &resident));
    check_copied(0, WANTED, 0, HOLE);
    check_copied(HOLE - 1, WANTED, HOLE - 1, HOLE);
    check_copied(HOLE, WANTED - HOLE, HOLE_END, WANTED);
    CHECK(!is_copied(HOLE, HOLE_END - HOLE));
    check_copied(HOLE, WANTED - HOLE, HOLE_END, WANTED); /* the bytes behind are not forgotten */
    CHECK(!is_copied(0, HOLE_END));
}

/* The address has another, smaller allocation by now. */
MS_TEST_BETWEEN(start_with_target, end_with_target,
                a_place_that_ends_beyond_its_allocation_is_not_copied)
{
    fake_set(part, 0, PART,
             &(struct ms_content){
                 .kind = MS_SOURCE, .cached = true, .source = file.source, .source_offset = AT});
    fake_allocation_free(whole);
    whole = fake_allocation(BYTES);
    for (uint64_t offset = AT; offset <= AT + PART; offset += LEAST) {
        note(file.source, AT, BYTES - AT, part->address);
        const size_t bytes = offset < AT + PART ? AT + PART + 1 - offset : LEAST;
        CHECK_EQ(copy(whole, offset, bytes).end, 0);
    }
}

MS_TEST_BETWEEN(start_with_target, end_with_target, a_place_behind_its_allocation_is_not_copied)
{
    enum { BEGIN = PART + 2 * FAKE_GRANULE };
    fake_allocation_free(whole);
    whole = fake_allocation(BYTES);
    forget_all();
    note(file.source, FAKE_GRANULE, BYTES - FAKE_GRANULE, part->address);
    CHECK_EQ(copy(whole, BEGIN, PART).end, 0);
}

MS_TEST_BETWEEN(start_with_target, end_with_target, memory_of_another_context_is_not_copied)
{
    whole->context = (CUcontext)2;
    CHECK(!is_copied(0, BYTES));
    whole->context = FAKE_CONTEXT;
}

MS_TEST_BETWEEN(start_with_target, end_with_target, a_copy_that_cannot_be_waited_for_is_none)
{
    fake.wait_result = CUDA_ERROR_UNKNOWN;
    CHECK(!is_copied(0, BYTES));
    fake.wait_result = CUDA_SUCCESS;
}

/* An allocation that is claimed already is not claimed once more. */
MS_TEST_BETWEEN(start_with_target, end_with_target, a_place_in_the_same_allocation_is_copied)
{
    CHECK_EQ(copy(whole, AT, LEAST).end, AT + LEAST);
}

/* --- snapshots */

enum { COPIES = 3 };

static struct ms_allocation *places[COPIES];
static unsigned char *bytes_of_host;
static uint64_t kept_before;

/* The program copies the bytes of a place on to another, as the lineage has them. */
static void copy_on(size_t from, size_t to)
{
    CHECK(ms_space_claim(places[from]->address) == places[from]);
    const struct ms_content content = ms_lineage_at(ms_allocation_lineage(places[from]), 0).content;
    CHECK(!content.cached);
    ms_reuse_note(&(struct ms_copied){&content, places[from], 0, places[to], 0, BYTES});
    ms_space_release(places[from]);
    fake_set(places[to], 0, BYTES, &content);
}

/* One host buffer, in three places. */
static void start_with_snapshot(void)
{
    fake_start();
    kept_before = ms_counter_get(MS_GAUGE_SNAPSHOT);
    struct ms_host_snapshot *snapshot = ms_host_snapshot_create(BYTES, MS_SNAPSHOT_ANY);
    bytes_of_host = malloc(BYTES);
    CHECK(snapshot != NULL && bytes_of_host != NULL);
    for (size_t i = 0; i < BYTES; i++)
        bytes_of_host[i] = (unsigned char)(i * 7 + i / 251);
    memcpy(ms_host_snapshot_data(snapshot), bytes_of_host, BYTES);
    for (size_t i = 0; i < COPIES; i++)
        places[i] = fake_allocation(BYTES);
    fake_set(places[0], 0, BYTES,
             &(struct ms_content){.kind = MS_SOURCE, .source = ms_host_snapshot_source(snapshot)});
    ms_host_snapshot_drop(snapshot);
    copy_on(0, 1);
    copy_on(0, 2);
}

static void free_place(size_t at)
{
    fake_check_allocation(places[at]);
    fake_allocation_free(places[at]);
    places[at] = NULL;
}

static void end_with_snapshot(void)
{
    for (size_t i = 0; i < COPIES; i++) {
        if (places[i] != NULL)
            free_place(i);
    }
    CHECK_EQ(ms_counter_get(MS_GAUGE_SNAPSHOT), kept_before);
    fake_check_empty();
    free(bytes_of_host);
}

static bool is_kept(void)
{
    return ms_counter_get(MS_GAUGE_SNAPSHOT) > kept_before;
}

static struct ms_content content_of(size_t at)
{
    return ms_lineage_at(ms_allocation_lineage(places[at]), 0).content;
}

static void check_place(size_t at)
{
    CHECK_BYTES((void *)(uintptr_t)places[at]->address, bytes_of_host, BYTES);
}

MS_TEST_BETWEEN(start_with_snapshot, end_with_snapshot, a_snapshot_is_sent_once_to_all_its_places)
{
    CHECK_EQ(need(places[1], MS_NEED_READ), BYTES);
    CHECK(content_of(1).cached && is_kept());
    CHECK_EQ(content_of(0).cached, false);
    CHECK_EQ(need(places[0], MS_NEED_READ), 0);
    CHECK(content_of(0).cached && is_kept());
    CHECK_EQ(need(places[2], MS_NEED_READ), 0);
    CHECK_EQ(content_of(2).kind, MS_RESIDENT);
    CHECK(!is_kept());
    for (size_t i = 0; i < COPIES; i++)
        check_place(i);
}

enum { PIECES = 100, STEP = BYTES / PIECES, FILLED = 40 };

/* The program overwrites some bytes of the first place, then copies it on, piece by piece. Returns
 * how many bytes of the snapshot are left in each place. */
static size_t cut(void)
{
    for (size_t at = 0; at + STEP <= BYTES; at += STEP)
        fake_set(places[0], at, at + FILLED, &(struct ms_content){.kind = MS_FILL});
    size_t left = 0, at = 0;
    struct ms_extent extent;
    while (ms_lineage_next(ms_allocation_lineage(places[0]), &at, BYTES, &extent)) {
        const size_t bytes = extent.end - extent.begin;
        left += extent.content.kind == MS_SOURCE ? bytes : 0;
        ms_reuse_note(&(struct ms_copied){&extent.content, places[0], extent.begin, places[1],
                                          extent.begin, bytes});
        fake_set(places[1], extent.begin, extent.end, &extent.content);
    }
    return left;
}

static void check_pieces(size_t place)
{
    const unsigned char *memory = (void *)(uintptr_t)places[place]->address;
    for (size_t at = 0; at < BYTES; at++) {
        if (at % STEP >= FILLED || at + STEP > BYTES)
            CHECK_EQ(memory[at], bytes_of_host[at]);
    }
}

MS_TEST_BETWEEN(start_with_snapshot, end_with_snapshot, a_snapshot_in_many_pieces_is_sent_once)
{
    const size_t left = cut();
    CHECK_EQ(need(places[1], MS_NEED_READ), left);
    CHECK_EQ(need(places[0], MS_NEED_READ), 0);
    check_pieces(0);
    check_pieces(1);
}

MS_TEST_BETWEEN(start_with_snapshot, end_with_snapshot,
                other_places_get_many_pieces_before_they_change)
{
    cut();
    CHECK_EQ(need(places[1], MS_NEED_REACH),
             BYTES); /* some to the third place alone, which is whole */
    memset((void *)(uintptr_t)places[1]->address, 1, BYTES);
    CHECK_EQ(need(places[0], MS_NEED_READ) + need(places[2], MS_NEED_READ), 0);
    check_pieces(0);
    check_place(2);
}

MS_TEST_BETWEEN(start_with_snapshot, end_with_snapshot, a_snapshot_goes_when_the_last_place_is_set)
{
    need(places[1], MS_NEED_READ);
    fake_set(places[0], 0, BYTES, &(struct ms_content){.kind = MS_FILL});
    CHECK(is_kept());
    fake_set(places[2], 0, BYTES, &(struct ms_content){.kind = MS_FILL});
    CHECK(!is_kept());
    CHECK(content_of(1).cached);
    check_place(1);
    CHECK_EQ(need(places[1], MS_NEED_READ_WRITE), 0);
    CHECK_EQ(content_of(1).kind, MS_RESIDENT);
    check_place(1);
}

MS_TEST_BETWEEN(start_with_snapshot, end_with_snapshot,
                a_snapshot_goes_when_the_last_place_is_freed)
{
    need(places[1], MS_NEED_READ);
    free_place(0);
    CHECK(is_kept());
    free_place(2);
    CHECK(!is_kept());
    check_place(1);
}

MS_TEST_BETWEEN(start_with_snapshot, end_with_snapshot, small_snapshots_are_not_shared)
{
    for (size_t bytes = LEAST - 1; bytes <= LEAST; bytes++) {
        struct ms_host_snapshot *snapshot = ms_host_snapshot_create(bytes, MS_SNAPSHOT_ANY);
        struct ms_source *source = ms_host_snapshot_source(snapshot);
        const struct ms_content content = {.kind = MS_SOURCE, .source = source};
        ms_reuse_note(&(struct ms_copied){&content, places[0], 0, places[1], 0, 100});
        CHECK_EQ(ms_host_snapshot_is_shared(source), bytes == LEAST);
        ms_host_snapshot_drop(snapshot);
    }
}

/* A copy to bytes that are in memory gets them from the host, once. */
MS_TEST_BETWEEN(start_with_snapshot, end_with_snapshot, a_snapshot_is_sent_past_its_place_once)
{
    struct ms_host_snapshot *snapshot = ms_host_snapshot_create(BYTES, MS_SNAPSHOT_ANY);
    const struct ms_content content = {.kind = MS_SOURCE,
                                       .source = ms_host_snapshot_source(snapshot)};
    struct ms_copied copied = {&content, places[0], 0, NULL, 0, MS_LOADED_LEAST - 1};
    CHECK(!ms_reuse_note(&copied) && !ms_reuse_note(&copied));
    copied.bytes = MS_LOADED_LEAST;
    CHECK(!ms_reuse_note(&copied) && ms_reuse_note(&copied));
    ms_host_snapshot_drop(snapshot);
}

/* A kernel may change the bytes. */
MS_TEST_BETWEEN(start_with_snapshot, end_with_snapshot,
                other_places_get_a_snapshot_before_it_changes)
{
    CHECK_EQ(need(places[1], MS_NEED_REACH), BYTES);
    CHECK(!is_kept());
    CHECK_EQ(content_of(1).kind, MS_RESIDENT);
    memset((void *)(uintptr_t)places[1]->address, 1, BYTES);
    CHECK_EQ(need(places[0], MS_NEED_REACH) + need(places[2], MS_NEED_REACH), 0);
    check_place(0);
    check_place(2);
}

MS_TEST_BETWEEN(start_with_snapshot, end_with_snapshot,
                a_read_place_hands_on_before_it_is_overwritten)
{
    need(places[1], MS_NEED_READ);
    CHECK_EQ(need(places[1], MS_NEED_OVERWRITE), 0);
    memset((void *)(uintptr_t)places[1]->address, 1, BYTES);
    CHECK_EQ(need(places[0], MS_NEED_READ) + need(places[2], MS_NEED_READ), 0);
    check_place(0);
    check_place(2);
}

/* Nothing is in memory that could be copied. */
MS_TEST_BETWEEN(start_with_snapshot, end_with_snapshot,
                a_place_that_is_overwritten_hands_nothing_on)
{
    need(places[1], MS_NEED_OVERWRITE);
    CHECK_EQ(content_of(0).kind, MS_SOURCE);
    CHECK_EQ(need(places[0], MS_NEED_READ), BYTES);
    CHECK_EQ(need(places[2], MS_NEED_READ), 0);
    check_place(0);
    check_place(2);
}

MS_TEST_BETWEEN(start_with_snapshot, end_with_snapshot, a_part_hands_on_its_bytes_alone)
{
    enum { CUT = BYTES / 2 };
    CHECK(ms_space_claim(places[1]->address) == places[1]);
    CHECK_EQ(ms_materialise(places[1], CUT, BYTES, MS_NEED_REACH), CUDA_SUCCESS);
    ms_space_release(places[1]);
    memset((void *)(uintptr_t)(places[1]->address + CUT), 1, CUT);
    CHECK_EQ(content_of(0).kind, MS_SOURCE);
    CHECK_EQ(need(places[0], MS_NEED_REACH), CUT);
    CHECK_EQ(need(places[2], MS_NEED_READ) + need(places[1], MS_NEED_READ), 0);
    check_place(0);
    check_place(2);
    CHECK_BYTES((void *)(uintptr_t)places[1]->address, bytes_of_host, CUT);
}

/* Memory that has given its place to other bytes is never taken for the snapshot. */
MS_TEST_BETWEEN(start_with_snapshot, end_with_snapshot,
                a_place_with_other_bytes_than_the_snapshot_is_not_copied)
{
    need(places[1], MS_NEED_READ);
    need(places[0], MS_NEED_READ);
    ms_loaded_note(&(struct ms_loaded_place){content_of(2).source, 0, BYTES, places[1]->address},
                   MS_LOADED_IS_THERE);
    fake_set(places[1], 0, BYTES, &(struct ms_content){.kind = MS_RESIDENT});
    memset((void *)(uintptr_t)places[1]->address, 1, BYTES);
    free_place(0);
    CHECK_EQ(need(places[2], MS_NEED_READ), BYTES);
    check_place(2);
}

/* Eviction gives back no bytes that could not be sent again. */
MS_TEST_BETWEEN(start_with_snapshot, end_with_snapshot, eviction_leaves_bytes_of_a_snapshot)
{
    need(places[1], MS_NEED_READ);
    CHECK(ms_space_claim(places[1]->address) == places[1]);
    CHECK_EQ(ms_carve_give_back(places[1], ms_replay_is_current), 0);
    ms_space_release(places[1]);
    CHECK_EQ(content_of(1).kind, MS_RESIDENT);
    check_place(1);
    CHECK_EQ(need(places[0], MS_NEED_READ), BYTES);
    CHECK_EQ(need(places[2], MS_NEED_READ), 0);
    check_place(2);
}

/* Little of the device's memory is left. */
MS_TEST_BETWEEN(start_with_snapshot, end_with_snapshot, where_memory_is_short_places_wait)
{
    fake_fail(FAKE_mem_get_info, 1, CUDA_ERROR_UNKNOWN);
    CHECK_EQ(need(places[1], MS_NEED_REACH), BYTES);
    memset((void *)(uintptr_t)places[1]->address, 1, BYTES);
    need(places[0], MS_NEED_READ);
    need(places[2], MS_NEED_READ);
    check_place(0);
    check_place(2);
}
