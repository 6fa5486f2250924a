/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/fill/loaded.h"

#include <pthread.h>
#include <semaphore.h>

#include "runtime/fill/materialise.h"
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

/* What of these bytes of the file is copied to `target`; they are the file's. */
static struct ms_range copy(struct ms_allocation *allocation, uint64_t offset, size_t bytes)
{
    CHECK(ms_space_claim(allocation->address) == allocation);
    memset((void *)(uintptr_t)target, 0xee, BYTES);
    const struct ms_range range =
        ms_loaded_copy(allocation, file.opened, offset, bytes, target, NULL);
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

MS_TEST_BETWEEN(start_with_target, end_with_target, the_common_part_is_copied_if_it_is_enough)
{
    check_copied(AT, LEAST, AT, AT + LEAST);
    check_copied(AT, LEAST - 1, 0, 0);
    check_copied(BYTES - LEAST, BYTES, BYTES - LEAST, BYTES);
    check_copied(BYTES - LEAST + 1, BYTES, 0, 0);
    check_copied(0, BYTES, 0, BYTES); /* as often as it is wanted */
}

/* A place of exactly so many bytes is kept, and one of less takes no other's. */
MS_TEST_BETWEEN(start_with_target, end_with_target, small_places_are_not_noted)
{
    for (int i = 0; i < PLACES; i++)
        ms_loaded_note(file.opened, 0, LEAST - 1, whole->address);
    CHECK(is_copied(0, BYTES));
    for (int i = 0; i < PLACES; i++)
        ms_loaded_note(file.opened, 0, LEAST, whole->address);
    check_copied(0, BYTES, 0, LEAST);
}

MS_TEST_BETWEEN(start_with_target, end_with_target, the_oldest_place_goes)
{
    struct test_file other;
    make_test_file(&other, "/tmp", BYTES);
    for (int i = 0; i < PLACES - 1; i++)
        ms_loaded_note(other.opened, 0, LEAST, whole->address);
    CHECK(is_copied(0, BYTES)); /* and is the youngest */
    for (int i = 0; i < 2 * PLACES; i++)
        ms_loaded_note(other.opened, 0, LEAST, whole->address);
    CHECK(!is_copied(0, BYTES));
    ms_source_drop(other.source);
}

MS_TEST_BETWEEN(start_with_target, end_with_target, bytes_of_another_file_are_not_copied)
{
    struct test_file other;
    make_test_file(&other, "/tmp", BYTES);
    CHECK(ms_space_claim(part->address) == part);
    const struct ms_range range = ms_loaded_copy(part, other.opened, 0, BYTES, target, NULL);
    ms_space_release(part);
    CHECK_EQ(range.end, 0);
    ms_source_drop(other.source);
}

enum { WANTED = BYTES / 2 };

/* What was noted is as it was read, but [begin, end) has that content by now. */
static bool is_copied_after(size_t begin, size_t end, const struct ms_content *content)
{
    const struct ms_content read = {.kind = MS_SOURCE, .cached = true, .source = file.source};
    fake_set(whole, 0, BYTES, &read);
    ms_loaded_note(file.opened, 0, WANTED, whole->address);
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

MS_TEST_BETWEEN(start_with_target, end_with_target, a_place_that_has_changed_behind_is_not_copied)
{
    const struct ms_content resident = {.kind = MS_RESIDENT};
    CHECK(is_copied_after(WANTED, BYTES, &resident));
    CHECK(!is_copied_after(WANTED - 1, BYTES, &resident));
    CHECK(!is_copied(0, WANTED - 1)); /* the place is gone */
    ms_loaded_note(file.opened, 0, WANTED, whole->address);
    CHECK(is_copied(0, WANTED - 1));
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
        ms_loaded_note(file.opened, AT, BYTES - AT, part->address);
        const size_t bytes = offset < AT + PART ? AT + PART + 1 - offset : LEAST;
        CHECK_EQ(copy(whole, offset, bytes).end, 0);
    }
}

/* The first place has the bytes in part. The second lies behind the allocation, where there is no
 * extent, and the extent of the first would do. */
MS_TEST_BETWEEN(start_with_target, end_with_target, a_place_behind_its_allocation_is_not_copied)
{
    enum { BEGIN = PART + 2 * FAKE_GRANULE };
    const struct ms_content read = {
        .kind = MS_SOURCE, .cached = true, .source = file.source, .source_offset = BEGIN};
    fake_set(part, 0, PART, &read);
    fake_set(part, PART - FAKE_GRANULE, PART, &(struct ms_content){.kind = MS_RESIDENT});
    fake_allocation_free(whole);
    whole = fake_allocation(BYTES);
    ms_loaded_note(file.opened, BEGIN, PART, part->address);
    ms_loaded_note(file.opened, FAKE_GRANULE, BYTES - FAKE_GRANULE, part->address);
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

/* What is claimed already is not claimed once more. */
MS_TEST_BETWEEN(start_with_target, end_with_target, a_place_in_the_same_allocation_is_copied)
{
    CHECK_EQ(copy(whole, AT, LEAST).end, AT + LEAST);
}
