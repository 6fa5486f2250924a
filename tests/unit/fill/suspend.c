/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/fill/suspend.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "runtime/config/config.h"
#include "runtime/driver/flags.h"
#include "runtime/driver/quiesce.h"
#include "runtime/fill/hold_up.h"
#include "runtime/fill/origins.h"
#include "runtime/fill/restore.h"
#include "runtime/memory/allocation.h"
#include "runtime/memory/carve.h"
#include "runtime/memory/memory_internal.h"
#include "runtime/memory/parked.h"
#include "runtime/order/examining.h"
#include "tests/unit/between.h"
#include "tests/unit/counted_heap.h"
#include "tests/unit/fake_driver.h"
#include "tests/unit/files/files.h"

enum { G = FAKE_GRANULE, GRANULES = 8, BYTES = GRANULES * G, PIECE_BYTES = 4 << 20 };

static const struct ms_content fill = {.kind = MS_FILL, .pattern = 0x07070707},
                               resident = {.kind = MS_RESIDENT}, undefined = {.kind = MS_UNDEFINED};
static struct ms_allocation *allocation;
static struct ms_fault fault;
static struct ms_suspended told;

/* How often it is not quiet after all when everything is claimed. */
static int busy_times, asked_times;
bool __real_ms_hold_up_is_quiet(void);
bool __wrap_ms_hold_up_is_quiet(void);
bool __wrap_ms_hold_up_is_quiet(void)
{
    asked_times++;
    return busy_times-- <= 0 && __real_ms_hold_up_is_quiet();
}

/* Who resumes pauses between its attempts. */
static int pauses, pauses_until_room;
static size_t room;
int __real_nanosleep(const struct timespec *time, struct timespec *left);
int __wrap_nanosleep(const struct timespec *time, struct timespec *left);
int __wrap_nanosleep(const struct timespec *time, struct timespec *left)
{
    pauses++;
    CHECK(pauses < 1000);
    if (pauses == pauses_until_room)
        fake.total_bytes = room;
    return __real_nanosleep(&(struct timespec){.tv_nsec = time->tv_nsec / 50}, left);
}

static void start(void)
{
    fake_start();
    ms_config.suspend_ms = 60000;
    ms_config.suspend_bytes = 0;
    ms_config.resume_ms = 0;
    ms_examining_add_context(FAKE_CONTEXT, 0);
    ms_quiesce_start();
    allocation = fake_allocation(BYTES);
}

static void *call(void *unused)
{
    ms_quiesce_enter();
    ms_quiesce_leave();
    return unused;
}

/* Calls of other threads get to the driver. */
static void check_calls_pass(void)
{
    pthread_t thread;
    CHECK_EQ(pthread_create(&thread, NULL, call, NULL), 0);
    CHECK_EQ(pthread_join(thread, NULL), 0);
}

static void end(void)
{
    check_calls_pass();
    fake_check_allocation(allocation);
    fake_allocation_free(allocation);
    CHECK(!ms_defers_any()); /* each begin of it had an end */
    fake_check_empty();
}

static unsigned char *byte_at(size_t offset)
{
    return (unsigned char *)(uintptr_t)(allocation->address + offset);
}

static struct ms_extent at(size_t offset)
{
    return ms_lineage_at(ms_allocation_lineage(allocation), offset);
}

/* Resident bytes of that value. */
static void write_bytes(size_t begin, size_t end_, int value)
{
    fake_set(allocation, begin, end_, &resident);
    memset(byte_at(begin), value, end_ - begin);
}

static void check_bytes(size_t begin, size_t end_, int value)
{
    for (size_t offset = begin; offset < end_; offset++)
        CHECK_EQ(byte_at(offset)[0], value);
}

static void suspend_to(const char *folder)
{
    if (!ms_suspend(folder, &told, &fault))
        ms_test_fail(__FILE__, __LINE__, "%s", fault.text);
    CHECK(ms_suspend_is_active());
    CHECK_EQ(fake.pushed_contexts, 0);
    CHECK_EQ(told.stays_exported + told.stays_mapped + told.stays_otherwise,
             ms_backing_bytes(ms_allocation_backing(allocation)));
}

static void check_told(size_t freed, size_t replayed, size_t stored, size_t zeros)
{
    CHECK_EQ(told.freed, freed);
    CHECK_EQ(told.replayed, replayed);
    CHECK(told.made <= replayed);
    CHECK_EQ(told.stored, stored);
    CHECK_EQ(told.zeros, zeros);
}

static void resume(void)
{
    CHECK_EQ(ms_suspend_take_back(), CUDA_SUCCESS);
    CHECK(!ms_suspend_is_active() && !ms_restore_is_due(allocation));
}

static void fails_with(const char *folder, const char *why)
{
    const size_t backed = ms_backing_bytes(ms_allocation_backing(allocation));
    const uint64_t kept = ms_allocation_lineage(allocation)->resident_bytes;
    CHECK(!ms_suspend(folder, &told, &fault));
    if (strstr(fault.text, why) == NULL)
        ms_test_fail(__FILE__, __LINE__, "expected %s, found %s", why, fault.text);
    CHECK_EQ(ms_backing_bytes(ms_allocation_backing(allocation)), backed);
    CHECK_EQ(ms_allocation_lineage(allocation)->resident_bytes, kept);
    CHECK(!ms_suspend_is_active());
    CHECK(ms_space_try_claim(allocation->address) == allocation); /* nobody holds it */
    ms_space_release(allocation);
    check_calls_pass();
}

/* --- what goes, and comes back */

MS_TEST(a_process_without_an_allocation_suspends_nothing)
{
    fake_start();
    told.freed = 1;
    CHECK(ms_suspend(NULL, &told, &fault));
    check_told(0, 0, 0, 0);
    CHECK(!ms_suspend_is_active());
    CHECK_EQ(ms_suspend_take_back(), CUDA_SUCCESS);
}

MS_TEST_BETWEEN(start, end, suspending_stores_written_bytes_and_brings_them_back)
{
    write_bytes(G, 3 * G, 5);
    write_bytes(4 * G, 5 * G, 0);
    fake_set(allocation, 6 * G, 7 * G, &fill);
    suspend_to(NULL);
    check_told(3 * G, 0, 2 * G, G);
    CHECK_EQ(fake.physical_bytes, 0);
    CHECK(ms_restore_is_due(allocation));
    CHECK(at(G).content.kind == MS_SOURCE && at(G).end == 3 * G);
    CHECK(at(4 * G).content.kind == MS_FILL && at(4 * G).content.pattern == 0);
    resume();
    check_bytes(G, 3 * G, 5);
    check_bytes(4 * G, 5 * G, 0);
    check_bytes(6 * G, 7 * G, 7);
    CHECK_EQ(ms_allocation_lineage(allocation)->resident_bytes, 4 * G);
    CHECK_EQ(ms_allocation_backing(allocation)->backed_bytes,
             4 * G); /* what was never written has none */
}

MS_TEST_BETWEEN(start, end, suspending_reads_no_allocation_without_written_bytes)
{
    fake_set(allocation, 0, 2 * G, &fill);
    suspend_to(NULL);
    check_told(0, 0, 0, 0);
    CHECK_EQ(fake.calls[FAKE_memcpy_dtoh_async] + fake.calls[FAKE_mem_host_alloc], 0);
    resume();
    CHECK_EQ(ms_allocation_lineage(allocation)->resident_bytes, 0); /* it was not before, either */
}

MS_TEST_BETWEEN(start, end, the_log_tells_of_suspending_and_of_coming_back)
{
    open_log(MS_DEBUG);
    write_bytes(0, G, 5);
    suspend_to(NULL);
    CHECK_EQ(count_log_lines("suspended: 65536 bytes of device memory were given back; 0 come "
                             "back from files and recorded launches, 65536 wait outside"),
             1);
    CHECK_EQ(count_log_lines("the suspended data is back"), 0);
    resume();
    CHECK_EQ(count_log_lines("the suspended data is back"), 1);
    resume();
    CHECK_EQ(count_log_lines("the suspended data is back"), 1);
}

MS_TEST_BETWEEN(start, end, suspending_stores_bytes_in_a_folder_as_well)
{
    write_bytes(0, 2 * G, 5);
    fails_with("/tmp/there/is/no/such/folder", "No such file");
    suspend_to("/tmp");
    check_told(2 * G, 0, 2 * G, 0);
    resume();
    check_bytes(0, 2 * G, 5);
}

MS_TEST_BETWEEN(start, end, suspending_stores_no_more_than_its_limit)
{
    write_bytes(0, 2 * G, 5);
    write_bytes(2 * G, 3 * G, 0);
    ms_config.suspend_bytes = 2 * G - 1;
    fails_with(NULL, "METASHARD_SUSPEND_BYTES");
    check_bytes(0, 2 * G, 5);
    ms_config.suspend_bytes = 2 * G;
    suspend_to(NULL);
    resume();
}

/* Each of them takes a page of the store. */
MS_TEST_BETWEEN(start, end, the_store_has_room_for_small_pieces)
{
    enum { PIECES = 30, STEP = 2048 };
    fake_set(allocation, 0, G, &(struct ms_content){.kind = MS_FILL, .cached = true});
    for (size_t i = 0; i < PIECES; i++)
        write_bytes(i * STEP, i * STEP + 8, 5);
    suspend_to(NULL);
    check_told(G, G - PIECES * 8, PIECES * 8, 0);
    resume();
    for (size_t i = 0; i < PIECES; i++)
        check_bytes(i * STEP, i * STEP + 8, 5);
}

static void start_large(void)
{
    start();
    fake_allocation_free(allocation);
    allocation = fake_allocation((size_t)2 * PIECE_BYTES);
}

/* From no multiple of it on. */
MS_TEST_BETWEEN(start_large, end, suspending_reads_a_large_extent_in_pieces)
{
    const size_t begin = G, middle = begin + PIECE_BYTES, last = middle + 2 * G;
    write_bytes(begin, last, 0);
    memset(byte_at(middle), 5, G);
    suspend_to(NULL);
    check_told(last - begin, 0, 2 * G, PIECE_BYTES);
    CHECK_EQ(fake.work_count, 2);
    CHECK(fake.work[0].from == allocation->address + begin && fake.work[0].bytes == PIECE_BYTES);
    CHECK(fake.work[1].from == allocation->address + middle && fake.work[1].bytes == 2 * G);
    resume();
    check_bytes(begin, middle, 0);
    check_bytes(middle, middle + G, 5);
    check_bytes(middle + G, last, 0);
}

MS_TEST_BETWEEN(start_large, end, a_whole_piece_is_read_at_once)
{
    write_bytes(0, PIECE_BYTES, 5);
    suspend_to(NULL);
    CHECK_EQ(fake.work_count, 1);
    CHECK_EQ(fake.work[0].bytes, PIECE_BYTES);
    resume();
}

MS_TEST_BETWEEN(start, end, suspending_takes_several_allocations)
{
    struct ms_allocation *others[20];
    for (int i = 0; i < 20; i++) {
        others[i] = fake_allocation(G);
        fake_set(others[i], 0, G, &resident);
        memset((void *)(uintptr_t)others[i]->address, i + 1, G);
    }
    write_bytes(0, G, 30);
    CHECK(ms_suspend(NULL, &told, &fault));
    check_told(21 * G, 0, 21 * G, 0);
    CHECK_EQ(fake.physical_bytes, 0);
    resume();
    check_bytes(0, G, 30);
    for (int i = 0; i < 20; i++) {
        const unsigned char *bytes = (const unsigned char *)(uintptr_t)others[i]->address;
        CHECK(bytes[0] == i + 1 && bytes[G - 1] == i + 1);
        fake_allocation_free(others[i]);
    }
}

MS_TEST_BETWEEN(start, end, suspending_twice_gives_back_memory_taken_since)
{
    write_bytes(0, 2 * G, 5);
    suspend_to(NULL);
    suspend_to(NULL);
    check_told(0, 0, 0, 0);
    write_bytes(4 * G, 5 * G, 6);
    suspend_to(NULL);
    check_told(G, 0, G, 0);
    resume();
    check_bytes(0, 2 * G, 5);
    check_bytes(4 * G, 5 * G, 6);
}

/* --- what comes back from files */

static struct test_file file;

/* The file's bytes are resident from a granule on, and that they came from there is known. */
static void read_file(void)
{
    start();
    make_test_file(&file, "/tmp", 4 * G);
    const struct ms_content content = {.kind = MS_SOURCE, .cached = true, .source = file.source};
    fake_set(allocation, G, 5 * G, &content);
    memcpy(byte_at(G), file.data, 4 * G);
    const struct ms_extent extent = at(G);
    ms_origins_note(allocation, &extent);
    fake_set(allocation, G, 5 * G, &resident);
}

static void forget_file(void)
{
    end();
    ms_source_drop(file.source);
}

MS_TEST_BETWEEN(read_file, forget_file, suspending_stores_changed_bytes_of_a_file_alone)
{
    memset(byte_at(2 * G), 9, G);
    suspend_to(NULL);
    check_told(4 * G, 3 * G, G, 0);
    resume();
    CHECK_BYTES(byte_at(G), file.data, G);
    check_bytes(2 * G, 3 * G, 9);
    CHECK_BYTES(byte_at(3 * G), file.data + 2 * G, 2 * G);
}

/* What was found to be the file's is resident again. */
MS_TEST_BETWEEN(read_file, forget_file, suspending_that_fails_leaves_all_as_it_was)
{
    memset(byte_at(2 * G), 9, G);
    ms_config.suspend_bytes = 1;
    fails_with(NULL, "METASHARD_SUSPEND_BYTES");
    CHECK(!ms_restore_is_due(allocation));
    CHECK_EQ(ms_allocation_lineage(allocation)->cached_bytes, 0);
    CHECK_BYTES(byte_at(G), file.data, G);
}

MS_TEST_BETWEEN(start, end, a_suspended_process_stays_so_after_a_failure)
{
    write_bytes(0, G, 5);
    suspend_to(NULL);
    write_bytes(2 * G, 3 * G, 6);
    ms_config.suspend_bytes = 1;
    CHECK(!ms_suspend(NULL, &told, &fault));
    CHECK(ms_suspend_is_active() && at(0).content.kind == MS_SOURCE);
    CHECK(at(2 * G).content.kind == MS_RESIDENT);
    resume();
    check_bytes(0, G, 5);
    check_bytes(2 * G, 3 * G, 6);
}

/* --- what stays */

static void check_stays(size_t exported, size_t mapped, size_t otherwise)
{
    CHECK_EQ(told.stays_exported, exported);
    CHECK_EQ(told.stays_mapped, mapped);
    CHECK_EQ(told.stays_otherwise, otherwise);
}

MS_TEST_BETWEEN(start, end, suspending_leaves_memory_other_processes_use)
{
    write_bytes(0, G, 5);
    fake_set(allocation, G, 3 * G, &(struct ms_content){.kind = MS_FILL, .cached = true});
    for (int i = 0; i < 2; i++) {
        ms_allocation_set(allocation, MS_TRAIT_IS_EXPORTED, i == 0);
        allocation->is_opened = i == 1;
        suspend_to(NULL);
        check_told(0, 0, 0, 0);
        check_stays(3 * G, 0, 0);
        CHECK(!ms_restore_is_due(allocation));
        CHECK_EQ(ms_allocation_lineage(allocation)->resident_bytes, G);
        resume();
    }
    allocation->is_opened = false;
    CHECK_EQ(fake.work_count, 0);
}

MS_TEST_BETWEEN(start, end, suspending_leaves_memory_behind_a_handle_of_the_program)
{
    write_bytes(0, G, 5);
    write_bytes(G, 3 * G, 6);
    write_bytes(3 * G, 4 * G, 7);
    ms_backing_chunk(&MS_OWN(allocation)->backing, G)->is_pinned = true;
    suspend_to(NULL);
    check_told(2 * G, 0, 2 * G, 0);
    check_stays(0, 2 * G, 0);
    CHECK_EQ(at(G).content.kind, MS_RESIDENT);
    CHECK_EQ(fake.work_count, 2);
    resume();
    check_bytes(0, G, 5);
    check_bytes(G, 3 * G, 6);
    check_bytes(3 * G, 4 * G, 7);
}

/* --- blocks */

/* Granules 0 and 1 are blocks, 2 was one. */
static void carve(void)
{
    start();
    CHECK(ms_space_claim(allocation->address) == allocation);
    for (size_t i = 0; i < 3; i++)
        CHECK_EQ(ms_carve_take(allocation, i * G, (i + 1) * G), MS_CARVED);
    ms_space_release(allocation);
    for (size_t i = 0; i < 3; i++)
        write_bytes(i * G, (i + 1) * G, 5);
    size_t block_end;
    CHECK(ms_space_claim(allocation->address) == allocation);
    CHECK(ms_carve_return(allocation, 2 * G, &block_end));
    ms_space_release(allocation);
}

MS_TEST_BETWEEN(carve, end, suspending_reads_no_memory_blocks_left_behind)
{
    suspend_to(NULL);
    check_told(3 * G, 0, 2 * G, 0);
    CHECK_EQ(ms_carve_leftover_bytes(), 0);
    CHECK(!MS_OWN(allocation)->blocks.strayed);
    resume();
    check_bytes(0, 2 * G, 5);
    CHECK_EQ(ms_allocation_backing(allocation)->backed_bytes, 2 * G);
}

/* Where the blocks begin: what stands before them is in none. */
MS_TEST_BETWEEN(start, end, suspending_an_allocation_of_blocks_strays_nowhere)
{
    CHECK(ms_space_claim(allocation->address) == allocation);
    CHECK_EQ(ms_carve_take(allocation, G, 3 * G), MS_CARVED);
    ms_space_release(allocation);
    write_bytes(G, 3 * G, 5);
    suspend_to(NULL);
    CHECK(!MS_OWN(allocation)->blocks.strayed);
    resume();
    check_bytes(G, 3 * G, 5);
}

MS_TEST_BETWEEN(carve, end, memory_a_graph_uses_in_no_block_comes_back)
{
    ms_allocation_set(allocation, MS_TRAIT_KEEPS_DEAD, true);
    ms_carve_set_leftover(allocation, 0);
    suspend_to(NULL);
    CHECK_EQ(told.stored, 3 * G);
    CHECK(MS_OWN(allocation)->blocks.strayed);
    resume();
    check_bytes(0, 3 * G, 5);
}

/* --- parked bytes, and the sink */

static struct ms_parked *park(size_t begin, size_t end_, bool is_filled)
{
    struct ms_parked *parked;
    CHECK_EQ(ms_parked_create(FAKE_CONTEXT, 0, 2 * G, is_filled, &parked), CUDA_SUCCESS);
    unsigned char *bytes = (unsigned char *)(uintptr_t)ms_parked_backing(parked)->address;
    memset(bytes, 1, G);
    memset(bytes + G, 2, G);
    const struct ms_content content = {.kind = MS_PARKED, .parked = parked, .source_offset = G};
    fake_set(allocation, begin, end_, &content);
    ms_parked_drop(parked);
    return parked;
}

MS_TEST_BETWEEN(start, end, parked_bytes_wait_outside_as_well)
{
    write_bytes(0, G, 5);
    park(3 * G, 4 * G, true);
    CHECK_EQ(fake.physical_bytes, 3 * G);
    suspend_to(NULL);
    CHECK_EQ(told.stored, 2 * G);
    CHECK_EQ(fake.physical_bytes, 0);
    resume();
    check_bytes(3 * G, 4 * G, 2);
}

MS_TEST_BETWEEN(start, end, parked_bytes_alone_have_room)
{
    park(0, G, true);
    park(2 * G, 3 * G, true);
    suspend_to(NULL);
    CHECK_EQ(told.stored, 2 * G);
    CHECK_EQ(fake.physical_bytes, 0);
    resume();
    check_bytes(0, G, 2);
    check_bytes(2 * G, 3 * G, 2);
}

static CUevent new_event(void)
{
    CUevent event;
    CHECK_EQ(ms_driver.event_create(&event, CU_EVENT_DISABLE_TIMING), CUDA_SUCCESS);
    return event;
}

MS_TEST_BETWEEN(start, end, suspending_fails_while_an_open_group_receives)
{
    write_bytes(0, G, 5);
    struct ms_parked *parked = park(3 * G, 4 * G, false);
    fails_with(NULL, "an NCCL group of the program is open");
    ms_parked_attach_event(parked, new_event());
    suspend_to(NULL);
    CHECK_EQ(told.stored, 2 * G);
    resume();
}

MS_TEST_BETWEEN(start, end, the_sink_of_an_open_group_cannot_go)
{
    static const struct ms_range range = {G, 2 * G};
    struct ms_sink_mapping *sink;
    CHECK_EQ(ms_backing_lend(ms_allocation_memory(allocation), NULL, &range, 1, FAKE_CONTEXT,
                             &sink),
             CUDA_SUCCESS);
    fails_with(NULL, "an NCCL group of the program is open");
    ms_backing_lent(ms_allocation_memory(allocation), sink, new_event());
    suspend_to(NULL);
    CHECK_EQ(fake.physical_bytes, 0); /* nor does the sink's granule stay */
    resume();
}

/* --- what fails */

MS_TEST_BETWEEN(start, end, suspending_fails_in_verify_mode)
{
    write_bytes(0, G, 5);
    ms_config.mode = MS_VERIFY;
    fails_with(NULL, "METASHARD=verify");
    ms_config.mode = MS_ON;
}

MS_TEST_BETWEEN(start, end, suspending_fails_during_a_capture)
{
    write_bytes(0, G, 5);
    atomic_store(&ms_hot.captures, 1);
    fails_with(NULL, "captured");
    CHECK_EQ(asked_times, 0);
    atomic_store(&ms_hot.captures, 0);
}

MS_TEST_BETWEEN(start, end, suspending_tries_a_busy_device_again)
{
    write_bytes(0, 2 * G, 5);
    busy_times = 3;
    suspend_to(NULL);
    CHECK_EQ(asked_times, 4);
    check_told(2 * G, 0, 2 * G, 0);
    resume();
}

MS_TEST_BETWEEN(start, end, suspending_fails_if_the_device_is_always_busy)
{
    write_bytes(0, 2 * G, 5);
    busy_times = 1000;
    const int before = live;
    fails_with(NULL, "MetaShard itself keeps the device busy");
    CHECK_EQ(asked_times, 100);
    CHECK_EQ(live, before);
    busy_times = 0;
}

MS_TEST_BETWEEN(start, end, suspending_fails_if_memory_cannot_be_read)
{
    write_bytes(0, G, 5);
    fake_fail(FAKE_memcpy_dtoh_async, 1, CUDA_ERROR_LAUNCH_FAILED);
    fails_with(NULL, "device memory cannot be read: CUDA error 719");
    fake.wait_result = CUDA_ERROR_ILLEGAL_ADDRESS;
    fails_with(NULL, "device memory cannot be read: CUDA error 700");
    fake_fail(FAKE_memcpy_dtoh_async, 1, CUDA_ERROR_LAUNCH_FAILED);
    fails_with(NULL, "device memory cannot be read: CUDA error 719");
    CHECK(fake_has_failed());
    fake.wait_result = CUDA_SUCCESS;
    suspend_to(NULL);
    resume();
    check_bytes(0, G, 5);
}

MS_TEST_BETWEEN(start, end, suspending_fails_without_a_stream)
{
    write_bytes(0, G, 5);
    fake_fail(FAKE_stream_create, 1, CUDA_ERROR_OUT_OF_MEMORY);
    fails_with(NULL, "out of host memory");
    CHECK(fake_has_failed());
    CHECK_EQ(fake.pushed_contexts, 0);
}

MS_TEST_BETWEEN(start, end, a_context_that_cannot_be_used_is_told)
{
    write_bytes(0, G, 5);
    allocation->context = (CUcontext)2;
    fake_fail(FAKE_ctx_push_current, 1, CUDA_ERROR_INVALID_CONTEXT);
    fails_with(NULL, "a context of the program cannot be used");
    CHECK(fake_has_failed());
    allocation->context = FAKE_CONTEXT;
}

/* For each piece of host memory: all is as it was, or gone; nothing is lost, and nothing leaks. */
MS_TEST_BETWEEN(start, end, suspending_without_host_memory_loses_nothing)
{
    bool has_all = false;
    write_bytes(0, 2 * G, 5);
    write_bytes(3 * G, 4 * G, 0);
    suspend_to(NULL); /* makes what is kept */
    resume();
    const int before = live;
    int refused = 0;
    for (int pieces = 0; !has_all; pieces++) {
        may_make = pieces;
        const bool is_good = ms_suspend(NULL, &told, &fault);
        has_all = may_make >= 0;
        may_make = 1000000;
        refused += !is_good;
        CHECK(is_good || strcmp(fault.text, "out of host memory") == 0);
        CHECK_EQ(is_good, ms_suspend_is_active());
        CHECK(is_good || live == before);
        if (is_good)
            CHECK_EQ(told.stays_otherwise, ms_backing_bytes(ms_allocation_backing(allocation)));
        CHECK_EQ(ms_suspend_take_back(), CUDA_SUCCESS);
        check_bytes(0, 2 * G, 5);
        check_bytes(3 * G, 4 * G, 0);
        CHECK_EQ(live, before);
    }
    CHECK(refused > 3);
}

/* There is memory for the first list of what is claimed, and for no longer one. */
MS_TEST_BETWEEN(start, end, suspending_releases_claims_if_it_cannot_claim_all)
{
    enum { MANY = 40 };
    struct ms_allocation *others[MANY];
    for (int i = 0; i < MANY; i++)
        others[i] = fake_allocation(G);
    const int before = live;
    may_make = 1;
    fails_once = true;
    fails_with(NULL, "out of host memory");
    fails_once = false;
    may_make = 1000000;
    CHECK_EQ(live, before);
    for (int i = 0; i < MANY; i++)
        fake_allocation_free(others[i]);
}

/* --- what comes back needs room */

MS_TEST_BETWEEN(start, end, coming_back_without_room_takes_nothing_from_others)
{
    open_log(MS_ERROR);
    write_bytes(0, 3 * G, 5);
    suspend_to(NULL);
    const unsigned creations = fake.calls[FAKE_mem_create];
    fake.total_bytes = 3 * G - 1;
    pauses = 0;
    CHECK_EQ(ms_suspend_take_back(), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK(ms_suspend_is_active() && ms_restore_is_due(allocation));
    CHECK_EQ(fake.calls[FAKE_mem_create], creations);
    CHECK_EQ(pauses, 0);
    CHECK_EQ(count_log_lines("this process is suspended, and the device has no memory"), 1);
    fake.total_bytes = 3 * G;
    fake.calls[FAKE_mem_get_info] = fake.calls[FAKE_ctx_push_current] = 0;
    resume();
    check_bytes(0, 3 * G, 5);
    CHECK_EQ(count_log_lines("suspended"), 1);
    CHECK_EQ(fake.calls[FAKE_mem_get_info], 1); /* for the one device that needs some */
}

MS_TEST_BETWEEN(start, end, memory_is_waited_for_up_to_a_time)
{
    write_bytes(0, 3 * G, 5);
    suspend_to(NULL);
    fake.total_bytes = G;
    ms_config.resume_ms = 3;
    CHECK_EQ(ms_suspend_take_back(), CUDA_ERROR_OUT_OF_MEMORY);
    ms_config.resume_ms = 600000;
    pauses = 0;
    pauses_until_room = 3;
    room = 3 * G;
    resume();
    CHECK_EQ(pauses, 3);
}

/* It has bytes that can be restored, as many granules as that. */
static struct ms_allocation *add_cached(size_t granules)
{
    struct ms_allocation *other = fake_allocation(granules * G);
    fake_set(other, 0, granules * G, &(struct ms_content){.kind = MS_FILL, .cached = true});
    return other;
}

MS_TEST_BETWEEN(start, end, coming_back_makes_room_with_restorable_memory)
{
    write_bytes(0, 3 * G, 5);
    suspend_to(NULL);
    struct ms_allocation *other = add_cached(2);
    fake.total_bytes = 3 * G;
    resume();
    CHECK_EQ(ms_allocation_backing(other)->backed_bytes, 0);
    check_bytes(0, 3 * G, 5);
    fake_allocation_free(other);
}

MS_TEST_BETWEEN(start, end, too_little_room_is_none)
{
    write_bytes(0, 3 * G, 5);
    suspend_to(NULL);
    struct ms_allocation *other = add_cached(1);
    const unsigned creations = fake.calls[FAKE_mem_create];
    fake.total_bytes = 2 * G;
    CHECK_EQ(ms_suspend_take_back(), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_EQ(ms_allocation_backing(other)->backed_bytes, 0);
    CHECK_EQ(fake.calls[FAKE_mem_create], creations);
    fake.total_bytes = 3 * G;
    resume();
    fake_allocation_free(other);
}

MS_TEST_BETWEEN(start, end, room_that_goes_meanwhile_is_made_again)
{
    write_bytes(0, 3 * G, 5);
    suspend_to(NULL);
    struct ms_allocation *other = add_cached(1);
    fake_fail(FAKE_mem_create, 1, CUDA_ERROR_OUT_OF_MEMORY);
    resume();
    CHECK(fake_has_failed());
    CHECK_EQ(ms_allocation_backing(other)->backed_bytes, 0);
    fake_allocation_free(other);
}

/* What is in memory, what is to be received by others, and what holds nothing needs no room. */
MS_TEST_BETWEEN(start, end, coming_back_needs_room_for_resident_bytes_alone)
{
    struct ms_allocation *other = fake_allocation(BYTES);
    fake_set(other, 0, BYTES, &fill); /* was not resident */
    write_bytes(0, 3 * G, 5);
    suspend_to(NULL);
    write_bytes(0, G, 6); /* copied to meanwhile */
    const struct ms_content remote = {.kind = MS_FILL, .locality = MS_REMOTE};
    fake_set(allocation, 4 * G, 6 * G, &remote);
    const unsigned creations = fake.calls[FAKE_mem_create];
    fake.total_bytes = 3 * G - 1;
    CHECK_EQ(ms_suspend_take_back(), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_EQ(fake.calls[FAKE_mem_create], creations);
    fake.total_bytes = 3 * G;
    resume();
    check_bytes(0, G, 6);
    check_bytes(G, 3 * G, 5);
    CHECK_EQ(at(4 * G).content.kind, MS_FILL);
    fake_set(allocation, 4 * G, 6 * G, &undefined);
    fake_allocation_free(other);
}

MS_TEST_BETWEEN(start, end, a_driver_that_does_not_tell_what_is_unused_is_tried)
{
    static const enum fake_call calls[] = {FAKE_mem_get_info, FAKE_ctx_push_current};
    for (size_t i = 0; i < 2; i++) {
        write_bytes(0, G, 5);
        suspend_to(NULL);
        allocation->context = i == 1 ? (CUcontext)2 : FAKE_CONTEXT;
        fake_fail(calls[i], 1, CUDA_ERROR_UNKNOWN);
        resume();
        CHECK(fake_has_failed());
        CHECK_EQ(fake.pushed_contexts, 0);
        allocation->context = FAKE_CONTEXT;
    }
}

static CUresult (*create)(CUmemGenericAllocationHandle *handle, size_t bytes,
                          const CUmemAllocationProp *prop, unsigned long long flags);

static CUresult create_nothing(CUmemGenericAllocationHandle *handle, size_t bytes,
                               const CUmemAllocationProp *prop, unsigned long long flags)
{
    (void)handle, (void)bytes, (void)prop, (void)flags;
    return CUDA_ERROR_UNKNOWN;
}

MS_TEST_BETWEEN(start, end, another_error_is_answered_and_it_stays_suspended)
{
    open_log(MS_DEBUG);
    write_bytes(0, G, 5);
    suspend_to(NULL);
    create = ms_driver.mem_create;
    ms_driver.mem_create = create_nothing;
    ms_config.resume_ms = 1000;
    pauses = 0;
    CHECK_EQ(ms_suspend_take_back(), CUDA_ERROR_UNKNOWN);
    CHECK(ms_suspend_is_active());
    CHECK_EQ(pauses, 0);
    ms_driver.mem_create = create;
    CHECK_EQ(count_log_lines("is back") + count_log_lines("has no memory"), 0);
    resume();
    check_bytes(0, G, 5);
}
