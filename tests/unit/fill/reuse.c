/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/fill/reuse.h"

#include <stdatomic.h>
#include <string.h>

#include "runtime/driver/flags.h"
#include "runtime/fill/access.h"
#include "runtime/memory/space.h"
#include "runtime/state/counters.h"
#include "tests/unit/between.h"
#include "tests/unit/fake_driver.h"
#include "tests/unit/files/files.h"
#include "tests/unit/use_plan.h"

enum { GRANULES = 8, BYTES = GRANULES * FAKE_GRANULE, HALF = BYTES / 2, NOTES = 1024 };
enum { LEAST = 16 << 10, AT = 3000 }; /* of the file */

static struct test_file file;
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
    return (struct ms_content){.kind = MS_SOURCE, .source = file.source, .source_offset = offset};
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
    fake_set(copy, 0, BYTES, &(struct ms_content){.kind = MS_UNDEFINED});
    set(copy, 0, BYTES, AT);
    note(original, 0, BYTES, AT);
}

static void start(void)
{
    fake_start();
    ms_driver.mem_get_info = mem_get_info;
    may_read = true;
    original = fake_allocation(BYTES);
    copy = fake_allocation(BYTES);
    make_test_file(&file, "/tmp", BYTES + 2 * AT);
    set(original, 0, BYTES, AT);
    make_copy();
}

static void end(void)
{
    const struct ms_content nothing = {.kind = MS_FILL};
    for (int i = 0; i < NOTES; i++) { /* the next test's addresses may be the same */
        note(original, 0, LEAST, 0);
    }
    fake_set(original, 0, BYTES, &nothing);
    fake_check_allocation(original);
    fake_check_allocation(copy);
    fake_allocation_free(original);
    fake_allocation_free(copy);
    fake_check_empty();
    ms_source_drop(file.source);
}

/* Returns how many bytes were sent for it. */
static size_t use_part(size_t begin, size_t behind, enum ms_need need)
{
    const uint64_t before = ms_counter_get(MS_COUNT_H2D_BYTES);
    CHECK(ms_space_claim(copy->address) == copy);
    ms_reuse_originals(copy, begin, behind, need);
    CHECK_EQ(ms_materialise(copy, begin, behind, need), CUDA_SUCCESS);
    ms_space_release(copy);
    return ms_counter_get(MS_COUNT_H2D_BYTES) - before;
}

static size_t use(enum ms_need need)
{
    const size_t sent = use_part(0, BYTES, need);
    CHECK_BYTES((void *)(uintptr_t)copy->address, file.data + AT, BYTES);
    return sent;
}

static size_t cached(void)
{
    return ms_allocation_lineage(original)->cached_bytes;
}

MS_TEST_BETWEEN(start, end, the_second_copy_brings_in_the_original)
{
    CHECK_EQ(use(MS_NEED_REACH), BYTES);
    CHECK_EQ(cached(), 0);
    make_copy();
    CHECK_EQ(use(MS_NEED_REACH), BYTES);
    CHECK_EQ(cached(), BYTES);
    CHECK_BYTES((void *)(uintptr_t)original->address, file.data + AT, BYTES);
    make_copy();
    CHECK_EQ(use(MS_NEED_REACH), 0);
}

MS_TEST_BETWEEN(start, end, a_use_for_a_moment_brings_in_the_original_at_once)
{
    CHECK_EQ(use(MS_NEED_CONTRIBUTE), BYTES);
    CHECK_EQ(cached(), BYTES);
    CHECK(ms_allocation_lineage(copy)->resident_bytes == BYTES);
    make_copy();
    CHECK_EQ(use(MS_NEED_CONTRIBUTE), 0);
}

/* Of the original the part alone, in whole granules. */
MS_TEST_BETWEEN(start, end, a_part_brings_in_a_part)
{
    CHECK_EQ(use_part(FAKE_GRANULE, 2 * FAKE_GRANULE, MS_NEED_CONTRIBUTE), FAKE_GRANULE);
    CHECK_EQ(cached(), FAKE_GRANULE);
    CHECK_EQ(ms_allocation_backing(original)->backed_bytes, FAKE_GRANULE);
    /* Less than is noted. */
    CHECK_EQ(use_part(3 * FAKE_GRANULE, 3 * FAKE_GRANULE + LEAST - 1, MS_NEED_CONTRIBUTE),
             FAKE_GRANULE);
    CHECK_EQ(cached(), FAKE_GRANULE);
}

MS_TEST_BETWEEN(start, end, needs_that_send_nothing_leave_the_original)
{
    for (enum ms_need need = 0; need < MS_NEED_COUNT; need++) {
        if (ms_needs[need].original != MS_ORIGINAL_LEFT)
            continue;
        for (int again = 0; again < 2; again++) {
            make_copy();
            CHECK(ms_space_claim(copy->address) == copy);
            ms_reuse_originals(copy, 0, BYTES, need);
            ms_space_release(copy);
        }
    }
    CHECK(cached() == 0 && ms_allocation_backing(copy)->backed_bytes == 0);
}

/* One behind the other they are one extent. */
MS_TEST_BETWEEN(start, end, a_copy_of_two_originals_brings_in_both)
{
    struct ms_allocation *other = fake_allocation(HALF);
    set(other, 0, HALF, AT + HALF);
    note(other, 0, HALF, AT + HALF);
    fake_set(original, HALF, BYTES, &(struct ms_content){.kind = MS_FILL});
    CHECK_EQ(use(MS_NEED_CONTRIBUTE), BYTES);
    CHECK(cached() == HALF && ms_allocation_lineage(other)->cached_bytes == HALF);
    fake_allocation_free(other);
}

/* The whole tensor is there too; the shard was copied from it, and the copy from the shard. */
MS_TEST_BETWEEN(start, end, the_latest_original_comes_in)
{
    struct ms_allocation *shard = fake_allocation(BYTES);
    set(shard, 0, BYTES, AT);
    note(shard, 0, BYTES, AT);
    CHECK_EQ(use(MS_NEED_CONTRIBUTE), BYTES);
    CHECK(cached() == 0 && ms_allocation_lineage(shard)->cached_bytes == BYTES);
    fake_allocation_free(shard);
}

/* A caching allocator has both in one allocation. */
MS_TEST_BETWEEN(start, end, the_original_may_be_in_the_same_allocation)
{
    const uint64_t before = ms_counter_get(MS_COUNT_H2D_BYTES);
    fake_set(original, 0, BYTES, &(struct ms_content){.kind = MS_FILL});
    fake_set(copy, 0, BYTES, &(struct ms_content){.kind = MS_UNDEFINED});
    set(copy, 0, 2 * FAKE_GRANULE, 0);
    set(copy, HALF, HALF + 2 * FAKE_GRANULE, 0);
    note(copy, 0, 2 * FAKE_GRANULE, 0);
    CHECK(ms_space_claim(copy->address) == copy);
    ms_reuse_originals(copy, HALF, BYTES, MS_NEED_CONTRIBUTE);
    ms_space_release(copy);
    CHECK_EQ(ms_counter_get(MS_COUNT_H2D_BYTES) - before, 2 * FAKE_GRANULE);
    CHECK_EQ(ms_allocation_lineage(copy)->cached_bytes, 4 * FAKE_GRANULE);
    CHECK_BYTES((void *)(uintptr_t)(copy->address + HALF), file.data, 2 * FAKE_GRANULE);
    /* It is not its own original. */
    fake_set(copy, 0, BYTES, &(struct ms_content){.kind = MS_UNDEFINED});
    set(copy, 0, 2 * FAKE_GRANULE, 0);
    CHECK(ms_space_claim(copy->address) == copy);
    ms_reuse_originals(copy, 0, BYTES, MS_NEED_CONTRIBUTE);
    ms_space_release(copy);
    CHECK_EQ(ms_allocation_lineage(copy)->cached_bytes, 0);
}

/* --- what is not used */

static void check_left(void)
{
    CHECK_EQ(use(MS_NEED_CONTRIBUTE), BYTES);
    CHECK_EQ(cached(), 0);
}

MS_TEST_BETWEEN(start, end, bytes_written_since_are_no_original)
{
    fake_set(original, 0, 1, &(struct ms_content){.kind = MS_FILL});
    check_left();
}

MS_TEST_BETWEEN(start, end, bytes_written_behind_an_original_are_sent)
{
    fake_set(original, HALF, BYTES, &(struct ms_content){.kind = MS_FILL});
    CHECK_EQ(use(MS_NEED_CONTRIBUTE), BYTES);
    CHECK_EQ(cached(), HALF);
}

MS_TEST_BETWEEN(start, end, other_bytes_of_the_file_are_no_original)
{
    set(original, 0, BYTES, AT + 4);
    check_left();
}

MS_TEST_BETWEEN(start, end, another_allocation_at_the_address_is_no_original)
{
    original->id += 1000;
    check_left();
    original->id -= 1000;
}

MS_TEST_BETWEEN(start, end, memory_of_another_context_is_no_original)
{
    original->context = (CUcontext)2;
    check_left();
    original->context = FAKE_CONTEXT;
}

MS_TEST_BETWEEN(start, end, an_original_another_thread_works_on_is_left)
{
    struct ms_allocation *low = original->address < copy->address ? original : copy;
    struct ms_allocation *high = low == copy ? original : copy; /* claims are taken in this order */
    CHECK(ms_space_claim(low->address) == low && ms_space_claim(high->address) == high);
    ms_reuse_originals(copy, 0, BYTES, MS_NEED_CONTRIBUTE);
    ms_space_release(high);
    ms_space_release(low);
    CHECK(cached() == 0 && ms_allocation_lineage(copy)->cached_bytes == 0);
    CHECK_EQ(use(MS_NEED_CONTRIBUTE), BYTES);
}

MS_TEST_BETWEEN(start, end, the_original_gets_no_memory_where_little_is_left)
{
    may_read = false;
    check_left();
}

MS_TEST_BETWEEN(start, end, a_plan_says_itself_what_stays)
{
    use_plan(0, 2 * (size_t)BYTES);
    CHECK(ms_space_claim(copy->address) == copy);
    ms_reuse_originals(copy, 0, BYTES, MS_NEED_CONTRIBUTE);
    ms_space_release(copy);
    CHECK(cached() == 0 && ms_allocation_lineage(copy)->cached_bytes == 0);
}

MS_TEST_BETWEEN(start, end, a_copy_the_driver_fails_is_tried_again)
{
    fake_fail(FAKE_memcpy_dtod_async, 1, CUDA_ERROR_UNKNOWN);
    CHECK_EQ(use(MS_NEED_CONTRIBUTE), BYTES);
    CHECK_EQ(cached(), BYTES);
}

/* Other copies are noted later. */
MS_TEST_BETWEEN(start, end, the_oldest_note_goes)
{
    for (int i = 0; i < NOTES - 1; i++)
        note(copy, 0, LEAST, 0);
    CHECK_EQ(use_part(0, FAKE_GRANULE, MS_NEED_CONTRIBUTE), FAKE_GRANULE);
    CHECK_EQ(cached(), FAKE_GRANULE);
    make_copy();
    for (int i = 0; i < NOTES; i++)
        note(copy, 0, LEAST, 0);
    use_part(HALF, HALF + FAKE_GRANULE, MS_NEED_CONTRIBUTE);
    CHECK_EQ(cached(), FAKE_GRANULE);
}

/* --- what a copy sends at once */

static bool is_again(size_t from, size_t bytes)
{
    const struct ms_content content = content_at(AT + from);
    return ms_reuse_note(&(struct ms_copied){&content, original, from, NULL, 0, bytes});
}

MS_TEST_BETWEEN(start, end, an_original_knows_bytes_its_copy_sent_before)
{
    CHECK(!is_again(0, HALF));
    CHECK(is_again(0, HALF));
    CHECK(!is_again(0, LEAST - 1)); /* too little */
    make_copy();
    CHECK_EQ(use(MS_NEED_REACH), BYTES); /* the third */
    CHECK_EQ(cached(), BYTES);
}

MS_TEST_BETWEEN(start, end, an_original_knows_bytes_its_copy_used_before)
{
    use(MS_NEED_REACH);
    CHECK(is_again(0, BYTES));
}

MS_TEST_BETWEEN(start, end, an_original_under_a_plan_knows_no_bytes_sent_before)
{
    use_plan(0, 2 * (size_t)BYTES);
    CHECK(!is_again(0, HALF));
    CHECK(!is_again(0, HALF));
}

/* A program that loads again does not use its copies more often for that. */
MS_TEST_BETWEEN(start, end, bytes_loaded_anew_were_not_used_before)
{
    CHECK(!is_again(0, HALF));
    ms_reuse_forget(original, HALF, HALF);
    CHECK(is_again(0, HALF));
    ms_reuse_forget(original, HALF - 1, HALF);
    CHECK(!is_again(0, HALF));
}

/* --- dependents; tests/unit/calls/launch.c has those that a recorded launch makes */

/* Returns the bytes that were sent. */
static uint64_t access_original(enum ms_need need)
{
    const uint64_t before = ms_counter_get(MS_COUNT_H2D_BYTES);
    CHECK_EQ(ms_access(original->address, BYTES, need), CUDA_SUCCESS);
    return ms_counter_get(MS_COUNT_H2D_BYTES) - before;
}

static void check_copy_is_left(void)
{
    CHECK_EQ(access_original(MS_NEED_REACH), BYTES);
    CHECK_EQ(ms_allocation_backing(copy)->backed_bytes, 0);
}

MS_TEST_BETWEEN(start, end, a_copy_is_made_before_a_kernel_may_change_its_original)
{
    CHECK_EQ(access_original(MS_NEED_REACH), BYTES);
    CHECK_EQ(ms_allocation_lineage(original)->resident_bytes, BYTES);
    CHECK_EQ(ms_allocation_lineage(copy)->cached_bytes, BYTES);
    CHECK_EQ(use(MS_NEED_READ), 0);
}

MS_TEST_BETWEEN(start, end, a_call_that_only_reads_leaves_the_copy)
{
    for (enum ms_need need = 0; need < MS_NEED_COUNT; need++) {
        if (ms_needs[need].becomes == MS_BECOMES_CACHED)
            access_original(need);
    }
    CHECK_EQ(ms_allocation_backing(copy)->backed_bytes, 0);
}

MS_TEST_BETWEEN(start, end, a_copy_is_left_where_little_memory_is_left)
{
    may_read = false;
    check_copy_is_left();
}

MS_TEST_BETWEEN(start, end, another_allocation_at_the_address_is_no_copy)
{
    copy->id += 1000;
    check_copy_is_left();
    copy->id -= 1000;
}

MS_TEST_BETWEEN(start, end, other_bytes_at_the_address_are_no_copy)
{
    fake_set(copy, 0, BYTES, &(struct ms_content){.kind = MS_FILL});
    check_copy_is_left();
}

MS_TEST_BETWEEN(start, end, a_copy_is_left_during_a_capture_and_with_a_plan)
{
    atomic_fetch_add(&ms_hot.captures, 1);
    ms_reuse_make_dependents(original->address, BYTES);
    atomic_fetch_sub(&ms_hot.captures, 1);
    CHECK_EQ(ms_allocation_backing(copy)->backed_bytes, 0);
    use_plan(0, 2 * (size_t)BYTES);
    ms_reuse_make_dependents(original->address, BYTES);
    CHECK_EQ(ms_allocation_backing(copy)->backed_bytes, 0);
}

MS_TEST_BETWEEN(start, end, the_oldest_of_too_many_copies_is_left)
{
    for (int i = 0; i < NOTES; i++)
        note(copy, 0, LEAST, 0);
    check_copy_is_left();
}
