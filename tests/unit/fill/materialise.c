/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/fill/materialise.h"

#include <stdlib.h>
#include <string.h>

#include "runtime/driver/flags.h"
#include "runtime/files/host_snapshot.h"
#include "runtime/fill/access.h"
#include "runtime/fill/scratch.h"
#include "runtime/kernel/call.h"
#include "runtime/memory/allocation.h"
#include "runtime/memory/carve.h"
#include "runtime/memory/memory_internal.h"
#include "runtime/memory/recorded_launch.h"
#include "runtime/order/examining.h"
#include "runtime/order/order.h"
#include <stdatomic.h>
#include "runtime/state/counters.h"
#include "tests/unit/between.h"
#include "tests/unit/fake_driver.h"
#include "tests/unit/files/files.h"
#include "tests/unit/parked_of.h"
#include "tests/unit/snapshot_of.h"
#include "tests/unit/use_plan.h"

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
    ms_host_snapshot_set_limit(BYTES);
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
    return ms_lineage_at(ms_allocation_lineage(allocation), granule * FAKE_GRANULE).content;
}

MS_TEST_BETWEEN(start, end, a_read_keeps_lineage_that_costs_nothing)
{
    CHECK_EQ(run(MS_NEED_READ, 0, 4 * FAKE_GRANULE), CUDA_SUCCESS);
    check_bytes();
    CHECK(at(0).kind == MS_FILL && at(0).cached);
    CHECK(at(1).kind == MS_FILL && at(1).cached);
    CHECK(at(2).kind == MS_RESIDENT); /* a snapshot is not kept twice */
    CHECK_EQ(ms_allocation_backing(allocation)->backed_bytes, 4 * FAKE_GRANULE);
    CHECK_EQ(allocation->notes.touches, 1);

    /* Again: there is nothing to do. */
    const size_t work = fake.work_count;
    CHECK_EQ(run(MS_NEED_READ, 0, 4 * FAKE_GRANULE), CUDA_SUCCESS);
    CHECK_EQ(fake.work_count, work);
}

MS_TEST_BETWEEN(start, end, a_write_makes_its_range_resident)
{
    CHECK_EQ(run(MS_NEED_READ_WRITE, 0, 4 * FAKE_GRANULE), CUDA_SUCCESS);
    check_bytes();
    CHECK(!ms_lineage_any(ms_allocation_lineage(allocation), 0, 4 * FAKE_GRANULE, MS_NOT_RESIDENT));
    CHECK_EQ(allocation->notes.touches, 0);
}

MS_TEST_BETWEEN(start, end, the_first_byte_counts)
{
    CHECK_EQ(run(MS_NEED_READ_WRITE, 0, 4 * FAKE_GRANULE), CUDA_SUCCESS);
    fake_set(allocation, FAKE_GRANULE, FAKE_GRANULE + 1,
             &(struct ms_content){.kind = MS_FILL, .pattern = 9});
    fake_set(allocation, 2 * FAKE_GRANULE, 2 * FAKE_GRANULE + 1,
             &(struct ms_content){.kind = MS_FILL, .pattern = 9, .cached = true});
    CHECK_EQ(run(MS_NEED_READ_WRITE, FAKE_GRANULE, 2 * FAKE_GRANULE), CUDA_SUCCESS);
    CHECK_EQ(run(MS_NEED_READ_WRITE, 2 * FAKE_GRANULE, 3 * FAKE_GRANULE), CUDA_SUCCESS);
    CHECK_EQ(((const unsigned char *)(uintptr_t)allocation->address)[FAKE_GRANULE], 9);
    CHECK(at(1).kind == MS_RESIDENT && at(2).kind == MS_RESIDENT);
}

/* A kernel that comes there unseen must find the right bytes. */
MS_TEST_BETWEEN(start, end, granules_that_get_memory_are_filled_whole)
{
    CHECK_EQ(run(MS_NEED_READ_WRITE, 6, FAKE_GRANULE + 6), CUDA_SUCCESS);
    CHECK_EQ(ms_allocation_backing(allocation)->backed_bytes, 3 * FAKE_GRANULE);
    CHECK_EQ(ms_allocation_lineage(allocation)->resident_bytes, 2 * FAKE_GRANULE);
    const unsigned char *bytes = (const unsigned char *)(uintptr_t)allocation->address;
    CHECK(bytes[5] == 2 && bytes[6] == 3 && bytes[FAKE_GRANULE + 5] == 7 &&
          bytes[FAKE_GRANULE + 6] == 7);
    CHECK(at(0).kind == MS_FILL && at(0).cached && at(1).kind == MS_RESIDENT);
    CHECK_EQ(ms_allocation_lineage(allocation)->cached_bytes, FAKE_GRANULE);
    CHECK(at(2).kind == MS_SOURCE);
}

/* The range is the last byte of the first granule and the first byte of the second. */
MS_TEST_BETWEEN(start, end, a_range_fills_both_granules_it_touches)
{
    CHECK(ms_space_claim(allocation->address) == allocation);
    CHECK_EQ(ms_backing_cover(ms_allocation_memory(allocation), 0, 3 * FAKE_GRANULE), CUDA_SUCCESS);
    ms_materialise_granules(allocation, FAKE_GRANULE - 1, FAKE_GRANULE + 1);
    ms_space_release(allocation);
    CHECK(at(0).cached && at(1).cached && at(2).kind == MS_SOURCE);
    CHECK_EQ(ms_allocation_lineage(allocation)->cached_bytes, 2 * FAKE_GRANULE);
}

/* Whatever the call needs of its own bytes. */
MS_TEST(each_need_fills_the_bytes_beside_its_own)
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
        CHECK_EQ(ms_allocation_backing(allocation)->backed_bytes, 2 * FAKE_GRANULE);
        end();
    }
}

/* Whatever the call needs. */
MS_TEST(unmapped_bytes_get_no_memory)
{
    for (enum ms_need need = 0; need < MS_NEED_COUNT; need++) {
        start();
        allocation->is_programs = true;
        set(2, 3, &(struct ms_content){.kind = MS_UNMAPPED});
        set(5, 7, &(struct ms_content){.kind = MS_UNMAPPED});
        CHECK_EQ(run(need, 0, BYTES), CUDA_SUCCESS);
        CHECK(at(2).kind == MS_UNMAPPED && at(5).kind == MS_UNMAPPED && at(6).kind == MS_UNMAPPED);
        CHECK_EQ(ms_allocation_lineage(allocation)->kind_bytes[MS_UNMAPPED], 3 * FAKE_GRANULE);
        CHECK_EQ(fake_memory_at(allocation->address + 2 * FAKE_GRANULE), 0);
        CHECK_EQ(fake_memory_at(allocation->address + 5 * FAKE_GRANULE), 0);
        set(2, 3, &(struct ms_content){.kind = MS_UNDEFINED});
        set(5, 7, &(struct ms_content){.kind = MS_UNDEFINED});
        allocation->is_programs = false;
        end();
    }
}

/* Nor what is nowhere on this rank. */
MS_TEST(a_granule_is_not_filled_with_bytes_other_ranks_keep)
{
    struct ms_content remote = bytes_fill;
    remote.locality = MS_REMOTE;
    start();
    fake_set(allocation, 0, 100, &remote);
    fake_set(allocation, 100, 200, &absent);
    CHECK_EQ(run(MS_NEED_READ, 300, 400), CUDA_SUCCESS);
    CHECK(at(0).locality == MS_REMOTE && !at(0).cached);
    CHECK_EQ(ms_allocation_lineage(allocation)->cached_bytes, FAKE_GRANULE - 200);
    CHECK_EQ(ms_allocation_lineage(allocation)->kind_bytes[MS_ABSENT], 100);
    end();
}

/* Large parts of files come through pinned memory, which files that are small are not worth. */
static void check_pinned(size_t bytes, bool is_pinned)
{
    static struct test_file file;
    fake_start();
    make_test_file(&file, "/tmp", bytes);
    allocation = fake_allocation(bytes);
    fake_set(allocation, 0, bytes, &(struct ms_content){.kind = MS_SOURCE, .source = file.source});
    CHECK_EQ(run(MS_NEED_READ, 0, bytes), CUDA_SUCCESS);
    CHECK_BYTES((void *)(uintptr_t)allocation->address, file.data, bytes);
    CHECK_EQ(fake.calls[FAKE_mem_host_alloc] > 0, is_pinned);
    end();
    ms_source_drop(file.source);
}

MS_TEST(large_parts_of_files_come_through_pinned_memory)
{
    enum { LEAST = 256 << 10 };
    check_pinned(LEAST - 1, false);
    check_pinned(LEAST, true);
}

/* Which the plan is asked first. Rank 1 keeps the second half of two granules with memory. */
MS_TEST_BETWEEN(start, end, a_granule_is_filled_with_bytes_of_this_rank)
{
    CHECK(ms_space_claim(allocation->address) == allocation);
    CHECK_EQ(ms_backing_cover(ms_allocation_memory(allocation), 0, 3 * FAKE_GRANULE), CUDA_SUCCESS);
    ms_space_release(allocation);
    use_plan(1, 2 * FAKE_GRANULE);
    name_tensor(allocation->address, 2 * FAKE_GRANULE, "w");
    CHECK(ms_space_claim(allocation->address) == allocation);
    ms_materialise_granules(allocation, 0, BYTES);
    ms_space_release(allocation);
    CHECK(at(0).locality == MS_REMOTE && !at(0).cached);
    CHECK(at(1).locality == MS_LOCAL && at(1).cached);
    CHECK(at(2).locality == MS_UNKNOWN && at(2).kind == MS_SOURCE && !at(2).cached);
}

MS_TEST_BETWEEN(start, end, unwritten_bytes_get_memory_and_no_content)
{
    const size_t work = fake.work_count;
    CHECK_EQ(run(MS_NEED_READ, 4 * FAKE_GRANULE, BYTES), CUDA_SUCCESS);
    CHECK_EQ(fake.work_count, work);
    CHECK_EQ(fake.calls[FAKE_stream_create] + fake.calls[FAKE_stream_synchronize], 0);
    CHECK(at(4).kind == MS_RESIDENT); /* what is seen once must stay the same */
}

MS_TEST(nothing_is_present_that_is_not_there_when_a_call_fails)
{
    for (unsigned nth = 1;; nth++) {
        start();
        const size_t deferred = ms_allocation_lineage(allocation)->deferred_bytes;
        fake_fail(FAKE_ANY, nth, CUDA_ERROR_LAUNCH_FAILED);
        const CUresult result = run(MS_NEED_READ, 0, 4 * FAKE_GRANULE);
        CHECK_EQ(fake.pushed_contexts, 0);
        CHECK_EQ(fake.capture_mode, CU_STREAM_CAPTURE_MODE_GLOBAL);
        if (result != CUDA_SUCCESS) {
            CHECK_EQ(result, CUDA_ERROR_LAUNCH_FAILED);
            CHECK_EQ(ms_allocation_lineage(allocation)->deferred_bytes, deferred);
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
MS_TEST_BETWEEN(start, end, materialising_waits_for_what_it_has_queued)
{
    fake_fail(FAKE_memset_d8_async, 1, CUDA_ERROR_LAUNCH_FAILED);
    CHECK_EQ(run(MS_NEED_READ, 0, 2 * FAKE_GRANULE), CUDA_ERROR_LAUNCH_FAILED);
    CHECK_EQ(fake.calls[FAKE_memset_d32_async], 1);
    CHECK_EQ(fake.calls[FAKE_stream_synchronize], 1);
}

MS_TEST_BETWEEN(start, end, absent_bytes_are_refused_where_they_are_needed)
{
    set(5, 6, &absent);
    CHECK_EQ(run(MS_NEED_READ, 0, BYTES), CUDA_ERROR_NOT_PERMITTED);
    CHECK_EQ(run(MS_NEED_SEND, 0, BYTES), CUDA_ERROR_NOT_PERMITTED);
    CHECK_EQ(ms_allocation_backing(allocation)->backed_bytes, FAKE_GRANULE);
    CHECK_EQ(run(MS_NEED_KEEP, 0, BYTES), CUDA_SUCCESS);
    CHECK_EQ(ms_allocation_backing(allocation)->backed_bytes, BYTES - FAKE_GRANULE);
    CHECK(at(5).kind == MS_ABSENT);
}

MS_TEST_BETWEEN(start, end, the_dead_stay_dead_for_those_who_say_so)
{
    CHECK(ms_space_claim(allocation->address) == allocation);
    CHECK(ms_lineage_set(&MS_OWN(allocation)->lineage, 4 * FAKE_GRANULE, 6 * FAKE_GRANULE,
                         &(struct ms_content){.kind = MS_DEAD}));
    CHECK(ms_carve_add_block(allocation, 0, 4 * FAKE_GRANULE));
    CHECK(ms_carve_add_block(allocation, 6 * FAKE_GRANULE, BYTES));
    ms_space_release(allocation);
    CHECK_EQ(run(MS_NEED_REACH_LIVE, 0, BYTES), CUDA_SUCCESS);
    CHECK_EQ(ms_allocation_backing(allocation)->backed_bytes, BYTES - 2 * FAKE_GRANULE);
    CHECK(at(4).kind == MS_DEAD && at(6).kind == MS_RESIDENT);
    CHECK_EQ(run(MS_NEED_READ_WRITE, 0, BYTES), CUDA_SUCCESS);
    CHECK_EQ(ms_allocation_backing(allocation)->backed_bytes, BYTES);
}

MS_TEST_BETWEEN(start, end, an_overwrite_does_not_play_its_bytes)
{
    const size_t work = fake.work_count;
    CHECK_EQ(run(MS_NEED_OVERWRITE, 0, 3 * FAKE_GRANULE), CUDA_SUCCESS);
    CHECK_EQ(fake.work_count, work);
    CHECK(!ms_lineage_any(ms_allocation_lineage(allocation), 0, 4 * FAKE_GRANULE, MS_NOT_RESIDENT));
}

MS_TEST_BETWEEN(start, end, each_granule_with_an_overwritten_byte_gets_memory)
{
    CHECK_EQ(run(MS_NEED_OVERWRITE, 5 * FAKE_GRANULE - 1, 6 * FAKE_GRANULE + 1), CUDA_SUCCESS);
    CHECK_EQ(ms_allocation_backing(allocation)->backed_bytes, 4 * FAKE_GRANULE);
}

/* A kernel that is queued before the write may find its address in a copy that nobody has seen. */
MS_TEST_BETWEEN(start, end, an_overwrite_behind_a_late_payload_plays_its_bytes)
{
    atomic_fetch_add(&ms_hot.late_payloads, 1);
    CHECK_EQ(run(MS_NEED_OVERWRITE, 0, 3 * FAKE_GRANULE), CUDA_SUCCESS);
    atomic_fetch_sub(&ms_hot.late_payloads, 1);
    check_bytes();
}

/* A captured overwrite happens later, or never. */
MS_TEST_BETWEEN(start, end, a_captured_overwrite_plays_its_bytes)
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
    return !ms_lineage_any(ms_allocation_lineage(allocation), begin, behind, MS_MISSING);
}

static void check_same(size_t at, size_t behind, unsigned char byte)
{
    const unsigned char *bytes = (const unsigned char *)(uintptr_t)allocation->address;
    for (; at < behind; at++)
        CHECK_EQ(bytes[at], byte);
}

MS_TEST_BETWEEN(start_beside, end_beside, bytes_the_next_copy_overwrites_are_not_brought_in)
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
    CHECK_EQ(ms_allocation_backing(allocation)->backed_bytes, 3 * FAKE_GRANULE);
}

/* In whichever way it comes. */
MS_TEST_BETWEEN(start_beside, end_beside, a_granule_that_was_filled_is_not_noted_any_more)
{
    write_bytes(0, HALF);
    CHECK_EQ(ms_access(allocation->address + HALF, 1, MS_NEED_READ_WRITE), CUDA_SUCCESS);
    CHECK(!ms_has_unfilled() && is_present(0, FAKE_GRANULE));
}

MS_TEST_BETWEEN(start_beside, end_beside, a_granule_without_bytes_to_fill_is_not_noted)
{
    fake_set(allocation, HALF, FAKE_GRANULE, &absent);
    write_bytes(0, HALF);
    CHECK(!ms_has_unfilled());
}

/* The plan is asked about the granule first. Rank 1 keeps the second half of each granule. */
MS_TEST(a_granule_is_noted_for_bytes_of_this_rank_alone)
{
    for (int part = 0; part < 2; part++) {
        start_beside();
        use_plan(1, FAKE_GRANULE);
        name_tensor(allocation->address, FAKE_GRANULE, "w");
        write_bytes(part == 0 ? HALF : 0, part == 0 ? FAKE_GRANULE : HALF);
        CHECK_EQ(ms_has_unfilled(), part == 1);
        end_beside();
    }
}

MS_TEST_BETWEEN(start_beside, end_beside, a_granule_is_filled_at_once_beside_a_queued_kernel)
{
    ms_examining_launched();
    fake.is_busy = true;
    write_bytes(0, HALF);
    CHECK(!ms_has_unfilled() && is_present(0, FAKE_GRANULE));
    fake.is_busy = false;
    write_bytes(2 * FAKE_GRANULE, 2 * FAKE_GRANULE + HALF);
    CHECK(ms_has_unfilled());
}

MS_TEST_BETWEEN(start_beside, end_beside, a_granule_is_filled_at_once_in_a_capture)
{
    ms_order_set_capture(true);
    write_bytes(0, HALF);
    ms_order_set_capture(false);
    CHECK(!ms_has_unfilled() && is_present(0, FAKE_GRANULE));
}

MS_TEST_BETWEEN(start_beside, end_beside, granules_beyond_the_most_noted_are_filled_at_once)
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
        memset(bytes_of_parked(content.parked), (int)i, STEP);
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
MS_TEST_BETWEEN(start_parked, end, an_export_materialises_all_at_once)
{
    CHECK(!allocation->notes.is_exported);
    CHECK_EQ(run(MS_NEED_PIN, 0, allocation->bytes), CUDA_SUCCESS);
    CHECK(allocation->notes.is_exported); /* suspension leaves it */
    CHECK_EQ(ms_allocation_backing(allocation)->chunks.count, 1);
}

/* --- recorded launches */

enum { LAUNCHED = 32, LAUNCHED_BYTES = LAUNCHED * FAKE_GRANULE };
static const uint32_t made = 0x9a8b7c6d;

/* Kernels: all words of the block are set; those of its first half are; all are multiplied. */
enum kernel { SET = 1, SET_HALF, MULTIPLY, KERNELS };
static const uint32_t factor = 0x101; /* a byte depends on that before it */
static const uint32_t multiplied = 0x07070707 * 0x101U;
static struct ms_param_layout *layouts[KERNELS];
static unsigned launches, failing_launch; /* counted from 1 */

static void change(enum kernel kernel, uint32_t *words)
{
    const size_t count = LAUNCHED_BYTES / sizeof(*words) / (kernel == SET_HALF ? 2 : 1);
    for (size_t i = 0; i < count; i++)
        words[i] = kernel == MULTIPLY ? words[i] * factor : made;
}

/* Over all of the block, wherever it lies then. */
static CUresult launch_kernel(CUfunction function, unsigned grid_x, unsigned grid_y,
                              unsigned grid_z, unsigned block_x, unsigned block_y, unsigned block_z,
                              unsigned shared, CUstream stream, void **params, void **extra)
{
    CUdeviceptr out;
    CHECK(stream != NULL && extra == NULL);
    CHECK_EQ(grid_x + grid_y + grid_z + block_x + block_y + block_z + shared, 6);
    memcpy(&out, params[0], sizeof(out));
    if (++launches == failing_launch)
        return CUDA_ERROR_UNKNOWN;
    change((enum kernel)(uintptr_t)function, (uint32_t *)(uintptr_t)out);
    if (fake.physical_bytes > most_bytes)
        most_bytes = fake.physical_bytes;
    return CUDA_SUCCESS;
}

static struct ms_launch *record_call(enum kernel kernel)
{
    static char name[] = "kernel";
    static const size_t pointer = 0;
    struct ms_param_layout *layout = calloc(1, sizeof(*layout) + sizeof(layout->params[0]));
    *layout = (struct ms_param_layout){.counted = {.references = 1000},
                                       .known = true,
                                       .count = 1,
                                       .bytes = 8,
                                       .name = name,
                                       .rule = kernel == MULTIPLY ? MS_RULE_IN_PLACE
                                                                  : MS_RULE_WRITE_ONLY};
    layout->params[0] = (struct ms_param){0, 8};
    layouts[kernel] = layout;
    const struct ms_packed packed = {.bytes = (const unsigned char *)&allocation->address,
                                     .count = 8};
    const struct ms_call call = {.function = (CUfunction)(uintptr_t)kernel,
                                 .grid = {1, 1, 1},
                                 .block = {1, 1, 1},
                                 .stream = FAKE_STREAM};
    return ms_call_record(&call, layout, &packed, &pointer, 1);
}

/* All of the allocation is by this kernel, over what it was. */
static void launch(enum kernel kernel)
{
    struct ms_recorded_launch *recorded = ms_recorded_launch_create();
    const struct ms_content before = at(0);
    recorded->launch = record_call(kernel);
    recorded->only_writes = kernel != MULTIPLY;
    recorded->allocation_id = allocation->id;
    recorded->address = allocation->address;
    recorded->context = FAKE_CONTEXT;
    recorded->depth = 2;
    CHECK(ms_lineage_init(&recorded->before, LAUNCHED_BYTES));
    CHECK(ms_lineage_set(&recorded->before, 0, LAUNCHED_BYTES, &before));
    set(0, LAUNCHED, &(struct ms_content){.kind = MS_LAUNCHED, .recorded = recorded});
    ms_recorded_launch_drop(recorded);
}

static void start_filled(void)
{
    fake_start();
    ms_driver.launch_kernel = launch_kernel;
    most_bytes = 0;
    allocation = fake_allocation(LAUNCHED_BYTES);
    set(0, LAUNCHED, &bytes_fill);
}

static void start_launched(void)
{
    start_filled();
    launch(SET);
}

static void end_launched(void)
{
    ms_scratch_drop();
    end();
    for (int i = 0; i < KERNELS; i++) {
        free(layouts[i]);
        layouts[i] = NULL;
    }
}

static void check_words(size_t begin, size_t behind, uint32_t word)
{
    const unsigned char *bytes = (const unsigned char *)(uintptr_t)allocation->address;
    for (size_t i = begin; i < behind; i++)
        CHECK_EQ(bytes[i], word >> 8 * (i % 4) & 0xff);
}

static void check_made(size_t begin, size_t behind)
{
    check_words(begin, behind, made);
}

static void read_piece(size_t begin, size_t behind)
{
    CHECK_EQ(run(MS_NEED_READ, begin, behind), CUDA_SUCCESS);
    check_made(begin, behind);
}

/* The device never holds more than all of it, and the sink, which goes before the last piece. */
MS_TEST_BETWEEN(start_launched, end_launched, pieces_of_a_launch_take_no_memory_but_their_own)
{
    enum { PIECE = LAUNCHED_BYTES / 8 };
    for (size_t at = 0; at < LAUNCHED_BYTES; at += PIECE) {
        read_piece(at + 100, at + PIECE);
        CHECK(fake.physical_bytes <= LAUNCHED_BYTES + FAKE_GRANULE);
    }
    check_made(0, LAUNCHED_BYTES);
    CHECK_EQ(ms_allocation_lineage(allocation)->cached_bytes, LAUNCHED_BYTES);
    CHECK_EQ(fake.physical_bytes, LAUNCHED_BYTES);
    CHECK(most_bytes <= LAUNCHED_BYTES + FAKE_GRANULE);
}

/* The launch writes there as well. */
MS_TEST_BETWEEN(start_launched, end_launched, bytes_before_a_piece_of_a_launch_stay_the_same)
{
    enum { FROM = FAKE_GRANULE / 2, TO = 3 * FAKE_GRANULE / 2 };
    fake_set(allocation, FROM, TO, &bytes_fill);
    CHECK_EQ(run(MS_NEED_READ, FROM, LAUNCHED_BYTES), CUDA_SUCCESS);
    check_same(FROM, TO, 7);
    check_made(TO, LAUNCHED_BYTES);
    read_piece(0, FROM);
    check_same(FROM, TO, 7);
}

/* They were copied there since, from the half that the launch leaves as it was. */
MS_TEST_BETWEEN(start_filled, end_launched, launched_bytes_that_moved_come_from_their_own_place)
{
    enum { FROM = 8 * FAKE_GRANULE, TO = 9 * FAKE_GRANULE, OF = 20 * FAKE_GRANULE };
    launch(SET_HALF);
    struct ms_content moved = at(0);
    moved.source_offset = OF;
    fake_set(allocation, FROM, TO, &moved);
    CHECK_EQ(run(MS_NEED_READ, 0, LAUNCHED_BYTES), CUDA_SUCCESS);
    check_made(0, FROM);
    check_same(FROM, TO, 7);
    check_made(TO, LAUNCHED_BYTES / 2);
    check_same(LAUNCHED_BYTES / 2, LAUNCHED_BYTES, 7);
}

/* Two results that moved: scratch memory may be refused for the second one. */
MS_TEST_BETWEEN(start_launched, end_launched, a_result_stays_when_the_next_one_fails)
{
    struct ms_content moved = at(0);
    moved.source_offset = FAKE_GRANULE;
    set(8, 9, &moved);
    set(0, 8, &bytes_fill);
    set(9, LAUNCHED, &bytes_fill);
    set(12, 13, &moved);
    failing_launch = 2;
    CHECK_EQ(run(MS_NEED_READ, 0, LAUNCHED_BYTES), CUDA_ERROR_UNKNOWN);
    CHECK(at(8).cached && !at(12).cached);
    CHECK_EQ(run(MS_NEED_READ, 0, LAUNCHED_BYTES), CUDA_SUCCESS);
    CHECK_EQ(launches, 3);
    check_made(8 * FAKE_GRANULE, 9 * FAKE_GRANULE);
    check_made(12 * FAKE_GRANULE, 13 * FAKE_GRANULE);
    check_same(13 * FAKE_GRANULE, LAUNCHED_BYTES, 7);
}

/* A result, and beside it in the launch's block another that moved there. */
MS_TEST_BETWEEN(start_launched, end_launched, a_result_in_place_stays_when_what_is_around_fails)
{
    struct ms_content moved = at(0);
    moved.source_offset = FAKE_GRANULE;
    set(8, 9, &moved);
    failing_launch = 2;
    CHECK_EQ(run(MS_NEED_READ, 0, LAUNCHED_BYTES), CUDA_ERROR_UNKNOWN);
    CHECK(at(0).cached && !at(8).cached && at(9).cached);
    check_made(0, 8 * FAKE_GRANULE);
    CHECK_EQ(run(MS_NEED_READ, 0, LAUNCHED_BYTES), CUDA_SUCCESS);
    CHECK_EQ(launches, 3);
    check_made(0, LAUNCHED_BYTES);
}

/* The kernel sets the first half of the allocation, and has read a block of these bytes, which is
 * gone. */
static struct ms_recorded_launch *launch_half(const struct ms_content *read)
{
    struct ms_recorded_launch *recorded = ms_recorded_launch_create();
    recorded->launch = record_call(SET_HALF);
    recorded->only_writes = true;
    recorded->allocation_id = allocation->id;
    recorded->address = allocation->address;
    recorded->context = FAKE_CONTEXT;
    recorded->depth = recorded->input_depth = 1;
    recorded->input = calloc(1, sizeof(*recorded->input));
    recorded->input->address = allocation->address + ((uint64_t)1 << 40);
    CHECK(ms_lineage_init(&recorded->before, LAUNCHED_BYTES / 2));
    CHECK(ms_lineage_init(&recorded->input->lineage, LAUNCHED_BYTES / 2));
    CHECK(ms_lineage_set(&recorded->input->lineage, 0, LAUNCHED_BYTES / 2, read));
    set(0, LAUNCHED / 2, &(struct ms_content){.kind = MS_LAUNCHED, .recorded = recorded});
    return recorded;
}

static uint64_t sent_by(size_t begin, size_t behind)
{
    const uint64_t before = ms_counter_get(MS_COUNT_H2D_BYTES);
    CHECK_EQ(run(MS_NEED_READ, begin, behind), CUDA_SUCCESS);
    return ms_counter_get(MS_COUNT_H2D_BYTES) - before;
}

MS_TEST(a_file_comes_before_a_launch_that_has_read_the_same_bytes)
{
    static struct test_file file;
    make_test_file(&file, "/tmp", LAUNCHED_BYTES / 2);
    const struct ms_content of_file = {.kind = MS_SOURCE, .source = file.source};
    start_filled();
    launch_half(&of_file);
    set(LAUNCHED / 2, LAUNCHED, &of_file);
    CHECK_EQ(sent_by(0, LAUNCHED_BYTES), LAUNCHED_BYTES / 2);
    check_made(0, LAUNCHED_BYTES / 2);
    CHECK_BYTES((void *)(uintptr_t)(allocation->address + LAUNCHED_BYTES / 2), file.data,
                LAUNCHED_BYTES / 2);
}

/* With that in memory, the launch could not run in its place. */
MS_TEST(a_file_within_the_block_of_a_launch_comes_after)
{
    enum { FROM = LAUNCHED / 4, TO = LAUNCHED / 4 + 4 };
    static struct test_file file;
    make_test_file(&file, "/tmp", LAUNCHED_BYTES);
    const struct ms_content of_file = {.kind = MS_SOURCE, .source = file.source};
    start_filled();
    launch_half(&bytes_fill)->only_writes = false;
    set(FROM, TO, &of_file);
    CHECK_EQ(run(MS_NEED_READ, 0, LAUNCHED_BYTES), CUDA_SUCCESS);
    CHECK_EQ(launches, 1);
    check_made(0, FROM * FAKE_GRANULE);
    CHECK_BYTES((void *)(uintptr_t)(allocation->address + FROM * FAKE_GRANULE), file.data,
                (TO - FROM) * FAKE_GRANULE);
    check_made(TO * FAKE_GRANULE, LAUNCHED_BYTES / 2);
}

/* Somebody has written there since, and it is nowhere else. */
MS_TEST_BETWEEN(start_launched, end_launched, a_piece_is_not_made_over_what_was_written_since)
{
    enum { FROM = 4 * FAKE_GRANULE, TO = 5 * FAKE_GRANULE };
    read_piece(0, 16 * FAKE_GRANULE);
    fake_set(allocation, FROM, TO, &resident);
    memset((void *)(uintptr_t)(allocation->address + FROM), 7, TO - FROM);
    read_piece(16 * FAKE_GRANULE, LAUNCHED_BYTES);
    check_same(FROM, TO, 7);
}

/* It would be made from itself. */
MS_TEST_BETWEEN(start_filled, end_launched, a_piece_is_not_made_beside_what_a_launch_needs)
{
    launch(MULTIPLY);
    CHECK_EQ(run(MS_NEED_READ, 0, 16 * FAKE_GRANULE), CUDA_SUCCESS);
    CHECK_EQ(run(MS_NEED_READ, 16 * FAKE_GRANULE, LAUNCHED_BYTES), CUDA_SUCCESS);
    check_words(0, LAUNCHED_BYTES, multiplied);
}

/* The first launch changes what the second leaves. */
MS_TEST_BETWEEN(start_filled, end_launched, a_piece_is_not_made_beside_what_a_launch_before_needs)
{
    launch(MULTIPLY);
    launch(SET_HALF);
    CHECK_EQ(run(MS_NEED_READ, 0, 24 * FAKE_GRANULE), CUDA_SUCCESS);
    CHECK_EQ(run(MS_NEED_READ, 24 * FAKE_GRANULE, LAUNCHED_BYTES), CUDA_SUCCESS);
    check_made(0, LAUNCHED_BYTES / 2);
    check_words(LAUNCHED_BYTES / 2, LAUNCHED_BYTES, multiplied);
}

/* Nor is what other ranks have received. */
MS_TEST_BETWEEN(start_launched, end_launched, absent_bytes_beside_a_launch_stay_absent)
{
    fake_set(allocation, 0, FAKE_GRANULE / 2, &absent);
    fake_set(allocation, LAUNCHED_BYTES - 10, LAUNCHED_BYTES, &absent);
    read_piece(FAKE_GRANULE / 2, 4 * FAKE_GRANULE);
    read_piece(20 * FAKE_GRANULE, LAUNCHED_BYTES - 10);
    CHECK_EQ(ms_allocation_lineage(allocation)->kind_bytes[MS_ABSENT], FAKE_GRANULE / 2 + 10);
}

/* Then it needs the whole word at its begin. */
MS_TEST_BETWEEN(start_filled, end_launched, words_are_whole_beside_what_is_absent)
{
    enum { FROM = 102 };
    launch(MULTIPLY);
    fake_set(allocation, 0, FROM, &absent);
    CHECK_EQ(run(MS_NEED_READ, FROM, LAUNCHED_BYTES), CUDA_SUCCESS);
    check_words(FROM, LAUNCHED_BYTES, multiplied);
}

/* In a granule of which a part is there, which somebody may read meanwhile. */
MS_TEST_BETWEEN(start_launched, end_launched, a_piece_begins_where_another_ends)
{
    enum { FROM = FAKE_GRANULE / 2, TO = LAUNCHED_BYTES / 2 + FROM };
    fake_set(allocation, 0, FROM, &absent);
    read_piece(FROM, TO);
    const size_t work = fake.work_count;
    read_piece(TO - 10, LAUNCHED_BYTES);
    CHECK(fake.work_count > work);
    for (size_t i = work; i < fake.work_count; i++)
        CHECK(fake.work[i].address >= allocation->address + TO);
    CHECK_EQ(ms_allocation_lineage(allocation)->cached_bytes, LAUNCHED_BYTES - FROM);
}

/* Nor is what is there made again between two pieces. */
MS_TEST_BETWEEN(start_launched, end_launched, a_piece_ends_where_another_begins)
{
    enum { FROM = 4 * FAKE_GRANULE, TO = 8 * FAKE_GRANULE };
    read_piece(FROM, TO);
    const size_t work = fake.work_count;
    read_piece(0, 12 * FAKE_GRANULE);
    for (size_t i = work; i < fake.work_count; i++)
        CHECK(fake.work[i].address + fake.work[i].bytes <= allocation->address + FROM ||
              fake.work[i].address >= allocation->address + TO);
    CHECK_EQ(ms_allocation_lineage(allocation)->cached_bytes, 12 * FAKE_GRANULE);
}
