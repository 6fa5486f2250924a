/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/calls/blocks.h"

#include <time.h>

#include "runtime/config/config.h"
#include "runtime/driver/flags.h"
#include "runtime/fill/access.h"
#include "runtime/memory/carve.h"
#include "runtime/memory/memory_internal.h"
#include "runtime/memory/ready.h"
#include "runtime/order/examining.h"
#include "runtime/shard/shard.h"
#include "runtime/state/counters.h"
#include "runtime/state/window.h"
#include "tests/unit/story.h"

enum { BYTES = 8 * FAKE_GRANULE };

/* --- a heap of which one growth fails */

static int failing_growth; /* 0: none */
WRAPS(ms_heap_realloc, ms_shard_forget, ms_access_uses);
void *__wrap_ms_heap_realloc(void *memory, size_t bytes)
{
    const bool fails = failing_growth > 0 && --failing_growth == 0;
    return fails ? NULL : __real_ms_heap_realloc(memory, bytes);
}

/* --- what it tells others */

static struct ms_range forgotten; /* the last one */
static int forgotten_count;
void __wrap_ms_shard_forget(const struct ms_allocation *of, size_t begin, size_t end)
{
    forgotten = (struct ms_range){begin, end};
    forgotten_count++;
    __real_ms_shard_forget(of, begin, end);
}

static struct ms_use used; /* the last one */
static int use_count;
CUresult __wrap_ms_access_uses(const struct ms_use *uses, size_t count)
{
    CHECK_EQ(count, 1);
    used = uses[0];
    use_count++;
    return __real_ms_access_uses(uses, count);
}

/* --- an allocation */

static void begin(void)
{
    fake_start();
    ms_config.settle_ms = 1;
    has(BYTES);
}

static void reports(size_t begin, int64_t bytes)
{
    ms_block_report(all[0]->address + begin, bytes);
    CHECK(ms_space_try_claim(all[0]->address) != NULL); /* nobody has it */
    releases(0);
}

static void has_block(size_t offset, size_t begin, size_t end)
{
    struct ms_range block;
    CHECK(ms_carve_next_block(all[0], offset, &block));
    CHECK_EQ(block.begin, begin);
    CHECK_EQ(block.end, end);
}

static void has_no_block(size_t offset)
{
    struct ms_range block;
    CHECK(!ms_carve_next_block(all[0], offset, &block));
}

static void forgot(int count, size_t begin, size_t end)
{
    CHECK_EQ(forgotten_count, count);
    CHECK_EQ(forgotten.begin, begin);
    CHECK_EQ(forgotten.end, end);
}

/* Memory is asked for, of one block alone. */
static void asks_for(int count, size_t begin, size_t bytes, enum ms_need need, enum ms_reason why)
{
    CHECK_EQ(use_count, count);
    CHECK_EQ(used.begin, all[0]->address + begin);
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
    return ms_lineage_at(ms_allocation_lineage(all[0]), offset).content.kind;
}

static bool is_backed(size_t offset)
{
    return fake_memory_at(all[0]->address + offset) > 0;
}

/* --- reports */

STORY(a_report_makes_a_block_until_another_takes_it_back, reports(G, 2 * G), has_block(0, G, 3 * G),
      IS(handed_out() == 1 && all[0]->notes.touches == 1),
      IS(kind_at(0) == MS_DEAD && kind_at(G) == MS_UNDEFINED && kind_at(3 * G) == MS_DEAD),
      IS(!is_backed(G) && !all[0]->notes.keeps_dead), reports(G + 1, 0) /* no block begins there */,
      reports(0, -G), EQUALS(all[0]->notes.touches, 1), has_block(0, G, 3 * G), reports(G, -2 * G),
      has_no_block(0), IS(kind_at(G) == MS_DEAD && all[0]->notes.touches == 2),
      reports(BYTES - 1, 1), has_block(0, BYTES - 1, BYTES), reports(BYTES - 1, 0), has_no_block(0),
      EQUALS(handed_out(), 2))
STORY(a_report_outside_of_an_allocation_changes_nothing, others_have(G), ms_block_report(others, G),
      ms_block_report(others, -G), ms_block_report(0x1000, 1),
      ms_block_report(all[0]->address - 1, 10), reports(0, BYTES + 1), reports(BYTES - 1, 2),
      reports(BYTES, 1),
      IS(!ms_carve_has_begun(all[0]) && handed_out() == 0 && all[0]->notes.touches == 0),
      reports(0, BYTES), has_block(0, 0, BYTES))
STORY(a_new_block_replaces_those_it_overlaps, reports(0, G), reports(G, G), reports(2 * G, G),
      reports(3 * G, G), reports(2 * G - 1, G + 1), has_block(0, 0, G),
      has_block(G, 2 * G - 1, 3 * G), has_block(3 * G, 3 * G, 4 * G), EQUALS(kind_at(G), MS_DEAD),
      EQUALS(handed_out(), 5))
/* A plan's names of what was there. */
STORY(a_block_that_is_taken_back_loses_its_names, reports(G, 2 * G), reports(4 * G, G),
      reports(G + 1, 0), EQUALS(forgotten_count, 0), reports(G, 0), forgot(1, G, 3 * G),
      reports(5 * G - 1, 10) /* which overlaps it */, forgot(2, 4 * G, 5 * G))
STORY(an_allocation_used_as_a_whole_has_no_blocks, writes(0, 0, G, sevens), reports(2 * G, G),
      has_block(0, 0, BYTES), ms_window_end(false), reports(2 * G, G),
      IS(!ms_carve_has_begun(all[0]) && handed_out() == 0 && use_count == 0))
STORY(a_block_that_cannot_be_recorded_gets_memory, reports(0, G), ms_window_end(false),
      failing_growth = 1, reports(2 * G, G), EQUALS(failing_growth, 0),
      asks_for(1, 2 * G, G, MS_NEED_READ_WRITE, MS_REASON_CALL), has_no_block(2 * G),
      IS(is_backed(2 * G) && !is_backed(0) && !is_backed(3 * G)), EQUALS(handed_out(), 1))

/* --- memory for what is handed out */

STORY(a_block_after_the_window_gets_memory, reports(0, G), IS(!is_backed(0)), EQUALS(use_count, 0),
      ms_window_end(false), reports(2 * G, G - 1),
      asks_for(1, 2 * G, G - 1, MS_NEED_READ_WRITE, MS_REASON_HANDED_OUT),
      IS(is_backed(2 * G) && !is_backed(0) && !is_backed(3 * G)))
STORY(a_block_in_a_capture_gets_memory_and_keeps_it, atomic_store(&ms_hot.captures, 1),
      reports(2 * G, G), asks_for(1, 2 * G, G, MS_NEED_READ_WRITE, MS_REASON_HANDED_OUT),
      IS(is_backed(2 * G) && all[0]->notes.keeps_dead), atomic_store(&ms_hot.captures, 0),
      all[0]->notes.keeps_dead = false, reports(2 * G, -G), IS(!all[0]->notes.keeps_dead),
      reports(2 * G, G), atomic_store(&ms_hot.captures, 1), reports(2 * G, -G),
      IS(all[0]->notes.keeps_dead), atomic_store(&ms_hot.captures, 0))
STORY(a_block_gets_memory_while_unexamined_work_is_queued, ms_examining_expect(),
      ms_examining_missed(), fake.is_busy = true, reports(2 * G, G),
      asks_for(1, 2 * G, G, MS_NEED_READ_WRITE, MS_REASON_UNEXAMINED), IS(is_backed(2 * G)),
      fake.is_busy = false, reports(4 * G, G), IS(!is_backed(4 * G)), EQUALS(use_count, 1))
STORY(a_block_in_memory_is_not_materialised_again, ms_window_end(false), reports(2 * G, 2 * G),
      writes(0, 2 * G, 4 * G, resident), reports(2 * G, 0), ms_carve_settle(all[0], 0, BYTES),
      use_count = 0, reports(2 * G, G), EQUALS(use_count, 0),
      reports(3 * G, G + 1) /* the last byte has none */,
      asks_for(1, 3 * G, G + 1, MS_NEED_READ_WRITE, MS_REASON_HANDED_OUT),
      reports(2 * G - 1, G + 1) /* the first one */,
      asks_for(2, 2 * G - 1, G + 1, MS_NEED_READ_WRITE, MS_REASON_HANDED_OUT))

/* --- dead memory */

/* A block was in memory, and is taken back; all else is dead. */
static void leaves(void)
{
    ms_config.dead_bytes = BYTES;
    reports(2 * G, 2 * G);
    writes(0, 2 * G, 4 * G, resident);
    reports(2 * G, 0);
    CHECK_EQ(ms_carve_dead_memory(), 2 * G);
    CHECK_EQ(kind_at(2 * G), MS_RESIDENT);
}

STORY(a_block_in_the_window_gives_left_over_memory_back_first, leaves(),
      reports(2 * G, G - 1) /* less than a granule */, IS(is_backed(2 * G)), reports(2 * G, 0),
      reports(3 * G + 1, 2 * G) /* of none a whole granule */, IS(is_backed(3 * G)),
      reports(3 * G + 1, 0), reports(3 * G, G), IS(!is_backed(3 * G) && !is_backed(2 * G)),
      EQUALS(ms_carve_dead_memory(), 0), EQUALS(kind_at(3 * G), MS_UNDEFINED))
/* Nor what is in no allocation. */
STORY(a_block_in_the_window_leaves_memory_beside_it, leaves(), reports(G, G), reports(4 * G, G),
      reports(2 * G, BYTES) /* it does not fit */, IS(is_backed(2 * G) && is_backed(3 * G)),
      EQUALS(ms_carve_dead_memory(), 2 * G))
STORY(a_block_in_the_window_gives_memory_at_the_end_back, leaves(), reports(6 * G, 2 * G),
      writes(0, 6 * G, BYTES, resident), reports(6 * G, 0), reports(6 * G, 2 * G),
      IS(!is_backed(6 * G) && !is_backed(BYTES - 1)))
STORY(a_block_in_the_window_gives_much_left_over_memory_back, leaves(),
      ms_config.dead_bytes = 2 * G, reports(5 * G, G), IS(is_backed(2 * G)),
      ms_config.dead_bytes = 2 * G - 1, reports(6 * G, G), IS(!is_backed(2 * G)))
STORY(a_block_after_the_window_gives_nothing_back, leaves(), ms_config.dead_bytes = 0,
      ms_window_end(false), reports(5 * G, G), IS(is_backed(2 * G)))
STORY(a_block_after_the_window_uses_left_over_memory, leaves(), ms_window_end(false),
      reports(2 * G, 2 * G), IS(is_backed(2 * G)), EQUALS(kind_at(2 * G), MS_RESIDENT),
      EQUALS(fake.calls[FAKE_mem_unmap], 0))

/* So many launches, and some time, in which nothing was recorded. */
static void launches(unsigned count)
{
    nanosleep(&(struct timespec){.tv_nsec = 20 * 1000 * 1000}, NULL);
    for (unsigned i = 0; i < count; i++)
        CHECK(!ms_window_is_due());
}

STORY(a_program_that_takes_its_memory_again_has_moved_on, leaves(), IS(!ms_defers_any()),
      launches(63), reports(2 * G, 2 * G) /* a sign of a launch */, IS(ms_window_now().is_settled),
      IS(ms_window_now().has_moved_on), EQUALS(kind_at(2 * G), MS_RESIDENT),
      EQUALS(fake.calls[FAKE_mem_unmap], 0))
STORY(a_program_that_has_deferred_memory_has_not, leaves(), has(G), writes(1, 0, G, sevens),
      IS(ms_defers_any()), launches(63), reports(2 * G, 2 * G),
      IS(!ms_window_now().is_settled && !is_backed(2 * G)))

/* --- what was handed out while it was ready */

static bool hand_out(size_t begin, int64_t bytes)
{
    return ms_ready_report(all[0]->address + begin, bytes);
}

STORY(a_report_takes_a_block_handed_out_unseen_back, leaves(), IS(hand_out(2 * G, 1)),
      EQUALS(all[0]->notes.touches, 2), reports(2 * G, 0), EQUALS(all[0]->notes.touches, 3),
      IS(!hand_out(2 * G, 0)) /* it is not handed out any more */,
      EQUALS(ms_carve_dead_memory(), 2 * G), IS(hand_out(2 * G, 2)), reports(2 * G + 1, 10),
      IS(!hand_out(2 * G, 0)), has_block(0, 2 * G + 1, 2 * G + 11))

/* All of the allocation was in use, and nothing of it is deferred. */
static void leaves_all(void)
{
    ms_config.dead_bytes = BYTES;
    reports(0, BYTES);
    writes(0, 0, BYTES, resident);
    reports(0, 0);
    ms_window_end(false);
    reports(2 * G, G);
    reports(2 * G, 0);
}

STORY(a_report_leaves_a_block_handed_out_unseen_beside_it, leaves_all(), IS(hand_out(2 * G, G)),
      reports(G, G), reports(3 * G, G), reports(3 * G, 0), reports(G, 0), has_no_block(0),
      IS(hand_out(2 * G, 0)) /* so it was, until now */, IS(hand_out(2 * G, G)),
      reports(3 * G - 1, 1) /* its last byte */, IS(!hand_out(2 * G, 0)),
      has_block(0, 3 * G - 1, 3 * G))

/* --- addresses that a stream has not got to yet */

STORY(a_block_is_searched_for_addresses_before_it_is_dead, reports(2 * G, G),
      writes(0, 2 * G, 3 * G, sevens), reports(2 * G, 0), IS(!is_backed(2 * G)), reports(2 * G, G),
      writes(0, 2 * G, 3 * G, sevens), atomic_store(&ms_hot.late_payloads, 1), use_count = 0,
      reports(2 * G, 0), asks_for(1, 2 * G, G, MS_NEED_REACH, MS_REASON_CALL),
      IS(is_backed(2 * G) && !is_backed(3 * G)), reports(5 * G, 0) /* nothing of which is kept */,
      ms_block_report(0x1000, 0), EQUALS(use_count, 1), atomic_store(&ms_hot.late_payloads, 0))
