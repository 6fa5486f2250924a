/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/fill/reuse.h"

#include <stdatomic.h>
#include <string.h>

#include "runtime/driver/flags.h"
#include "runtime/fill/access.h"
#include "runtime/memory/space.h"
#include "runtime/state/counters.h"
#include "tests/unit/story.h"
#include "tests/unit/use_plan.h"

enum { BYTES = 8 * FAKE_GRANULE, HALF = BYTES / 2, NOTES = 1024 };
enum { LEAST = 16 << 10, AT = 3000 }; /* of the file */

static struct ms_allocation *original, *copy;
static bool may_read = true;

static CUresult mem_get_info(size_t *free_out, size_t *total_out)
{
    *free_out = may_read ? (size_t)1 << 30 : 0;
    *total_out = (size_t)1 << 30;
    return CUDA_SUCCESS;
}

static struct ms_content content_at(uint64_t offset)
{
    return (
        struct ms_content){.kind = MS_SOURCE, .source = story_file.source, .source_offset = offset};
}

static void set(struct ms_allocation *allocation, size_t begin, size_t end, uint64_t offset)
{
    const struct ms_content content = content_at(offset);
    fake_set(allocation, begin, end, &content);
}

static void note(const struct ms_allocation *source, size_t from, size_t bytes, uint64_t offset)
{
    const struct ms_content content = content_at(offset);
    ms_reuse_note(&(struct ms_copied){&content, source, from, copy, from, bytes});
}

/* As after a copy of all of it. */
static void make_copy(void)
{
    writes(1, 0, BYTES, undefined);
    set(copy, 0, BYTES, AT);
    note(original, 0, BYTES, AT);
}

/* The next test's addresses may be the same. */
static void forget(void)
{
    for (int i = 0; i < NOTES; i++)
        note(original, 0, LEAST, 0);
    writes(0, 0, BYTES, sevens);
}

static void begin(void)
{
    fake_start();
    ms_driver.mem_get_info = mem_get_info;
    at_end = forget;
    has(BYTES), has(BYTES);
    original = all[0], copy = all[1];
    make_test_file(&story_file, "/tmp", BYTES + 2 * AT);
    set(original, 0, BYTES, AT);
    make_copy();
}

/* Returns how many bytes were sent for it. */
static size_t use_part(size_t begin, size_t behind, enum ms_need need)
{
    const uint64_t before = ms_counter_get(MS_COUNT_H2D_BYTES);
    claims(1);
    ms_reuse_originals(copy, begin, behind, need);
    CHECK_EQ(ms_materialise(copy, begin, behind, need), CUDA_SUCCESS);
    releases(1);
    return ms_counter_get(MS_COUNT_H2D_BYTES) - before;
}

static void use_sends(enum ms_need need, size_t bytes)
{
    CHECK_EQ(use_part(0, BYTES, need), bytes);
    CHECK_BYTES(byte_of(1, 0), story_file.data + AT, BYTES);
}

static void looks_for_originals(size_t begin, size_t behind, enum ms_need need)
{
    claims(1);
    ms_reuse_originals(copy, begin, behind, need);
    releases(1);
}

/* So much of both came. */
static void brought(size_t of_original, size_t of_copy)
{
    has_cached(0, of_original), has_memory(1, of_copy);
}

STORY(the_second_copy_brings_in_the_original, use_sends(MS_NEED_REACH, BYTES), has_cached(0, 0),
      make_copy(), use_sends(MS_NEED_REACH, BYTES), has_cached(0, BYTES),
      EQUALS(memcmp(byte_of(0, 0), story_file.data + AT, BYTES), 0), make_copy(),
      use_sends(MS_NEED_REACH, 0))
STORY(a_use_for_a_moment_brings_in_the_original_at_once, use_sends(MS_NEED_CONTRIBUTE, BYTES),
      has_cached(0, BYTES), has_resident(1, BYTES), make_copy(), use_sends(MS_NEED_CONTRIBUTE, 0))
/* Brings in the part of the original alone, in whole granules. */
STORY(a_part_brings_in_a_part, EQUALS(use_part(G, 2 * G, MS_NEED_CONTRIBUTE), G), has_cached(0, G),
      has_memory(0, G),
      /* Less than is noted. */ EQUALS(use_part(3 * G, 3 * G + LEAST - 1, MS_NEED_CONTRIBUTE), G),
      has_cached(0, G))

MS_TEST(needs_that_send_nothing_leave_the_original)
{
    begin();
    for (enum ms_need need = 0; need < MS_NEED_COUNT; need++) {
        if (ms_needs[need].original != MS_ORIGINAL_LEFT)
            continue;
        for (int again = 0; again < 2; again++) {
            make_copy();
            looks_for_originals(0, BYTES, need);
        }
    }
    brought(0, 0);
    end_story();
}

/* One behind the other they are one extent. */
STORY(a_copy_of_two_originals_brings_in_both, has(HALF), set(all[2], 0, HALF, AT + HALF),
      note(all[2], 0, HALF, AT + HALF), writes(0, HALF, BYTES, sevens),
      use_sends(MS_NEED_CONTRIBUTE, BYTES), has_cached(0, HALF), has_cached(2, HALF))
/* The whole tensor is there too; the shard was copied from it, and the copy from the shard. */
STORY(the_latest_original_comes_in, has(BYTES), set(all[2], 0, BYTES, AT),
      note(all[2], 0, BYTES, AT), use_sends(MS_NEED_CONTRIBUTE, BYTES), has_cached(0, 0),
      has_cached(2, BYTES))

static uint64_t sent_before;

/* A caching allocator has both in one allocation. */
STORY(the_original_may_be_in_the_same_allocation, sent_before = ms_counter_get(MS_COUNT_H2D_BYTES),
      writes(0, 0, BYTES, sevens), writes(1, 0, BYTES, undefined), set(copy, 0, 2 * G, 0),
      set(copy, HALF, HALF + 2 * G, 0), note(copy, 0, 2 * G, 0),
      looks_for_originals(HALF, BYTES, MS_NEED_CONTRIBUTE),
      EQUALS(ms_counter_get(MS_COUNT_H2D_BYTES) - sent_before, 2 * G), has_cached(1, 4 * G),
      has_bytes_of_file(1, HALF, 2 * G),
      /* It is not its own original. */ writes(1, 0, BYTES, undefined), set(copy, 0, 2 * G, 0),
      looks_for_originals(0, BYTES, MS_NEED_CONTRIBUTE), has_cached(1, 0))

/* --- what is not used */

static void is_left(void)
{
    use_sends(MS_NEED_CONTRIBUTE, BYTES);
    has_cached(0, 0);
}

STORY(bytes_written_since_are_no_original, writes(0, 0, 1, sevens), is_left())
STORY(bytes_written_behind_an_original_are_sent, writes(0, HALF, BYTES, sevens),
      use_sends(MS_NEED_CONTRIBUTE, BYTES), has_cached(0, HALF))
STORY(other_bytes_of_the_file_are_no_original, set(original, 0, BYTES, AT + 4), is_left())
STORY(another_allocation_at_the_address_is_no_original, original->id += 1000, is_left(),
      original->id -= 1000)
STORY(memory_of_another_context_is_no_original, lies_in(0, (CUcontext)2), is_left(),
      lies_in(0, FAKE_CONTEXT))

MS_TEST(an_original_another_thread_works_on_is_left)
{
    begin();
    struct ms_allocation *low = original->address < copy->address ? original : copy;
    struct ms_allocation *high = low == copy ? original : copy; /* claims are taken in this order */
    CHECK(ms_space_claim(low->address) == low && ms_space_claim(high->address) == high);
    ms_reuse_originals(copy, 0, BYTES, MS_NEED_CONTRIBUTE);
    ms_space_release(high);
    ms_space_release(low);
    has_cached(0, 0);
    has_cached(1, 0);
    use_sends(MS_NEED_CONTRIBUTE, BYTES);
    end_story();
}

STORY(the_original_gets_no_memory_where_little_is_left, may_read = false, is_left())
STORY(a_plan_says_itself_what_stays, use_plan(0, 2 * (size_t)BYTES),
      looks_for_originals(0, BYTES, MS_NEED_CONTRIBUTE), has_cached(0, 0), has_cached(1, 0))
STORY(a_copy_the_driver_fails_is_tried_again,
      fake_fail(FAKE_memcpy_dtod_async, 1, CUDA_ERROR_UNKNOWN),
      use_sends(MS_NEED_CONTRIBUTE, BYTES), has_cached(0, BYTES))

static void notes_more(int notes)
{
    for (int i = 0; i < notes; i++)
        note(copy, 0, LEAST, 0);
}

/* Other copies are noted later. */
STORY(the_oldest_note_goes, notes_more(NOTES - 1), EQUALS(use_part(0, G, MS_NEED_CONTRIBUTE), G),
      has_cached(0, G), make_copy(), notes_more(NOTES),
      use_part(HALF, HALF + G, MS_NEED_CONTRIBUTE), has_cached(0, G))

/* --- what a copy sends at once */

static bool is_again(size_t from, size_t bytes)
{
    const struct ms_content content = content_at(AT + from);
    return ms_reuse_note(&(struct ms_copied){&content, original, from, NULL, 0, bytes});
}

STORY(an_original_knows_bytes_its_copy_sent_before, IS(!is_again(0, HALF)), IS(is_again(0, HALF)),
      IS(!is_again(0, LEAST - 1)) /* too little */, make_copy(),
      use_sends(MS_NEED_REACH, BYTES) /* the third */, has_cached(0, BYTES))
STORY(an_original_knows_bytes_its_copy_used_before, use_part(0, BYTES, MS_NEED_REACH),
      IS(is_again(0, BYTES)))
STORY(an_original_under_a_plan_knows_no_bytes_sent_before, use_plan(0, 2 * (size_t)BYTES),
      IS(!is_again(0, HALF)), IS(!is_again(0, HALF)))
/* A program that loads again does not use its copies more often for that. */
STORY(bytes_loaded_anew_were_not_used_before, IS(!is_again(0, HALF)),
      ms_reuse_forget(original, HALF, HALF), IS(is_again(0, HALF)),
      ms_reuse_forget(original, HALF - 1, HALF), IS(!is_again(0, HALF)))

/* --- dependents; tests/unit/calls/launch.c has those that a recorded launch makes */

/* Returns the bytes that were sent. */
static uint64_t access_original(enum ms_need need)
{
    const uint64_t before = ms_counter_get(MS_COUNT_H2D_BYTES);
    CHECK_EQ(ms_access(original->address, BYTES, need), CUDA_SUCCESS);
    return ms_counter_get(MS_COUNT_H2D_BYTES) - before;
}

static void copy_is_left(void)
{
    CHECK_EQ(access_original(MS_NEED_REACH), BYTES);
    has_memory(1, 0);
}

STORY(a_copy_is_made_before_a_kernel_may_change_its_original,
      EQUALS(access_original(MS_NEED_REACH), BYTES), has_resident(0, BYTES), has_cached(1, BYTES),
      use_sends(MS_NEED_READ, 0))

MS_TEST(a_call_that_only_reads_leaves_the_copy)
{
    begin();
    for (enum ms_need need = 0; need < MS_NEED_COUNT; need++) {
        if (ms_needs[need].becomes == MS_BECOMES_CACHED)
            access_original(need);
    }
    has_memory(1, 0);
    end_story();
}

STORY(a_copy_is_left_where_little_memory_is_left, may_read = false, copy_is_left())
STORY(another_allocation_at_the_address_is_no_copy, copy->id += 1000, copy_is_left(),
      copy->id -= 1000)
STORY(other_bytes_at_the_address_are_no_copy, writes(1, 0, BYTES, sevens), copy_is_left())
STORY(a_copy_is_left_during_a_capture_and_with_a_plan, atomic_fetch_add(&ms_hot.captures, 1),
      ms_reuse_make_dependents(original->address, BYTES), atomic_fetch_sub(&ms_hot.captures, 1),
      has_memory(1, 0), use_plan(0, 2 * (size_t)BYTES),
      ms_reuse_make_dependents(original->address, BYTES), has_memory(1, 0))
STORY(the_oldest_of_too_many_copies_is_left, notes_more(NOTES), copy_is_left())
