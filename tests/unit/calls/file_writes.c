/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/calls/file_writes.h"

#include <pthread.h>
#include <stdatomic.h>

#include "runtime/base/heap.h"
#include "runtime/driver/flags.h"
#include "runtime/files/file.h"
#include "runtime/files/host_snapshot.h"
#include "runtime/files/lease_thread.h"
#include "runtime/fill/materialise.h"
#include "runtime/loading/source_read.h"
#include "runtime/memory/recorded_launch.h"
#include "runtime/memory/space.h"
#include "runtime/state/caller.h"
#include "runtime/state/counters.h"
#include "tests/unit/between.h"
#include "tests/unit/fake_driver.h"
#include "tests/unit/files/files.h"

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
    CHECK(!ms_lineage_any(ms_allocation_lineage(allocation), 0, FAKE_GRANULE, MS_NOT_RESIDENT));
    CHECK_BYTES((void *)(uintptr_t)allocation->address, file.data, FAKE_GRANULE);
}

MS_TEST_BETWEEN(start, end, a_change_that_would_destroy_bytes_is_refused)
{
    ms_host_snapshot_set_limit(0);
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
MS_TEST_BETWEEN(start, end, a_second_writer_waits_until_the_file_is_prepared)
{
    static struct writer first, second;
    CHECK(ms_space_claim(allocation->address) == allocation);
    start_writer(&first);
    start_writer(&second);
    CHECK(!atomic_load(&first.is_done) && !atomic_load(&second.is_done));
    ms_space_release(allocation);
    pthread_join(first.thread, NULL);
    pthread_join(second.thread, NULL);
    CHECK(!ms_lineage_any(ms_allocation_lineage(allocation), 0, FAKE_GRANULE, MS_NOT_RESIDENT));
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
    return !ms_file_may_be_of(stat_of_file.st_dev, stat_of_file.st_ino);
}

MS_TEST_BETWEEN(start, end, bytes_are_in_memory_when_their_file_is_deleted)
{
    delete_file();
    CHECK(!ms_lineage_any(ms_allocation_lineage(allocation), 0, FAKE_GRANULE, MS_NOT_RESIDENT));
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
    CHECK_EQ(ms_allocation_lineage(allocation)->remote_bytes, FAKE_GRANULE);
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
    ms_host_snapshot_set_limit(0);
    fake.total_bytes = 0;
    delete_file();
    CHECK(!is_let_go() && may_be_read());
    CHECK(!ms_lease_thread_find_deleted(&device, &inode));
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
    CHECK(!ms_lease_thread_find_deleted(&device, &inode));
    CHECK_EQ(unlink(file.path), 0);
    CHECK(!ms_lease_thread_find_deleted(&device, &inode));
    CHECK(may_be_read());
    CHECK(ms_lease_thread_find_deleted(&device, &inode));
    CHECK(device == stat_of_file.st_dev && inode == stat_of_file.st_ino);
    ms_file_writes_prepare(MS_FILE_DELETED, NULL, device, inode);
    CHECK(!ms_lease_thread_find_deleted(&device, &inode));
    CHECK(!ms_lineage_any(ms_allocation_lineage(allocation), 0, FAKE_GRANULE, MS_NOT_RESIDENT));
    CHECK(is_let_go());
}

/* --- what comes from the file, and what does not */

enum { GRANULES = 6, BYTES = GRANULES * FAKE_GRANULE };
static struct test_file another;
static struct ms_allocation *wide;

static void set(size_t first, size_t behind, struct ms_content content)
{
    fake_set(wide, first * FAKE_GRANULE, behind * FAKE_GRANULE, &content);
}

static struct ms_content of(struct ms_source *source, size_t offset)
{
    return (struct ms_content){.kind = MS_SOURCE, .source = source, .source_offset = offset};
}

/* Granules 1, 3 and 4 of the second allocation come from the file as well: 4 is in memory. */
static void start_wide(void)
{
    start();
    make_test_file(&another, "/tmp", FAKE_GRANULE);
    wide = fake_allocation(BYTES);
    set(0, 3, (struct ms_content){.kind = MS_FILL, .pattern = 0x09090909});
    fake_set(wide, FAKE_GRANULE + 10, 2 * FAKE_GRANULE - 10, &(struct ms_content){0});
    const struct ms_content middle = of(file.source, 100);
    fake_set(wide, FAKE_GRANULE + 10, 2 * FAKE_GRANULE - 200, &middle);
    set(3, 4, of(file.source, 0));
    struct ms_content cached = of(file.source, 0);
    cached.cached = true;
    set(4, 5, cached);
    memcpy((void *)(uintptr_t)(wide->address + 4 * (CUdeviceptr)FAKE_GRANULE), file.data,
           FAKE_GRANULE);
    set(5, 6, of(another.source, 0));
}

static void end_wide(void)
{
    fake_check_allocation(wide);
    fake_allocation_free(wide);
    ms_source_drop(another.source);
    end();
}

static struct ms_content wide_at(size_t offset)
{
    return ms_lineage_at(ms_allocation_lineage(wide), offset).content;
}

static void check_bytes_of_wide(void)
{
    const unsigned char *bytes = (const unsigned char *)(uintptr_t)wide->address;
    fake.total_bytes = 2 * BYTES + fake.physical_bytes;
    CHECK(ms_space_claim(wide->address) == wide);
    CHECK_EQ(ms_materialise(wide, FAKE_GRANULE, 5 * FAKE_GRANULE, MS_NEED_READ), CUDA_SUCCESS);
    ms_space_release(wide);
    CHECK(bytes[FAKE_GRANULE + 9] == 9 && bytes[2 * FAKE_GRANULE] == 9);
    CHECK_BYTES(bytes + FAKE_GRANULE + 10, file.data + 100, FAKE_GRANULE - 210);
    CHECK_BYTES(bytes + 3 * FAKE_GRANULE, file.data, FAKE_GRANULE);
    CHECK_BYTES(bytes + 4 * FAKE_GRANULE, file.data, FAKE_GRANULE);
}

MS_TEST_BETWEEN(start_wide, end_wide, a_change_brings_in_bytes_of_its_file_alone)
{
    CHECK_EQ(prepare(), 0);
    CHECK_EQ(ms_lineage_at(ms_allocation_lineage(allocation), 0).content.kind, MS_RESIDENT);
    CHECK_EQ(wide_at(FAKE_GRANULE + 10).kind, MS_RESIDENT);
    CHECK(wide_at(3 * FAKE_GRANULE).kind == MS_RESIDENT && !wide_at(4 * FAKE_GRANULE).cached);
    CHECK(wide_at(0).kind == MS_FILL && !wide_at(0).cached);
    CHECK(wide_at(5 * FAKE_GRANULE).kind == MS_SOURCE && !wide_at(5 * FAKE_GRANULE).cached);
    check_bytes_of_wide();
}

MS_TEST_BETWEEN(start_wide, end_wide, the_host_keeps_bytes_of_a_file_without_device_memory)
{
    ms_host_snapshot_set_limit(4 * BYTES);
    fake.total_bytes = fake.physical_bytes;
    CHECK_EQ(prepare(), 0);
    CHECK(is_let_go() && fake.physical_bytes <= FAKE_GRANULE);
    CHECK_EQ(wide_at(3 * FAKE_GRANULE).kind, MS_SOURCE);
    CHECK(ms_source_file(wide_at(3 * FAKE_GRANULE).source) == NULL);
    CHECK(wide_at(4 * FAKE_GRANULE).kind == MS_RESIDENT ||
          ms_source_file(wide_at(4 * FAKE_GRANULE).source) == NULL);
    CHECK(wide_at(5 * FAKE_GRANULE).source == another.source);
    check_bytes_of_wide();
}

MS_TEST_BETWEEN(start_wide, end_wide, a_change_of_another_file_brings_nothing_in)
{
    CHECK_EQ(ms_file_writes_prepare(MS_FILE_CHANGES, "open", stat_of_file.st_dev,
                                    stat_of_file.st_ino + 1000000),
             0);
    CHECK(!is_let_go() && wide_at(3 * FAKE_GRANULE).kind == MS_SOURCE);
    CHECK(!wide_at(3 * FAKE_GRANULE).cached);
}

/* A launch that is recorded over bytes of the file, or reads some, needs it; its result is nowhere
 * else. */
MS_TEST(the_host_cannot_keep_bytes_that_a_recorded_launch_needs)
{
    for (int way = 0; way < 3; way++) {
        start();
        ms_host_snapshot_set_limit(0);
        const struct ms_content whole = of(file.source, 0);
        struct ms_recorded_launch *recorded = ms_recorded_launch_create();
        CHECK(recorded != NULL && ms_lineage_init(&recorded->before, FAKE_GRANULE));
        recorded->context = FAKE_CONTEXT;
        recorded->input = ms_heap_zalloc(sizeof(*recorded->input));
        CHECK(recorded->input != NULL);
        CHECK(ms_lineage_init(&recorded->input->lineage, FAKE_GRANULE));
        if (way < 2)
            CHECK(ms_lineage_set(way == 0 ? &recorded->before : &recorded->input->lineage, 100, 200,
                                 &whole));
        fake_set(allocation, 0, FAKE_GRANULE,
                 &(struct ms_content){.kind = MS_LAUNCHED, .recorded = recorded});
        ms_recorded_launch_drop(recorded);
        fake.total_bytes = 0;
        CHECK_EQ(prepare(), way < 2 ? ETXTBSY : 0);
        CHECK_EQ(ms_lineage_at(ms_allocation_lineage(allocation), 0).content.kind, MS_LAUNCHED);
        fake.total_bytes = BYTES;
        end();
    }
}

/* --- what it answers */

static const CUresult losses[] = {CUDA_ERROR_DEINITIALIZED,         CUDA_ERROR_CONTEXT_IS_DESTROYED,
                                  CUDA_ERROR_ECC_UNCORRECTABLE,     CUDA_ERROR_HARDWARE_STACK_ERROR,
                                  CUDA_ERROR_ILLEGAL_ADDRESS,       CUDA_ERROR_ILLEGAL_INSTRUCTION,
                                  CUDA_ERROR_INVALID_ADDRESS_SPACE, CUDA_ERROR_INVALID_PC,
                                  CUDA_ERROR_LAUNCH_FAILED,         CUDA_ERROR_LAUNCH_TIMEOUT,
                                  CUDA_ERROR_MISALIGNED_ADDRESS,    CUDA_ERROR_ASSERT};

static void check_lost(size_t first, size_t behind)
{
    for (size_t i = first; i < behind; i++) {
        start();
        ms_host_snapshot_set_limit(0);
        fake_fail(FAKE_mem_create, 1, losses[i]);
        CHECK_EQ(prepare(), 0);
        end();
    }
}

STORY_ALONE(a_change_loses_no_bytes_of_a_lost_device,
            EQUALS(sizeof(losses) / sizeof(losses[0]), 12), check_lost(0, 6))

MS_TEST(a_change_loses_no_bytes_however_the_device_was_lost)
{
    check_lost(6, 12);
}

STORY_BETWEEN(start, end, a_change_after_another_error_still_needs_the_bytes,
              ms_host_snapshot_set_limit(0), fake_fail(FAKE_mem_create, 1, CUDA_ERROR_UNKNOWN),
              EQUALS(prepare(), ETXTBSY), EQUALS(prepare(), 0))

static CUresult not_permitted(size_t *free_bytes, size_t *total_bytes)
{
    CHECK(free_bytes != NULL && total_bytes != NULL);
    return CUDA_ERROR_NOT_PERMITTED;
}

/* Others may wait for the thread. */
MS_TEST_BETWEEN(start, end, a_change_in_a_host_function_asks_the_driver_for_nothing)
{
    open_log(MS_INFO);
    ms_driver.mem_get_info = not_permitted;
    ms_host_snapshot_set_limit(0);
    CHECK_EQ(prepare(), ETXTBSY);
    CHECK_EQ(count_log_lines("in a host function"), 1);
    ms_host_snapshot_set_limit(FAKE_GRANULE);
    CHECK_EQ(prepare(), 0);
    CHECK_EQ(fake.calls[FAKE_mem_create], 0);
    CHECK(is_let_go() &&
          ms_lineage_at(ms_allocation_lineage(allocation), 0).content.kind == MS_SOURCE);
    CHECK_EQ(count_log_lines("so 65536 bytes that come from it were materialised"), 1);
}

static int prepare_for(enum ms_file_change what, const char *call)
{
    return ms_file_writes_prepare(what, call, stat_of_file.st_dev, stat_of_file.st_ino);
}

MS_TEST_BETWEEN(start, end, the_log_says_who_loses_which_bytes_of_a_file)
{
    open_log(MS_INFO);
    ms_host_snapshot_set_limit(0);
    fake.total_bytes = 0;
    CHECK_EQ(prepare_for(MS_FILE_CHANGES, NULL), ETXTBSY);
    CHECK_EQ(count_log_lines("another process is about to change it"), 1);
    CHECK_EQ(prepare_for(MS_FILE_LEASED, "fcntl"), ETXTBSY);
    CHECK_EQ(count_log_lines("the shim's lease is given up"), 1);
    CHECK_EQ(prepare_for(MS_FILE_CHANGES, "truncate"), ETXTBSY);
    CHECK_EQ(count_log_lines("truncate fails with ETXTBSY"), 1);
    fake.total_bytes = FAKE_GRANULE;
    CHECK_EQ(prepare_for(MS_FILE_CHANGES, "truncate"), 0);
    CHECK_EQ(count_log_lines("it is about to change (truncate), so 65536 bytes"), 1);
    CHECK_EQ(prepare_for(MS_FILE_CHANGES, "truncate"), 0); /* it is known no more */
    CHECK_EQ(count_log_lines("so 65536 bytes"), 1);
}

/* Its locks and claims are this thread's own. */
MS_TEST_BETWEEN(start, end, a_signal_handler_within_a_call_of_the_shim_does_nothing)
{
    ms_calls_inside++;
    CHECK_EQ(prepare(), 0);
    CHECK(!is_let_go());
    ms_calls_inside--;
    ms_caller = "the call around it";
    CHECK_EQ(prepare(), 0);
    CHECK(is_let_go() && strcmp(ms_caller, "the call around it") == 0 && ms_calls_inside == 0);
    ms_caller = "a call";
}
