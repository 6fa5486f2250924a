/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/calls/file_writes.h"

#include <pthread.h>
#include <stdatomic.h>

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
    return ms_prepare_file_write("open", stat_of_file.st_dev, stat_of_file.st_ino);
}

MS_TEST(bytes_are_in_memory_before_their_file_changes)
{
    start();
    CHECK_EQ(prepare(), 0);
    CHECK(ms_lineage_is_resident(&allocation->lineage, 0, FAKE_GRANULE));
    CHECK_BYTES((void *)(uintptr_t)allocation->address, file.data, FAKE_GRANULE);
    end();
}

MS_TEST(a_change_that_would_destroy_bytes_is_refused)
{
    start();
    ms_source_set_snapshot_limit(0);
    for (unsigned nth = 1; nth <= 8; nth++) { /* whatever is tried again */
        fake.total_bytes = 0;
        CHECK_EQ(prepare(), ETXTBSY);
    }
    fake.total_bytes = FAKE_GRANULE;
    CHECK_EQ(prepare(), 0);
    end();
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
MS_TEST(who_changes_a_file_too_waits_until_it_is_prepared)
{
    static struct writer first, second;
    start();
    CHECK(ms_space_claim(allocation->address) == allocation);
    start_writer(&first);
    start_writer(&second);
    CHECK(!atomic_load(&first.is_done) && !atomic_load(&second.is_done));
    ms_space_release(allocation);
    pthread_join(first.thread, NULL);
    pthread_join(second.thread, NULL);
    CHECK(ms_lineage_is_resident(&allocation->lineage, 0, FAKE_GRANULE));
    end();
}
