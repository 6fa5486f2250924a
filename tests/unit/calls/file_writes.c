/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/calls/file_writes.h"

#include <pthread.h>
#include <stdatomic.h>

#include "runtime/driver/flags.h"
#include "runtime/memory/space.h"
#include "runtime/source/source_close.h"
#include "runtime/state/counters.h"
#include "tests/unit/between.h"
#include "tests/unit/fake_driver.h"
#include "tests/unit/source/files.h"

static struct test_file file;
static struct stat stat_of_file;
static struct ms_allocation *allocation;

/* All of an allocation comes from a file. */
static void start(void)
{
    fake_start();
    make_test_file(&file, "/tmp", FAKE_GRANULE);
    CHECK_EQ(fstat(file.descriptor, &stat_of_file), 0);
    allocation = fake_allocation(FAKE_GRANULE);
    fake_set(allocation, 0, FAKE_GRANULE,
             &(struct ms_content){.kind = MS_SOURCE, .source = file.source});
}

static void end(void)
{
    fake_allocation_free(allocation);
    ms_source_drop(file.source);
    fake_check_empty();
}

static int prepare(void)
{
    return ms_file_writes_prepare(MS_FILE_CHANGES, "open", stat_of_file.st_dev,
                                  stat_of_file.st_ino);
}

MS_TEST_BETWEEN(start, end, bytes_are_in_memory_before_their_file_changes)
{
    CHECK_EQ(prepare(), 0);
    CHECK(!ms_lineage_any(&allocation->lineage, 0, FAKE_GRANULE, MS_NOT_RESIDENT));
    CHECK_BYTES((void *)(uintptr_t)allocation->address, file.data, FAKE_GRANULE);
}

MS_TEST_BETWEEN(start, end, a_change_that_would_destroy_bytes_is_refused)
{
    ms_source_set_snapshot_limit(0);
    for (unsigned nth = 1; nth <= 8; nth++) { /* whatever is tried again */
        fake.total_bytes = 0;
        CHECK_EQ(prepare(), ETXTBSY);
    }
    fake.total_bytes = FAKE_GRANULE;
    CHECK_EQ(prepare(), 0);
}

struct writer {
    pthread_t thread;
    atomic_bool begins, is_done;
};

static void *write_file(void *argument)
{
    struct writer *writer = argument;
    atomic_store(&writer->begins, true);
    CHECK_EQ(prepare(), 0);
    atomic_store(&writer->is_done, true);
    return NULL;
}

static void start_writer(struct writer *writer)
{
    CHECK_EQ(pthread_create(&writer->thread, NULL, write_file, writer), 0);
    while (!atomic_load(&writer->begins))
        usleep(100);
    usleep(20000);
}

/* The first one waits for a claim; the second one finds that somebody is at it. */
MS_TEST_BETWEEN(start, end, who_changes_a_file_too_waits_until_it_is_prepared)
{
    static struct writer first, second;
    CHECK(ms_space_claim(allocation->address) == allocation);
    start_writer(&first);
    start_writer(&second);
    CHECK(!atomic_load(&first.is_done) && !atomic_load(&second.is_done));
    ms_space_release(allocation);
    pthread_join(first.thread, NULL);
    pthread_join(second.thread, NULL);
    CHECK(!ms_lineage_any(&allocation->lineage, 0, FAKE_GRANULE, MS_NOT_RESIDENT));
}

/* --- files that were deleted */

static void delete_file(void)
{
    CHECK_EQ(unlink(file.path), 0);
    ms_file_writes_prepare(MS_FILE_DELETED, "unlink", stat_of_file.st_dev, stat_of_file.st_ino);
}

static bool may_be_read(void)
{
    static unsigned char bytes[FAKE_GRANULE];
    const void *unused;
    return ms_source_read(file.source, 0, bytes, sizeof(bytes), &unused) == CUDA_SUCCESS;
}

static bool is_let_go(void)
{
    return !ms_source_may_be_of(stat_of_file.st_dev, stat_of_file.st_ino);
}

MS_TEST_BETWEEN(start, end, bytes_are_in_memory_when_their_file_is_deleted)
{
    delete_file();
    CHECK(!ms_lineage_any(&allocation->lineage, 0, FAKE_GRANULE, MS_NOT_RESIDENT));
    CHECK_BYTES((void *)(uintptr_t)allocation->address, file.data, FAKE_GRANULE);
    CHECK(is_let_go() && !may_be_read());
    CHECK(!ms_has_files());
}

/* Neither read nor kept: with its file they are lost, and reading them fails. */
MS_TEST(bytes_of_other_ranks_are_not_read_when_their_file_is_deleted)
{
    open_log(MS_INFO);
    start();
    fake_set(allocation, 0, FAKE_GRANULE,
             &(struct ms_content){.kind = MS_SOURCE, .locality = MS_REMOTE, .source = file.source});
    const uint64_t before = ms_counter_get(MS_COUNT_FILE_READ_BYTES);
    delete_file();
    CHECK_EQ(ms_counter_get(MS_COUNT_FILE_READ_BYTES), before);
    CHECK_EQ(allocation->lineage.remote_bytes, FAKE_GRANULE);
    CHECK_EQ(fake.physical_bytes, 0);
    CHECK(is_let_go() && !may_be_read());
    CHECK_EQ(count_log_lines("or deleted, after"), 1);
    CHECK_EQ(count_log_lines("checkpoint"), 0);
    end();
}

/* It is answered once, whoever finds it. */
MS_TEST(a_deleted_file_stays_where_there_is_no_room)
{
    dev_t device;
    ino_t inode;
    open_log(MS_INFO);
    start();
    ms_source_set_snapshot_limit(0);
    fake.total_bytes = 0;
    delete_file();
    CHECK(!is_let_go() && may_be_read());
    CHECK(!ms_source_close_find_deleted(&device, &inode));
    CHECK_EQ(count_log_lines("keeps its space"), 1);
    fake.total_bytes = FAKE_GRANULE;
    CHECK_EQ(prepare(), 0);
    CHECK_BYTES((void *)(uintptr_t)allocation->address, file.data, FAKE_GRANULE);
    end();
}

/* The file system is not asked of a file without a lease: a check shows it. */
MS_TEST_BETWEEN(start, end, a_check_finds_that_a_file_was_deleted)
{
    dev_t device;
    ino_t inode;
    CHECK(!ms_source_close_find_deleted(&device, &inode));
    CHECK_EQ(unlink(file.path), 0);
    CHECK(!ms_source_close_find_deleted(&device, &inode));
    CHECK(may_be_read());
    CHECK(ms_source_close_find_deleted(&device, &inode));
    CHECK(device == stat_of_file.st_dev && inode == stat_of_file.st_ino);
    ms_file_writes_prepare(MS_FILE_DELETED, NULL, device, inode);
    CHECK(!ms_source_close_find_deleted(&device, &inode));
    CHECK(!ms_lineage_any(&allocation->lineage, 0, FAKE_GRANULE, MS_NOT_RESIDENT));
    CHECK(is_let_go());
}
