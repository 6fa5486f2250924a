/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/fill/loaded.h"

#include <pthread.h>
#include <semaphore.h>

#include "runtime/fill/materialise.h"
#include "runtime/memory/space.h"
#include "runtime/state/counters.h"
#include "tests/unit/between.h"
#include "tests/unit/fake_driver.h"
#include "tests/unit/source/files.h"

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
    CHECK(ms_lineage_at(&part->lineage, 0).content.cached);
}

MS_TEST_BETWEEN(start, end, around_a_part_that_is_in_memory_the_rest_is_read)
{
    CHECK_EQ(need(part, MS_NEED_READ), PART);
    CHECK_EQ(need(whole, MS_NEED_READ), BYTES - PART);
    check_bytes();
}

MS_TEST_BETWEEN(start, end, what_may_have_been_written_since_is_read)
{
    need(whole, MS_NEED_READ_WRITE);
    memset((void *)(uintptr_t)whole->address, 1, BYTES);
    CHECK_EQ(need(part, MS_NEED_READ), PART);
    CHECK_BYTES((void *)(uintptr_t)part->address, file.data + AT, PART);
}

MS_TEST_BETWEEN(start, end, what_is_gone_is_read)
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

MS_TEST_BETWEEN(start, end, what_another_thread_works_on_is_read)
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

MS_TEST_BETWEEN(start, end, what_the_driver_does_not_copy_is_read)
{
    need(whole, MS_NEED_READ);
    fake_fail(FAKE_memcpy_dtod_async, 1, CUDA_ERROR_UNKNOWN);
    CHECK_EQ(need(part, MS_NEED_READ), PART);
    check_bytes();
}
