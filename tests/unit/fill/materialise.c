/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/fill/materialise.h"

#include <string.h>

#include "runtime/driver/flags.h"
#include "runtime/memory/allocation.h"
#include "runtime/memory/order.h"
#include "runtime/memory/parked.h"
#include "runtime/memory/memory_internal.h"
#include "runtime/fill/access.h"
#include "runtime/memory/examining.h"
#include <stdatomic.h>
#include "tests/unit/between.h"
#include "tests/unit/fake_driver.h"
#include "tests/unit/snapshot_of.h"

enum { GRANULES = 8, BYTES = GRANULES * FAKE_GRANULE };

static const struct ms_content fill = {.kind = MS_FILL, .pattern = 0x04030201};
static const struct ms_content bytes_fill = {.kind = MS_FILL, .pattern = 0x07070707};
static const struct ms_content resident = {.kind = MS_RESIDENT};
static const struct ms_content absent = {.kind = MS_ABSENT, .locality = MS_REMOTE};
static unsigned char snapshot_bytes[FAKE_GRANULE];
static struct ms_allocation *allocation;

static void set(size_t first, size_t end, const struct ms_content *content)
{
    fake_set(allocation, first * FAKE_GRANULE, end * FAKE_GRANULE, content);
}

/* 0: a pattern, 1: a byte again and again, 2: a snapshot, 3: in memory; the rest was never
 * written. */
static void start(void)
{
    fake_start();
    allocation = fake_allocation(BYTES);
    for (size_t i = 0; i < sizeof(snapshot_bytes); i++)
        snapshot_bytes[i] = (unsigned char)(i * 7);
    ms_source_set_snapshot_limit(BYTES);
    const struct ms_content snapshot = {
        .kind = MS_SOURCE, .source = snapshot_of(snapshot_bytes, sizeof(snapshot_bytes))};
    set(0, 1, &fill);
    set(1, 2, &bytes_fill);
    set(2, 3, &snapshot);
    set(3, 4, &resident);
    ms_source_drop(snapshot.source);
    memset((void *)(uintptr_t)(allocation->address + 3 * FAKE_GRANULE), 3, FAKE_GRANULE);
}

static void end(void)
{
    CHECK_EQ(fake.pushed_contexts, 0);
    fake_check_allocation(allocation);
    fake_allocation_free(allocation);
    fake_check_empty();
}

static CUresult run(enum ms_need need, size_t begin, size_t behind)
{
    CHECK(ms_space_claim(allocation->address) == allocation);
    const CUresult result = ms_materialise(allocation, begin, behind, need);
    ms_space_release(allocation);
    fake_check_allocation(allocation);
    return result;
}

static void check_bytes(void)
{
    const unsigned char *at = (const unsigned char *)(uintptr_t)allocation->address;
    unsigned char wanted[4 * FAKE_GRANULE];
    for (size_t i = 0; i < FAKE_GRANULE; i++)
        wanted[i] = (unsigned char)(1 + i % 4);
    memset(wanted + FAKE_GRANULE, 7, FAKE_GRANULE);
    memcpy(wanted + 2 * FAKE_GRANULE, snapshot_bytes, FAKE_GRANULE);
    memset(wanted + 3 * FAKE_GRANULE, 3, FAKE_GRANULE);
    CHECK_BYTES(at, wanted, sizeof(wanted));
}

static struct ms_content at(size_t granule)
{
    return ms_lineage_at(&allocation->lineage, granule * FAKE_GRANULE).content;
}

MS_TEST_BETWEEN(start, end, what_is_read_can_be_played_again_where_that_costs_nothing)
{
    CHECK_EQ(run(MS_NEED_READ, 0, 4 * FAKE_GRANULE), CUDA_SUCCESS);
    check_bytes();
    CHECK(at(0).kind == MS_FILL && at(0).cached);
    CHECK(at(1).kind == MS_FILL && at(1).cached);
    CHECK(at(2).kind == MS_RESIDENT); /* a snapshot is not kept twice */
    CHECK_EQ(allocation->backing.backed_bytes, 4 * FAKE_GRANULE);
    CHECK_EQ(allocation->touches, 1);

    /* Again: there is nothing to do. */
    const size_t work = fake.work_count;
    CHECK_EQ(run(MS_NEED_READ, 0, 4 * FAKE_GRANULE), CUDA_SUCCESS);
    CHECK_EQ(fake.work_count, work);
}

MS_TEST_BETWEEN(start, end, what_may_be_written_is_resident)
{
    CHECK_EQ(run(MS_NEED_READ_WRITE, 0, 4 * FAKE_GRANULE), CUDA_SUCCESS);
    check_bytes();
    CHECK(!ms_lineage_any(&allocation->lineage, 0, 4 * FAKE_GRANULE, MS_NOT_RESIDENT));
    CHECK_EQ(allocation->touches, 0);
}

/* A kernel that comes there unseen must find the right bytes. */
MS_TEST_BETWEEN(start, end, granules_that_get_memory_are_filled_whole)
{
    CHECK_EQ(run(MS_NEED_READ_WRITE, 6, FAKE_GRANULE + 6), CUDA_SUCCESS);
    CHECK_EQ(allocation->backing.backed_bytes, 3 * FAKE_GRANULE);
    CHECK_EQ(allocation->lineage.resident_bytes, 2 * FAKE_GRANULE);
    const unsigned char *bytes = (const unsigned char *)(uintptr_t)allocation->address;
    CHECK(bytes[5] == 2 && bytes[6] == 3 && bytes[FAKE_GRANULE + 5] == 7 &&
          bytes[FAKE_GRANULE + 6] == 7);
    CHECK(at(0).kind == MS_FILL && at(0).cached && at(1).kind == MS_RESIDENT);
    CHECK_EQ(allocation->lineage.cached_bytes, FAKE_GRANULE);
    CHECK(at(2).kind == MS_SOURCE);
}

/* Whatever the call needs of its own bytes. */
MS_TEST(what_stands_beside_them_is_filled_for_each_need)
{
    for (enum ms_need need = 0; need < MS_NEED_COUNT; need++) {
        if (ms_needs[need].extents == MS_EXTENTS_LAUNCHED || need == MS_NEED_SEND ||
            need == MS_NEED_SEND_LATER)
            continue;
        start();
        fake_set(allocation, 4 * FAKE_GRANULE, 4 * FAKE_GRANULE + 10, &bytes_fill);
        fake_set(allocation, 5 * FAKE_GRANULE - 10, 5 * FAKE_GRANULE, &fill);
        CHECK_EQ(run(need, 4 * FAKE_GRANULE + 10, 5 * FAKE_GRANULE - 10), CUDA_SUCCESS);
        const unsigned char *bytes =
            (const unsigned char *)(uintptr_t)allocation->address + 4 * FAKE_GRANULE;
        CHECK(at(4).cached && bytes[0] == 7 && bytes[9] == 7);
        CHECK(bytes[FAKE_GRANULE - 1] == 4 && bytes[FAKE_GRANULE - 10] == 3);
        CHECK_EQ(allocation->backing.backed_bytes, 2 * FAKE_GRANULE);
        end();
    }
}

/* Nor what is nowhere on this rank. */
MS_TEST(what_other_ranks_keep_is_not_filled)
{
    struct ms_content remote = bytes_fill;
    remote.locality = MS_REMOTE;
    start();
    fake_set(allocation, 0, 100, &remote);
    fake_set(allocation, 100, 200, &absent);
    CHECK_EQ(run(MS_NEED_READ, 300, 400), CUDA_SUCCESS);
    CHECK(at(0).locality == MS_REMOTE && !at(0).cached);
    CHECK_EQ(allocation->lineage.cached_bytes, FAKE_GRANULE - 200);
    CHECK_EQ(allocation->lineage.kind_bytes[MS_ABSENT], 100);
    end();
}

MS_TEST_BETWEEN(start, end, what_was_never_written_gets_memory_and_no_content)
{
    const size_t work = fake.work_count;
    CHECK_EQ(run(MS_NEED_READ, 4 * FAKE_GRANULE, BYTES), CUDA_SUCCESS);
    CHECK_EQ(fake.work_count, work);
    CHECK(at(4).kind == MS_RESIDENT); /* what is seen once must stay the same */
}

MS_TEST(nothing_is_present_that_is_not_there_when_a_call_fails)
{
    for (unsigned nth = 1;; nth++) {
        start();
        const size_t deferred = allocation->lineage.deferred_bytes;
        fake_fail(FAKE_ANY, nth, CUDA_ERROR_LAUNCH_FAILED);
        const CUresult result = run(MS_NEED_READ, 0, 4 * FAKE_GRANULE);
        CHECK_EQ(fake.pushed_contexts, 0);
        CHECK_EQ(fake.capture_mode, CU_STREAM_CAPTURE_MODE_GLOBAL);
        if (result != CUDA_SUCCESS) {
            CHECK_EQ(result, CUDA_ERROR_LAUNCH_FAILED);
            CHECK_EQ(allocation->lineage.deferred_bytes, deferred);
            CHECK(at(0).kind == MS_FILL && !at(0).cached && at(2).kind == MS_SOURCE);
        }
        const bool has_failed = fake_has_failed();
        fake_fail(FAKE_ANY, 0, CUDA_SUCCESS);
        CHECK_EQ(run(MS_NEED_READ, 0, 4 * FAKE_GRANULE), CUDA_SUCCESS);
        check_bytes();
        end();
        if (!has_failed)
            return;
    }
}

/* Queued pieces must not outlive the call, also when a later one failed. */
MS_TEST_BETWEEN(start, end, waits_for_what_it_has_queued)
{
    fake_fail(FAKE_memset_d8_async, 1, CUDA_ERROR_LAUNCH_FAILED);
    CHECK_EQ(run(MS_NEED_READ, 0, 2 * FAKE_GRANULE), CUDA_ERROR_LAUNCH_FAILED);
    CHECK_EQ(fake.calls[FAKE_memset_d32_async], 1);
    CHECK_EQ(fake.calls[FAKE_stream_synchronize], 1);
}

MS_TEST_BETWEEN(start, end, what_is_absent_is_refused_where_it_is_needed)
{
    set(5, 6, &absent);
    CHECK_EQ(run(MS_NEED_READ, 0, BYTES), CUDA_ERROR_NOT_PERMITTED);
    CHECK_EQ(run(MS_NEED_SEND, 0, BYTES), CUDA_ERROR_NOT_PERMITTED);
    CHECK_EQ(allocation->backing.backed_bytes, FAKE_GRANULE);
    CHECK_EQ(run(MS_NEED_KEEP, 0, BYTES), CUDA_SUCCESS);
    CHECK_EQ(allocation->backing.backed_bytes, BYTES - FAKE_GRANULE);
    CHECK(at(5).kind == MS_ABSENT);
}

MS_TEST_BETWEEN(start, end, the_dead_stay_dead_for_those_who_say_so)
{
    CHECK(ms_space_claim(allocation->address) == allocation);
    CHECK(ms_lineage_set(&allocation->lineage, 4 * FAKE_GRANULE, 6 * FAKE_GRANULE,
                         &(struct ms_content){.kind = MS_DEAD}));
    CHECK(ms_carve_add_block(allocation, 0, 4 * FAKE_GRANULE));
    CHECK(ms_carve_add_block(allocation, 6 * FAKE_GRANULE, BYTES));
    ms_space_release(allocation);
    CHECK_EQ(run(MS_NEED_REACH_LIVE, 0, BYTES), CUDA_SUCCESS);
    CHECK_EQ(allocation->backing.backed_bytes, BYTES - 2 * FAKE_GRANULE);
    CHECK(at(4).kind == MS_DEAD && at(6).kind == MS_RESIDENT);
    CHECK_EQ(run(MS_NEED_READ_WRITE, 0, BYTES), CUDA_SUCCESS);
    CHECK_EQ(allocation->backing.backed_bytes, BYTES);
}

MS_TEST_BETWEEN(start, end, what_is_overwritten_is_not_played)
{
    const size_t work = fake.work_count;
    CHECK_EQ(run(MS_NEED_OVERWRITE, 0, 3 * FAKE_GRANULE), CUDA_SUCCESS);
    CHECK_EQ(fake.work_count, work);
    CHECK(!ms_lineage_any(&allocation->lineage, 0, 4 * FAKE_GRANULE, MS_NOT_RESIDENT));
}

/* A kernel that is queued before the write may find its address in a copy that nobody has seen. */
MS_TEST_BETWEEN(start, end, what_is_overwritten_behind_a_late_payload_is_played)
{
    atomic_fetch_add(&ms_hot.late_payloads, 1);
    CHECK_EQ(run(MS_NEED_OVERWRITE, 0, 3 * FAKE_GRANULE), CUDA_SUCCESS);
    atomic_fetch_sub(&ms_hot.late_payloads, 1);
    check_bytes();
}

/* What is captured is written later, or never. */
MS_TEST_BETWEEN(start, end, what_a_capture_overwrites_is_played)
{
    ms_order_set_capture(true);
    CHECK_EQ(run(MS_NEED_OVERWRITE, 0, 3 * FAKE_GRANULE), CUDA_SUCCESS);
    ms_order_set_capture(false);
    check_bytes();
}

/* --- what stands beside a copy */

enum { MANY = 80, MANY_BYTES = MANY * FAKE_GRANULE, HALF = FAKE_GRANULE / 2, MOST_NOTED = 64 };

static void start_beside(void)
{
    fake_start();
    allocation = fake_allocation(MANY_BYTES);
    fake_set(allocation, 0, MANY_BYTES, &bytes_fill);
}

static void end_beside(void)
{
    fake_check_allocation(allocation);
    fake_allocation_free(allocation);
    ms_materialise_unfilled(); /* of memory that is gone */
    CHECK(!ms_has_unfilled());
    fake_check_empty();
}

static void write_bytes(size_t begin, size_t behind)
{
    CHECK(ms_space_claim(allocation->address) == allocation);
    CHECK_EQ(ms_materialise_for_copy(allocation, begin, behind), CUDA_SUCCESS);
    ms_space_release(allocation);
    memset((char *)(uintptr_t)allocation->address + begin, 1, behind - begin);
}

static bool is_present(size_t begin, size_t behind)
{
    return !ms_lineage_any(&allocation->lineage, begin, behind, MS_MISSING);
}

static void check_same(size_t at, size_t behind, unsigned char byte)
{
    const unsigned char *bytes = (const unsigned char *)(uintptr_t)allocation->address;
    for (; at < behind; at++)
        CHECK_EQ(bytes[at], byte);
}

MS_TEST_BETWEEN(start_beside, end_beside, what_the_next_copy_overwrites_is_not_brought_in)
{
    const size_t work = fake.work_count;
    write_bytes(0, HALF);
    CHECK(ms_has_unfilled() && !is_present(HALF, FAKE_GRANULE));
    write_bytes(HALF, 2 * FAKE_GRANULE);
    CHECK(!ms_has_unfilled());
    CHECK_EQ(fake.work_count, work);
}

MS_TEST_BETWEEN(start_beside, end_beside, the_rest_is_there_before_a_launch)
{
    write_bytes(HALF, 2 * FAKE_GRANULE + HALF);
    CHECK(!is_present(0, HALF));
    ms_materialise_unfilled();
    CHECK(!ms_has_unfilled() && is_present(0, 3 * FAKE_GRANULE));
    check_same(0, HALF, 7);
    check_same(HALF, 2 * FAKE_GRANULE + HALF, 1);
    check_same(2 * FAKE_GRANULE + HALF, 3 * FAKE_GRANULE, 7);
    CHECK_EQ(allocation->backing.backed_bytes, 3 * FAKE_GRANULE);
}

/* In whichever way it comes. */
MS_TEST_BETWEEN(start_beside, end_beside, what_is_there_is_not_noted_any_more)
{
    write_bytes(0, HALF);
    CHECK_EQ(ms_access(allocation->address + HALF, 1, MS_NEED_READ_WRITE), CUDA_SUCCESS);
    CHECK(!ms_has_unfilled() && is_present(0, FAKE_GRANULE));
}

MS_TEST_BETWEEN(start_beside, end_beside, where_nothing_would_be_filled_nothing_is_noted)
{
    fake_set(allocation, HALF, FAKE_GRANULE, &absent);
    write_bytes(0, HALF);
    CHECK(!ms_has_unfilled());
}

MS_TEST_BETWEEN(start_beside, end_beside, beside_a_kernel_that_is_queued_it_is_filled_at_once)
{
    ms_examining_launched();
    fake.is_busy = true;
    write_bytes(0, HALF);
    CHECK(!ms_has_unfilled() && is_present(0, FAKE_GRANULE));
    fake.is_busy = false;
    write_bytes(2 * FAKE_GRANULE, 2 * FAKE_GRANULE + HALF);
    CHECK(ms_has_unfilled());
}

MS_TEST_BETWEEN(start_beside, end_beside, in_a_capture_it_is_filled_at_once)
{
    ms_order_set_capture(true);
    write_bytes(0, HALF);
    ms_order_set_capture(false);
    CHECK(!ms_has_unfilled() && is_present(0, FAKE_GRANULE));
}

MS_TEST_BETWEEN(start_beside, end_beside, of_more_than_are_noted_the_rest_is_filled_at_once)
{
    for (size_t i = 0; i < MANY; i++)
        write_bytes(i * FAKE_GRANULE, i * FAKE_GRANULE + HALF);
    CHECK_EQ(atomic_load(&ms_hot.unfilled), MOST_NOTED);
    CHECK(!is_present(HALF, FAKE_GRANULE));
    CHECK(is_present(MOST_NOTED * FAKE_GRANULE, MANY_BYTES));
    ms_materialise_unfilled();
    CHECK(is_present(0, MANY_BYTES));
}

/* --- parked bytes */

enum { STEP = 32 << 20, STEPS = 3 };
static size_t most_bytes;

static void note_most(void)
{
    if (fake.physical_bytes > most_bytes)
        most_bytes = fake.physical_bytes;
}

/* A block of several steps, with a piece for each. */
static void start_parked(void)
{
    fake_start();
    allocation = fake_allocation((size_t)STEPS * STEP);
    for (size_t i = 0; i < STEPS; i++) {
        struct ms_content content = {.kind = MS_PARKED};
        CUevent event;
        CHECK_EQ(ms_parked_create(FAKE_CONTEXT, 0, STEP, false, &content.parked), CUDA_SUCCESS);
        memset((void *)(uintptr_t)ms_parked_backing(content.parked)->address, (int)i, STEP);
        CHECK_EQ(ms_driver.event_create(&event, CU_EVENT_DISABLE_TIMING), CUDA_SUCCESS);
        ms_parked_attach_event(content.parked, event);
        fake_set(allocation, i * STEP, (i + 1) * STEP, &content);
        ms_parked_drop(content.parked);
    }
    fake.on_wait = note_most;
    most_bytes = 0;
}

MS_TEST_BETWEEN(start_parked, end, parked_bytes_come_step_by_step)
{
    CHECK_EQ(run(MS_NEED_READ, 0, allocation->bytes), CUDA_SUCCESS);
    const unsigned char *bytes = (const unsigned char *)(uintptr_t)allocation->address;
    for (size_t i = 0; i < STEPS; i++)
        CHECK(bytes[i * STEP] == i && bytes[(i + 1) * STEP - 1] == i);
    CHECK_EQ(fake.physical_bytes, allocation->bytes);
    CHECK_EQ(most_bytes, allocation->bytes + STEP);
}

/* An export is of one handle. */
MS_TEST_BETWEEN(start_parked, end, what_is_exported_comes_at_once)
{
    CHECK_EQ(run(MS_NEED_PIN, 0, allocation->bytes), CUDA_SUCCESS);
    CHECK_EQ(allocation->backing.chunks.count, 1);
}
