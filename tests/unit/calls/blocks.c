/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/calls/blocks.h"

#include <time.h>

#include "runtime/config/config.h"
#include "runtime/driver/flags.h"
#include "runtime/fill/access.h"
#include "runtime/memory/carve.h"
#include "runtime/memory/ready.h"
#include "runtime/order/examining.h"
#include "runtime/shard/shard.h"
#include "runtime/state/counters.h"
#include "runtime/state/window.h"
#include "tests/unit/between.h"
#include "tests/unit/fake_driver.h"

enum { G = FAKE_GRANULE, GRANULES = 8, BYTES = GRANULES * G };

/* --- a heap of which one growth fails */

static int failing_growth; /* 0: none */
void *__real_ms_heap_realloc(void *memory, size_t bytes);
void *__wrap_ms_heap_realloc(void *memory, size_t bytes);
void *__wrap_ms_heap_realloc(void *memory, size_t bytes)
{
    const bool fails = failing_growth > 0 && --failing_growth == 0;
    return fails ? NULL : __real_ms_heap_realloc(memory, bytes);
}

/* --- what it tells others */

static struct ms_range forgotten; /* the last one */
static int forgotten_count;
void __real_ms_shard_forget(struct ms_allocation *of, size_t begin, size_t end);
void __wrap_ms_shard_forget(struct ms_allocation *of, size_t begin, size_t end);
void __wrap_ms_shard_forget(struct ms_allocation *of, size_t begin, size_t end)
{
    forgotten = (struct ms_range){begin, end};
    forgotten_count++;
    __real_ms_shard_forget(of, begin, end);
}

static struct ms_use used; /* the last one */
static int use_count;
CUresult __real_ms_access_uses(const struct ms_use *uses, size_t count);
CUresult __wrap_ms_access_uses(const struct ms_use *uses, size_t count);
CUresult __wrap_ms_access_uses(const struct ms_use *uses, size_t count)
{
    CHECK_EQ(count, 1);
    used = uses[0];
    use_count++;
    return __real_ms_access_uses(uses, count);
}

/* --- an allocation */

static struct ms_allocation *allocation;

static void start(void)
{
    fake_start();
    ms_config.settle_ms = 1;
    allocation = fake_allocation(BYTES);
}

static void end(void)
{
    fake_check_allocation(allocation);
    fake_allocation_free(allocation);
    fake_check_empty();
}

static void report(size_t begin, int64_t bytes)
{
    ms_block_report(allocation->address + begin, bytes);
    CHECK_EQ(ms_space_try_claim(allocation->address) != NULL, true); /* nobody has it */
    ms_space_release(allocation);
}

static void check_block(size_t offset, size_t begin, size_t end)
{
    struct ms_range block;
    CHECK(ms_carve_next_block(allocation, offset, &block));
    CHECK_EQ(block.begin, begin);
    CHECK_EQ(block.end, end);
}

static void check_no_block(size_t offset)
{
    struct ms_range block;
    CHECK(!ms_carve_next_block(allocation, offset, &block));
}

static void check_forgotten(int count, size_t begin, size_t end)
{
    CHECK_EQ(forgotten_count, count);
    CHECK_EQ(forgotten.begin, begin);
    CHECK_EQ(forgotten.end, end);
}

/* Memory is asked for, of one block alone. */
static void check_used(int count, size_t begin, size_t bytes, enum ms_need need, enum ms_reason why)
{
    CHECK_EQ(use_count, count);
    CHECK_EQ(used.begin, allocation->address + begin);
    CHECK_EQ(used.bytes, bytes);
    CHECK_EQ(used.need, need);
    CHECK_EQ(used.why, why);
}

static uint64_t handed_out(void)
{
    return ms_counter_get(MS_COUNT_BLOCKS);
}

static enum ms_kind kind_at(size_t offset)
{
    return ms_lineage_at(ms_allocation_lineage(allocation), offset).content.kind;
}

static bool has_memory(size_t offset)
{
    return fake_memory_at(allocation->address + offset) > 0;
}

/* --- reports */

MS_TEST_BETWEEN(start, end, a_report_makes_a_block_until_another_takes_it_back)
{
    report(G, 2 * G);
    check_block(0, G, 3 * G);
    CHECK(handed_out() == 1 && ms_allocation_touches(allocation) == 1);
    CHECK(kind_at(0) == MS_DEAD && kind_at(G) == MS_UNDEFINED && kind_at(3 * G) == MS_DEAD);
    CHECK(!has_memory(G) && !ms_allocation_has(allocation, MS_TRAIT_KEEPS_DEAD));
    report(G + 1, 0); /* no block begins there */
    report(0, -G);
    CHECK_EQ(ms_allocation_touches(allocation), 1);
    check_block(0, G, 3 * G);
    report(G, -2 * G);
    check_no_block(0);
    CHECK(kind_at(G) == MS_DEAD && ms_allocation_touches(allocation) == 2);
    report(BYTES - 1, 1);
    check_block(0, BYTES - 1, BYTES);
    report(BYTES - 1, 0);
    check_no_block(0);
    CHECK_EQ(handed_out(), 2);
}

MS_TEST_BETWEEN(start, end, a_report_outside_of_an_allocation_changes_nothing)
{
    const CUdeviceptr program = fake_program_memory(G);
    ms_block_report(program, G);
    ms_block_report(program, -G);
    ms_block_report(0x1000, 1);
    ms_block_report(allocation->address - 1, 10);
    report(0, BYTES + 1);
    report(BYTES - 1, 2);
    report(BYTES, 1);
    CHECK(!ms_carve_has_begun(allocation) && handed_out() == 0 &&
          ms_allocation_touches(allocation) == 0);
    report(0, BYTES);
    check_block(0, 0, BYTES);
    fake_program_memory_free(program);
}

MS_TEST_BETWEEN(start, end, a_new_block_replaces_those_it_overlaps)
{
    report(0, G);
    report(G, G);
    report(2 * G, G);
    report(3 * G, G);
    report(2 * G - 1, G + 1);
    check_block(0, 0, G);
    check_block(G, 2 * G - 1, 3 * G);
    check_block(3 * G, 3 * G, 4 * G);
    CHECK_EQ(kind_at(G), MS_DEAD);
    CHECK_EQ(handed_out(), 5);
}

/* A plan's names of what was there. */
MS_TEST_BETWEEN(start, end, a_block_that_is_taken_back_loses_its_names)
{
    report(G, 2 * G);
    report(4 * G, G);
    report(G + 1, 0);
    CHECK_EQ(forgotten_count, 0);
    report(G, 0);
    check_forgotten(1, G, 3 * G);
    report(5 * G - 1, 10); /* which overlaps it */
    check_forgotten(2, 4 * G, 5 * G);
}

MS_TEST_BETWEEN(start, end, an_allocation_used_as_a_whole_has_no_blocks)
{
    fake_set(allocation, 0, G, &(struct ms_content){.kind = MS_FILL});
    report(2 * G, G);
    check_block(0, 0, BYTES);
    ms_window_end(false);
    report(2 * G, G);
    CHECK(!ms_carve_has_begun(allocation) && handed_out() == 0 && use_count == 0);
}

MS_TEST_BETWEEN(start, end, a_block_that_cannot_be_recorded_gets_memory)
{
    report(0, G);
    ms_window_end(false);
    failing_growth = 1;
    report(2 * G, G);
    CHECK_EQ(failing_growth, 0);
    check_used(1, 2 * G, G, MS_NEED_READ_WRITE, MS_REASON_CALL);
    check_no_block(2 * G);
    CHECK(has_memory(2 * G) && !has_memory(0) && !has_memory(3 * G));
    CHECK_EQ(handed_out(), 1);
}

/* --- memory for what is handed out */

MS_TEST_BETWEEN(start, end, a_block_after_the_window_gets_memory)
{
    report(0, G);
    CHECK(!has_memory(0));
    CHECK_EQ(use_count, 0);
    ms_window_end(false);
    report(2 * G, G - 1);
    check_used(1, 2 * G, G - 1, MS_NEED_READ_WRITE, MS_REASON_HANDED_OUT);
    CHECK(has_memory(2 * G) && !has_memory(0) && !has_memory(3 * G));
}

MS_TEST_BETWEEN(start, end, a_block_in_a_capture_gets_memory_and_keeps_it)
{
    ms_hot.captures = 1;
    report(2 * G, G);
    check_used(1, 2 * G, G, MS_NEED_READ_WRITE, MS_REASON_HANDED_OUT);
    CHECK(has_memory(2 * G) && ms_allocation_has(allocation, MS_TRAIT_KEEPS_DEAD));
    ms_hot.captures = 0;
    ms_allocation_set(allocation, MS_TRAIT_KEEPS_DEAD, false);
    report(2 * G, -G);
    CHECK(!ms_allocation_has(allocation, MS_TRAIT_KEEPS_DEAD));
    report(2 * G, G);
    ms_hot.captures = 1;
    report(2 * G, -G);
    CHECK(ms_allocation_has(allocation, MS_TRAIT_KEEPS_DEAD));
    ms_hot.captures = 0;
}

MS_TEST_BETWEEN(start, end, a_block_gets_memory_while_unexamined_work_is_queued)
{
    ms_examining_expect();
    ms_examining_missed();
    fake.is_busy = true;
    report(2 * G, G);
    check_used(1, 2 * G, G, MS_NEED_READ_WRITE, MS_REASON_UNEXAMINED);
    CHECK(has_memory(2 * G));
    fake.is_busy = false;
    report(4 * G, G);
    CHECK(!has_memory(4 * G));
    CHECK_EQ(use_count, 1);
}

MS_TEST_BETWEEN(start, end, a_block_in_memory_is_not_materialised_again)
{
    ms_window_end(false);
    report(2 * G, 2 * G);
    fake_set(allocation, 2 * G, 4 * G, &(struct ms_content){.kind = MS_RESIDENT});
    report(2 * G, 0);
    ms_carve_settle(allocation, 0, BYTES);
    use_count = 0;
    report(2 * G, G);
    CHECK_EQ(use_count, 0);
    report(3 * G, G + 1); /* the last byte has none */
    check_used(1, 3 * G, G + 1, MS_NEED_READ_WRITE, MS_REASON_HANDED_OUT);
    report(2 * G - 1, G + 1); /* the first one */
    check_used(2, 2 * G - 1, G + 1, MS_NEED_READ_WRITE, MS_REASON_HANDED_OUT);
}

/* --- what was left over */

/* A block was in memory, and is taken back; all else is dead. */
static void leave(void)
{
    start();
    ms_config.leftover_bytes = BYTES;
    report(2 * G, 2 * G);
    fake_set(allocation, 2 * G, 4 * G, &(struct ms_content){.kind = MS_RESIDENT});
    report(2 * G, 0);
    CHECK_EQ(ms_carve_leftover_bytes(), 2 * G);
    CHECK_EQ(kind_at(2 * G), MS_RESIDENT);
}

MS_TEST_BETWEEN(leave, end, a_block_in_the_window_gives_left_over_memory_back_first)
{
    report(2 * G, G - 1); /* less than a granule */
    CHECK(has_memory(2 * G));
    report(2 * G, 0);
    report(3 * G + 1, 2 * G); /* of none a whole granule */
    CHECK(has_memory(3 * G));
    report(3 * G + 1, 0);
    report(3 * G, G);
    CHECK(!has_memory(3 * G) && !has_memory(2 * G));
    CHECK_EQ(ms_carve_leftover_bytes(), 0);
    CHECK_EQ(kind_at(3 * G), MS_UNDEFINED);
}

/* Nor what is in no allocation. */
MS_TEST_BETWEEN(leave, end, a_block_in_the_window_leaves_memory_beside_it)
{
    report(G, G);
    report(4 * G, G);
    report(2 * G, BYTES); /* it does not fit */
    CHECK(has_memory(2 * G) && has_memory(3 * G));
    CHECK_EQ(ms_carve_leftover_bytes(), 2 * G);
}

MS_TEST_BETWEEN(leave, end, a_block_in_the_window_gives_memory_at_the_end_back)
{
    report(6 * G, 2 * G);
    fake_set(allocation, 6 * G, BYTES, &(struct ms_content){.kind = MS_RESIDENT});
    report(6 * G, 0);
    report(6 * G, 2 * G);
    CHECK(!has_memory(6 * G) && !has_memory(BYTES - 1));
}

MS_TEST_BETWEEN(leave, end, a_block_in_the_window_gives_much_left_over_memory_back)
{
    ms_config.leftover_bytes = 2 * G;
    report(5 * G, G);
    CHECK(has_memory(2 * G));
    ms_config.leftover_bytes = 2 * G - 1;
    report(6 * G, G);
    CHECK(!has_memory(2 * G));
}

MS_TEST_BETWEEN(leave, end, a_block_after_the_window_gives_nothing_back)
{
    ms_config.leftover_bytes = 0;
    ms_window_end(false);
    report(5 * G, G);
    CHECK(has_memory(2 * G));
}

MS_TEST_BETWEEN(leave, end, a_block_after_the_window_uses_left_over_memory)
{
    ms_window_end(false);
    report(2 * G, 2 * G);
    CHECK(has_memory(2 * G));
    CHECK_EQ(kind_at(2 * G), MS_RESIDENT);
    CHECK_EQ(fake.calls[FAKE_mem_unmap], 0);
}

/* So many launches, and some time, in which nothing was recorded. */
static void launch(unsigned launches)
{
    nanosleep(&(struct timespec){.tv_nsec = 20 * 1000 * 1000}, NULL);
    for (unsigned i = 0; i < launches; i++)
        CHECK(!ms_window_is_due());
}

MS_TEST_BETWEEN(leave, end, a_program_that_takes_its_memory_again_has_moved_on)
{
    CHECK(!ms_defers_any());
    launch(63);
    report(2 * G, 2 * G); /* a sign of a launch */
    CHECK(ms_window_now().is_settled && ms_window_now().has_moved_on);
    CHECK_EQ(kind_at(2 * G), MS_RESIDENT);
    CHECK_EQ(fake.calls[FAKE_mem_unmap], 0);
}

MS_TEST_BETWEEN(leave, end, a_program_that_has_deferred_memory_has_not)
{
    struct ms_allocation *other = fake_allocation(G);
    fake_set(other, 0, G, &(struct ms_content){.kind = MS_FILL});
    CHECK(ms_defers_any());
    launch(63);
    report(2 * G, 2 * G);
    CHECK(!ms_window_now().is_settled && !has_memory(2 * G));
    fake_allocation_free(other);
}

/* --- what was handed out while it was ready */

MS_TEST_BETWEEN(leave, end, a_report_takes_a_block_handed_out_unseen_back)
{
    const CUdeviceptr address = allocation->address + 2 * G;
    CHECK(ms_ready_report(address, 1));
    const uint32_t touches = ms_allocation_touches(allocation);
    report(2 * G, 0);
    CHECK_EQ(ms_allocation_touches(allocation), touches + 1);
    CHECK(!ms_ready_report(address, 0)); /* it is not handed out any more */
    CHECK_EQ(ms_carve_leftover_bytes(), 2 * G);
    CHECK(ms_ready_report(address, 2));
    report(2 * G + 1, 10);
    CHECK(!ms_ready_report(address, 0));
    check_block(0, 2 * G + 1, 2 * G + 11);
}

/* All of the allocation was in use, and nothing of it is deferred. */
static void leave_all(void)
{
    start();
    ms_config.leftover_bytes = BYTES;
    report(0, BYTES);
    fake_set(allocation, 0, BYTES, &(struct ms_content){.kind = MS_RESIDENT});
    report(0, 0);
    ms_window_end(false);
    report(2 * G, G);
    report(2 * G, 0);
}

MS_TEST_BETWEEN(leave_all, end, a_report_leaves_a_block_handed_out_unseen_beside_it)
{
    const CUdeviceptr address = allocation->address + 2 * G;
    CHECK(ms_ready_report(address, G));
    report(G, G);
    report(3 * G, G);
    report(3 * G, 0);
    report(G, 0);
    check_no_block(0);
    CHECK(ms_ready_report(address, 0)); /* so it was, until now */
    CHECK(ms_ready_report(address, G));
    report(3 * G - 1, 1); /* its last byte */
    CHECK(!ms_ready_report(address, 0));
    check_block(0, 3 * G - 1, 3 * G);
}

/* --- addresses that a stream has not got to yet */

MS_TEST_BETWEEN(start, end, a_block_is_searched_for_addresses_before_it_is_dead)
{
    const struct ms_content fill = {.kind = MS_FILL, .pattern = 5};
    report(2 * G, G);
    fake_set(allocation, 2 * G, 3 * G, &fill);
    report(2 * G, 0);
    CHECK(!has_memory(2 * G));
    report(2 * G, G);
    fake_set(allocation, 2 * G, 3 * G, &fill);
    ms_hot.late_payloads = 1;
    use_count = 0;
    report(2 * G, 0);
    check_used(1, 2 * G, G, MS_NEED_REACH, MS_REASON_CALL);
    CHECK(has_memory(2 * G) && !has_memory(3 * G));
    report(5 * G, 0); /* nothing of which is kept */
    ms_block_report(0x1000, 0);
    CHECK_EQ(use_count, 1);
    ms_hot.late_payloads = 0;
}
