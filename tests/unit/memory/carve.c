/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/memory/carve.h"

#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "runtime/fill/replay.h"
#include "runtime/memory/allocation.h"
#include "runtime/memory/bytes.h"
#include "runtime/memory/memory_internal.h"
#include "runtime/memory/ready.h"
#include "runtime/memory/recorded_launch.h"
#include "tests/unit/between.h"
#include "tests/unit/fake_driver.h"
#include "tests/unit/files/files.h"

enum { G = FAKE_GRANULE, GRANULES = 8, BYTES = GRANULES * G - 100 };

static const struct ms_content undefined = {.kind = MS_UNDEFINED}, dead = {.kind = MS_DEAD},
                               unmapped = {.kind = MS_UNMAPPED}, resident = {.kind = MS_RESIDENT},
                               fill = {.kind = MS_FILL, .pattern = 7},
                               cached = {.kind = MS_FILL, .pattern = 7, .cached = true};
static struct ms_allocation *allocation;

/* --- a heap that may be out of memory */

static int may_grow = 1000000;
WRAPS(ms_heap_realloc);
void *__wrap_ms_heap_realloc(void *memory, size_t bytes)
{
    return may_grow-- > 0 ? __real_ms_heap_realloc(memory, bytes) : NULL;
}

/* --- an allocation, claimed, and blocks of it */

static void start_with(size_t bytes)
{
    fake_start();
    allocation = fake_allocation(bytes);
    CHECK(ms_space_claim(allocation->address) == allocation);
}

static void start(void)
{
    start_with(BYTES);
}

static void end(void)
{
    ms_space_release(allocation);
    fake_check_allocation(allocation);
    fake_allocation_free(allocation);
    CHECK_EQ(ms_carve_dead_memory(), 0);
    fake_check_empty();
}

static void take(size_t begin, size_t end)
{
    CHECK_EQ(ms_carve_take(allocation, begin, end), MS_CARVED);
}

static void give(size_t begin, size_t wanted_end)
{
    size_t end = 0;
    CHECK(ms_carve_return(allocation, begin, &end));
    CHECK_EQ(end, wanted_end);
}

/* With memory of its own if it is present. */
static void set(size_t begin, size_t end, const struct ms_content *content)
{
    if (ms_content_is_present(content))
        CHECK_EQ(ms_backing_cover(ms_allocation_memory(allocation), begin, end), CUDA_SUCCESS);
    CHECK(ms_lineage_set(&MS_OWN(allocation)->lineage, begin, end, content));
}

/* Ends a test from a state that no program comes to. */
static void end_anyway(void)
{
    set(0, BYTES, &resident);
    end();
}

static void check(size_t begin, size_t end, enum ms_kind kind)
{
    const struct ms_extent extent = ms_lineage_at(ms_allocation_lineage(allocation), begin);
    CHECK_EQ(extent.content.kind, kind);
    CHECK_EQ(extent.end, end);
}

static void check_no_block(size_t offset)
{
    struct ms_range block;
    CHECK(!ms_carve_next_block(allocation, offset, &block));
}

static void check_block(size_t offset, size_t begin, size_t end)
{
    struct ms_range block;
    CHECK(ms_carve_next_block(allocation, offset, &block));
    CHECK_EQ(block.begin, begin);
    CHECK_EQ(block.end, end);
}

/* --- blocks come and go */

STORY_BETWEEN(start, end, an_allocation_that_is_not_carved_is_one_block, check_block(0, 0, BYTES),
              check_block(BYTES - 1, 0, BYTES), check_no_block(BYTES),
              IS(ms_carve_is_block(allocation, 0, BYTES)))

STORY_BETWEEN(start, end_anyway, the_first_block_makes_all_else_dead, set(7 * G, BYTES, &unmapped),
              take(2 * G, 4 * G), check(0, 2 * G, MS_DEAD), check(2 * G, 4 * G, MS_UNDEFINED),
              check(4 * G, 7 * G, MS_DEAD), take(6 * G, BYTES), check(6 * G, 7 * G, MS_UNDEFINED),
              check(7 * G, BYTES, MS_UNMAPPED), check_block(0, 2 * G, 4 * G),
              check_block(4 * G - 1, 2 * G, 4 * G), check_block(4 * G, 6 * G, BYTES),
              check_no_block(BYTES))

static void check_stays_whole(void)
{
    CHECK_EQ(ms_carve_take(allocation, 2 * G, 4 * G), MS_CARVED_NOT);
    CHECK(!ms_carve_has_begun(allocation));
    check_block(0, 0, BYTES);
    set(0, BYTES, &undefined);
    CHECK_EQ(ms_carve_take(allocation, 2 * G, 4 * G), MS_CARVED_NOT); /* for good */
    check(0, BYTES, MS_UNDEFINED);
}

STORY_BETWEEN(start, end, an_allocation_written_as_a_whole_stays_whole, set(0, G, &fill),
              set(G, 2 * G, &resident), check_stays_whole())

STORY_BETWEEN(start, end, an_allocation_with_memory_or_dead_bytes_stays_whole, set(0, G, &resident),
              set(G, 2 * G, &dead), check_stays_whole())

/* Its heap is empty from the nth growth on. */
static enum ms_carved take_with(int growths, size_t begin, size_t end)
{
    may_grow = growths;
    const enum ms_carved carved = ms_carve_take(allocation, begin, end);
    may_grow = 1000000;
    return carved;
}

MS_TEST_BETWEEN(start, end, an_allocation_stays_whole_without_memory_for_a_record)
{
    CHECK_EQ(take_with(0, 2 * G, 4 * G), MS_CARVED_NOT);
    check_block(0, 0, BYTES);
    check(0, BYTES, MS_UNDEFINED);
    take(2 * G, 4 * G); /* was never used */
}

MS_TEST(a_block_without_memory_for_its_record_is_dead)
{
    enum ms_carved carved = MS_CARVED_FAILED;
    for (int growths = 0; carved != MS_CARVED; growths++) {
        start();
        take(0, G);
        carved = take_with(growths, 2 * G, 4 * G);
        CHECK(growths > 1 || carved == MS_CARVED_FAILED);
        CHECK_EQ(carved == MS_CARVED ? 2 : 1, MS_OWN(allocation)->blocks.all.count);
        if (carved != MS_CARVED) {
            check(G, BYTES, MS_DEAD);
            check_no_block(G);
        }
        end();
    }
}

MS_TEST_BETWEEN(start, end_anyway, a_returned_block_is_dead_and_its_memory_left_over)
{
    size_t unchanged = 77;
    take(0, 5 * G);
    take(5 * G, 6 * G);
    set(0, G, &fill);
    set(G, 2 * G, &cached);
    set(2 * G, 3 * G, &resident);
    set(3 * G, 4 * G, &unmapped);
    set(5 * G, 6 * G, &resident);
    CHECK(!ms_carve_return(allocation, G, &unchanged));
    CHECK(!ms_carve_return(allocation, 6 * G, &unchanged));
    CHECK_EQ(unchanged, 77);
    give(0, 5 * G);
    check(0, G, MS_DEAD);
    check(G, 3 * G, MS_RESIDENT);
    check(3 * G, 4 * G, MS_UNMAPPED);
    check(4 * G, 5 * G, MS_DEAD);
    CHECK_EQ(ms_allocation_lineage(allocation)->cached_bytes, 0);
    CHECK_EQ(ms_carve_dead_memory(), 2 * G);
    give(5 * G, 6 * G);
    CHECK_EQ(ms_carve_dead_memory(), 3 * G);
    take(0, 2 * G); /* of which one granule is used again */
    CHECK_EQ(ms_carve_dead_memory(), 2 * G);
    check(0, G, MS_UNDEFINED);
    check(G, 3 * G, MS_RESIDENT);
    ms_carve_set_dead(allocation, G);
    take(2 * G, 6 * G); /* of more than is dead */
    CHECK_EQ(ms_carve_dead_memory(), 0);
}

MS_TEST_BETWEEN(start, end, memory_that_a_graph_may_use_is_not_left_over)
{
    allocation->notes.keeps_dead = true;
    take(0, G);
    set(0, G, &resident);
    give(0, G);
    CHECK_EQ(ms_carve_dead_memory(), 0);
}

MS_TEST_BETWEEN(start, end, a_block_meets_what_is_left_over_there)
{
    take(0, 4 * G);
    set(0, G - 1, &resident);
    give(0, 4 * G);
    CHECK_EQ(ms_carve_dead(allocation, 0, 4 * G), G - 1);
    set(0, 4 * G, &resident);
    CHECK_EQ(ms_carve_dead(allocation, 0, G), G - 1); /* that much is not dead */
    ms_carve_set_dead(allocation, G);
    CHECK_EQ(ms_carve_dead(allocation, 0, G), G);
    CHECK_EQ(ms_carve_dead(allocation, 0, G - 1), G - 1);
    CHECK_EQ(ms_carve_dead(allocation, 3 * G, 6 * G), G);
    CHECK_EQ(ms_carve_dead(allocation, 3 * G + 1, 6 * G), G - 1);
}

/* --- what is in a block */

MS_TEST_BETWEEN(start, end, blocks_side_by_side_hold_what_lies_in_them)
{
    take(G, 2 * G);
    take(2 * G, 3 * G);
    take(4 * G, 5 * G);
    CHECK(ms_carve_is_block(allocation, G, 3 * G));
    CHECK(!ms_carve_is_block(allocation, G - 1, 3 * G));
    CHECK(!ms_carve_is_block(allocation, G, 3 * G + 1));
    CHECK(!ms_carve_is_block(allocation, 2 * G, 5 * G));
    CHECK(!ms_carve_is_block(allocation, 5 * G, 5 * G + 1));
}

/* Whether such a use makes it one block. */
static bool strays(size_t begin, size_t end)
{
    MS_OWN(allocation)->blocks.uses_dead = false;
    ms_carve_add_use(allocation, begin, end);
    const bool strays = MS_OWN(allocation)->blocks.uses_dead;
    CHECK(!strays || ms_carve_is_block(allocation, 0, BYTES));
    return strays;
}

MS_TEST_BETWEEN(start, end, a_use_outside_of_a_block_strays)
{
    CHECK(!strays(0, BYTES));
    take(2 * G, 4 * G);
    CHECK(!strays(2 * G, 4 * G) && !strays(4 * G - 1, 4 * G));
    CHECK(strays(2 * G - 1, 4 * G));
    CHECK(strays(2 * G, 4 * G + 1));
    CHECK(strays(4 * G, 4 * G + 1));
    ms_carve_add_use(allocation, 2 * G, 4 * G);
    CHECK(MS_OWN(allocation)->blocks.uses_dead); /* for good */
}

/* --- blocks that were handed out while they were ready */

/* The block [0, 2G) was taken back, and all of it has memory; so does 4G to 6G. */
static void make_ready(void)
{
    start();
    ms_hot.keeps_memory = 1;
    take(0, 2 * G);
    take(4 * G, 6 * G);
    set(0, 2 * G, &resident);
    set(4 * G, 6 * G, &resident);
    give(0, 2 * G);
    give(4 * G, 6 * G);
}

static bool hand_out(size_t begin, size_t bytes)
{
    return ms_ready_report(allocation->address + begin, (int64_t)bytes);
}

MS_TEST_BETWEEN(make_ready, end, memory_handed_out_while_ready_becomes_a_block)
{
    CHECK(!hand_out(0, 2 * G + 1)); /* more than there is memory for */
    CHECK(hand_out(0, 2 * G - 10) && hand_out(4 * G, G));
    check_no_block(0);
    ms_carve_settle(allocation, 2 * G - 10, 4 * G); /* between them */
    check_no_block(0);
    ms_carve_settle(allocation, 2 * G - 11, 4 * G);
    check_block(0, 0, 2 * G - 10);
    check_no_block(2 * G);
    CHECK_EQ(ms_carve_dead_memory(), 10 + 2 * G);
    ms_carve_settle(allocation, 0, BYTES);
    check_block(2 * G, 4 * G, 5 * G);
    CHECK_EQ(ms_carve_dead_memory(), 10 + G);
    CHECK(!hand_out(0, G)); /* none is ready any more */
    CHECK(!allocation->notes.keeps_dead && !MS_OWN(allocation)->blocks.uses_dead);
}

STORY_BETWEEN(make_ready, end, an_allocation_settled_in_part_stays_ready_elsewhere,
              ms_carve_settle(allocation, 0, BYTES - 1), ms_carve_settle(allocation, 1, BYTES),
              IS(hand_out(0, G)), IS(ms_ready_report(allocation->address, 0)),
              IS(hand_out(4 * G, G)), ms_carve_settle(allocation, 4 * G, 4 * G + 1),
              check_block(0, 4 * G, 5 * G), IS(hand_out(0, G)),
              ms_carve_settle(allocation, 0, BYTES), check_block(0, 0, G))

STORY_BETWEEN(make_ready, end, a_block_handed_out_takes_the_place_of_older_blocks,
              IS(hand_out(0, 2 * G)), take(G, 3 * G), take(3 * G, 4 * G),
              ms_carve_settle(allocation, 0, G), check_block(0, 0, 2 * G),
              check_block(2 * G, 3 * G, 4 * G))

MS_TEST_BETWEEN(make_ready, end, a_block_in_its_last_byte_is_older_too)
{
    size_t old_end;
    CHECK(hand_out(0, 2 * G));
    take(2 * G - 1, 2 * G);
    take(2 * G, 2 * G + 1);
    ms_carve_settle(allocation, 0, G);
    check_block(0, 0, 2 * G);
    CHECK(!ms_carve_return(allocation, 2 * G - 1, &old_end));
    check_block(2 * G, 2 * G, 2 * G + 1);
}

/* It is part of the whole, whose memory stays. */
MS_TEST_BETWEEN(make_ready, end, a_block_that_cannot_be_recorded_strays)
{
    take(2 * G, 3 * G);
    take(3 * G, 4 * G);
    take(6 * G, BYTES); /* the list of blocks is full */
    CHECK(hand_out(0, 2 * G));
    may_grow = 0;
    ms_carve_settle(allocation, 0, BYTES);
    may_grow = 1000000;
    CHECK(allocation->notes.keeps_dead && MS_OWN(allocation)->blocks.uses_dead);
}

MS_TEST_BETWEEN(make_ready, end, a_use_of_what_was_handed_out_does_not_stray)
{
    CHECK(strays(G, 2 * G));
    CHECK(hand_out(0, 2 * G));
    CHECK(!strays(0, 2 * G) && !strays(G, 2 * G) && !strays(2 * G - 1, 2 * G));
    CHECK(strays(0, 2 * G + 1) && strays(2 * G, 2 * G + 1));
    CHECK(strays(4 * G, 5 * G)); /* is ready only */
    CHECK(hand_out(4 * G, G));
    CHECK(!strays(4 * G, 5 * G) && !strays(4 * G + 1, 5 * G) && strays(4 * G, 5 * G + 1));
}

MS_TEST_BETWEEN(make_ready, end, a_cut_shortens_a_block_that_was_handed_out)
{
    CHECK(hand_out(0, 2 * G));
    ms_carve_cut(allocation, G, 3 * G);
    check_block(0, 0, G);
    check_no_block(G);
    CHECK(!hand_out(4 * G, G)); /* none is ready any more */
}

MS_TEST_BETWEEN(make_ready, end, a_block_may_be_handed_out_over_smaller_ones)
{
    take(G, 2 * G);
    give(G, 2 * G);
    CHECK(hand_out(0, 2 * G));
    CHECK(!strays(G, 2 * G)); /* at the address of a ready one */
}

MS_TEST_BETWEEN(start, end, a_block_that_is_not_all_in_memory_is_not_ready)
{
    take(0, G);
    give(0, G);
    CHECK(!hand_out(0, 1));
    take(0, G);
    take(G, 2 * G);
    set(0, G, &resident);
    give(0, G);
    CHECK(!hand_out(0, 1)); /* the other block is not written yet */
    set(G, 2 * G, &resident);
    give(G, 2 * G);
    CHECK(hand_out(G, 1) && !hand_out(0, 1));
    ms_carve_settle(allocation, 0, BYTES);
}

MS_TEST_BETWEEN(start, end, a_block_with_a_shadow_is_not_ready)
{
    struct ms_backing shadow = {0};
    take(0, G);
    set(0, G, &resident);
    allocation->notes.shadow = &shadow;
    give(0, G);
    allocation->notes.shadow = NULL;
    CHECK(!hand_out(0, 1));
}

STORY_BETWEEN(start, end, a_block_of_one_byte_is_ready, take(0, 1), set(0, 1, &resident),
              give(0, 1), IS(hand_out(0, 1) && !hand_out(1, 1)),
              ms_carve_settle(allocation, 0, BYTES), check_block(0, 0, 1))

/* --- places */

enum { PLACES = MS_READY_WAYS + 2, LARGE = 64 << 20, BLOCK = 512 };
static size_t blocks[PLACES]; /* for which there are only MS_READY_WAYS places, the last of all */

static void take_and_give(size_t begin)
{
    take(begin, begin + BLOCK);
    give(begin, begin + BLOCK);
}

static void start_full(void)
{
    size_t count = 0;
    start_with(LARGE);
    ms_hot.keeps_memory = 1;
    for (size_t at = 0; count < PLACES; at += BLOCK) {
        CHECK(at < LARGE);
        if (ms_ready_set(allocation->address + at) ==
            &ms_ready.all[1 + MS_READY_PLACES - MS_READY_WAYS])
            blocks[count++] = at;
    }
    take(0, LARGE);
    set(0, LARGE, &resident);
    give(0, LARGE);
    for (size_t i = 0; i < MS_READY_WAYS; i++)
        take_and_give(blocks[i]);
}

MS_TEST_BETWEEN(start_full, end, as_many_as_there_are_places_are_ready_and_all_are_forgotten)
{
    for (size_t i = 0; i < MS_READY_WAYS; i++) {
        CHECK(hand_out(blocks[i], BLOCK));
        CHECK(hand_out(blocks[i], 0));
    }
    ms_carve_settle(allocation, 0, LARGE);
    for (size_t i = 0; i < MS_READY_WAYS; i++)
        CHECK(!hand_out(blocks[i], BLOCK));
}

MS_TEST_BETWEEN(start_full, end, a_ready_block_replaces_only_one_that_is_not_handed_out)
{
    for (size_t i = 0; i < MS_READY_WAYS; i++)
        CHECK(hand_out(blocks[i], BLOCK));
    take_and_give(blocks[MS_READY_WAYS]);
    CHECK(!hand_out(blocks[MS_READY_WAYS], BLOCK));
    CHECK(hand_out(blocks[2], 0));
    take_and_give(blocks[MS_READY_WAYS]);
    CHECK(hand_out(blocks[MS_READY_WAYS], BLOCK));
    CHECK(!hand_out(blocks[2], BLOCK));
    for (size_t i = 0; i <= MS_READY_WAYS; i++)
        CHECK_EQ(hand_out(blocks[i], 0), i != 2);
}

MS_TEST_BETWEEN(start_full, end, two_new_ready_blocks_take_the_places_of_two)
{
    size_t ready = 0;
    take_and_give(blocks[MS_READY_WAYS]);
    take_and_give(blocks[MS_READY_WAYS + 1]);
    CHECK(hand_out(blocks[MS_READY_WAYS], BLOCK) && hand_out(blocks[MS_READY_WAYS + 1], BLOCK));
    for (size_t i = 0; i < MS_READY_WAYS; i++)
        ready += hand_out(blocks[i], BLOCK);
    CHECK_EQ(ready, MS_READY_WAYS - 2);
    for (size_t i = 0; i < PLACES; i++)
        hand_out(blocks[i], 0);
}

/* The block's place shows the block as it was when it was last taken back. */
MS_TEST_BETWEEN(start_full, end, a_block_has_one_place)
{
    ms_carve_settle(allocation, 0, LARGE); /* all places are empty */
    take_and_give(blocks[0]);
    set(blocks[0] + BLOCK / 2, blocks[0] + BLOCK, &dead);
    ms_carve_set_dead(allocation, LARGE - BLOCK / 2);
    take_and_give(blocks[0]);
    CHECK(!hand_out(blocks[0], BLOCK));
    CHECK(hand_out(blocks[0], BLOCK / 2) && hand_out(blocks[0], 0));
    ms_carve_settle(allocation, 0, LARGE);
    CHECK(!hand_out(blocks[0], BLOCK / 2));
}

MS_TEST_BETWEEN(start_full, end, a_block_that_is_handed_out_stays_so)
{
    CHECK(hand_out(blocks[0], BLOCK));
    take_and_give(blocks[0]); /* which was not reported */
    CHECK(hand_out(blocks[0], 0));
}

/* --- a thread that reports meanwhile */

static _Atomic bool is_over;

static void *report(void *nothing)
{
    nanosleep(&(struct timespec){.tv_nsec = 20 * 1000 * 1000}, NULL);
    is_over = true;
    ms_ready.is_busy = false;
    return nothing;
}

enum asker { SETTLE, USE, RETURN };
static void check_waits(enum asker asker)
{
    pthread_t thread;
    size_t block_end;
    make_ready();
    take(0, G);
    is_over = false;
    ms_ready.is_busy = true;
    CHECK_EQ(pthread_create(&thread, NULL, report, NULL), 0);
    if (asker == SETTLE)
        ms_carve_settle(allocation, 0, G);
    else if (asker == USE)
        ms_carve_add_use(allocation, 4 * G, 5 * G);
    else
        CHECK(ms_carve_return(allocation, 0, &block_end));
    CHECK(is_over && !ms_ready.is_busy);
    CHECK_EQ(pthread_join(thread, NULL), 0);
    end();
}

STORY_ALONE(a_settle_a_use_and_a_return_wait_for_a_report, check_waits(SETTLE), check_waits(USE),
            check_waits(RETURN))

/* --- cutting */

MS_TEST_BETWEEN(start, end_anyway, the_bytes_around_a_cut_stay_a_block)
{
    take(0, 3 * G);
    take(3 * G, 5 * G);
    take(5 * G, 7 * G);
    ms_carve_cut(allocation, 2 * G, 6 * G);
    check_block(0, 0, 2 * G);
    check_block(2 * G, 6 * G, 7 * G);
    ms_carve_cut(allocation, 0, G);
    check_block(0, G, 2 * G);
    ms_carve_cut(allocation, 2 * G, 6 * G); /* between them */
    check_block(0, G, 2 * G);
    check_block(2 * G, 6 * G, 7 * G);
    ms_carve_cut(allocation, G, 2 * G);
    check_block(0, 6 * G, 7 * G);
    ms_carve_cut(allocation, 6 * G + 1, 7 * G - 1);
    check_block(0, 6 * G, 6 * G + 1);
    check_block(6 * G + 1, 7 * G - 1, 7 * G);
}

STORY_BETWEEN(start, end, a_cut_range_is_not_left_over, take(0, 4 * G), set(0, 4 * G, &resident),
              give(0, 4 * G), ms_carve_cut(allocation, 3 * G, 4 * G),
              EQUALS(ms_carve_dead_memory(), 3 * G))

/* The process ends: the program would use a block of which nothing is known. */
MS_TEST_BETWEEN(start, end, a_rest_that_cannot_be_recorded_is_fatal)
{
    take(0, 4 * G);
    for (int growths = 0; growths < 2; growths++) {
        int status;
        const pid_t child = fork();
        if (child == 0) {
            may_grow = growths;
            ms_carve_cut(allocation, G, 2 * G);
            _exit(0);
        }
        CHECK_EQ(waitpid(child, &status, 0), child);
        CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
    }
}

/* --- blocks in many pieces */

enum { MOST_PIECES = 1 << 17 };

/* So many, of a byte each, up to an offset. */
static void scatter(size_t end, size_t pieces)
{
    for (size_t at = end - pieces; at < end; at++)
        set(at, at + 1, &(struct ms_content){.kind = MS_FILL, .pattern = (uint32_t)at % 2});
}

static struct ms_range brought;

static CUresult bring(struct ms_allocation *of, size_t begin, size_t end)
{
    CHECK(of == allocation);
    brought = (struct ms_range){begin, end};
    return CUDA_ERROR_NOT_READY;
}

/* Leaves no trace: what is scattered would be left alone the next time. */
static bool is_scattered(size_t offset, size_t begin, size_t end)
{
    const size_t least = MS_OWN(allocation)->least_pieces;
    brought = (struct ms_range){0, 0};
    const CUresult result = ms_carve_gather(allocation, offset, bring);
    MS_OWN(allocation)->least_pieces = least;
    const bool is_brought = brought.end > 0;
    CHECK_EQ(result, is_brought ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS);
    CHECK_EQ(brought.begin, is_brought ? begin : 0);
    CHECK_EQ(brought.end, is_brought ? end : 0);
    return is_brought;
}

MS_TEST_BETWEEN(start, end, a_block_in_very_many_pieces_is_scattered)
{
    take(0, G);
    take(2 * G, 7 * G);
    scatter(7 * G, MOST_PIECES - 5);
    CHECK_EQ(ms_allocation_lineage(allocation)->extents.count, MOST_PIECES - 1);
    CHECK(!is_scattered(2 * G, 77, 77)); /* not even looked at */
    set(0, G, &fill);
    set(0, 1, &dead);
    CHECK_EQ(ms_allocation_lineage(allocation)->extents.count, MOST_PIECES);
    CHECK(!is_scattered(2 * G, 77, 77));
    set(10, 11, &dead);
    CHECK(!is_scattered(2 * G, 2 * G, 7 * G)); /* others have pieces as well */
    scatter(7 * G, MOST_PIECES - 1);
    CHECK(!is_scattered(3 * G, 2 * G, 7 * G)); /* and the rest before them */
    scatter(7 * G, MOST_PIECES);
    CHECK(is_scattered(7 * G - 1, 2 * G, 7 * G));
    CHECK(is_scattered(7 * G, 0, BYTES)); /* no block */
    CHECK(!is_scattered(0, 0, G));
    CHECK(is_scattered(G, 0, BYTES));
}

MS_TEST_BETWEEN(start, end,
                a_block_that_was_gathered_in_vain_is_left_alone_until_it_has_twice_as_many)
{
    enum { MORE = MOST_PIECES + 100 };
    take(0, 7 * G);
    scatter(7 * G, MORE);
    CHECK_EQ(ms_carve_gather(allocation, 0, bring), CUDA_ERROR_NOT_READY);
    scatter(7 * G, 2 * MORE + 1);
    CHECK(!is_scattered(0, 0, 7 * G));
    scatter(7 * G, 2 * MORE + 2);
    CHECK(is_scattered(0, 0, 7 * G));
}

STORY_BETWEEN(start, end, a_block_that_was_handed_out_while_it_was_ready_is_looked_at,
              take(0, 2 * G), set(0, 2 * G, &resident), give(0, 2 * G),
              IS(ms_ready_report(allocation->address, 10)), scatter(7 * G, MOST_PIECES + 1),
              IS(is_scattered(10, 0, BYTES)), check_no_block(0), IS(!is_scattered(9, 0, 10)),
              check_block(0, 0, 10))

enum { BYTES_FOR_ONE = 512 << 10 };
static void start_large(void)
{
    start_with((size_t)(MOST_PIECES + 2) * BYTES_FOR_ONE);
}

MS_TEST_BETWEEN(start_large, end, a_large_block_may_be_in_more_pieces)
{
    const size_t bytes = allocation->bytes;
    take(BYTES_FOR_ONE, bytes);
    scatter(bytes, MOST_PIECES);
    CHECK(!is_scattered(BYTES_FOR_ONE, BYTES_FOR_ONE, bytes));
    scatter(bytes, MOST_PIECES + 1);
    CHECK(is_scattered(BYTES_FOR_ONE, BYTES_FOR_ONE, bytes));
}

/* --- giving back */

STORY_BETWEEN(start, end, nothing_is_left_over_unless_a_block_was_there,
              EQUALS(ms_carve_dead(allocation, 0, BYTES), 0), set(0, 1, &resident),
              EQUALS(ms_carve_dead(allocation, 0, BYTES), 0), ms_carve_set_dead(allocation, 1),
              EQUALS(ms_carve_dead(allocation, 0, BYTES), 1), ms_carve_set_dead(allocation, 0))

/* Granules 1 and 3 are blocks, all has memory of its own, and all else is dead. */
static void start_dead(void)
{
    start();
    take(0, G);
    take(G, 2 * G);
    take(2 * G, 3 * G);
    take(3 * G, 4 * G);
    take(4 * G, BYTES);
    for (size_t at = 0; at < 4 * G; at += G)
        set(at, at + G, at == G ? &cached : &resident);
    set(4 * G, 6 * G, &resident);
    set(6 * G, BYTES, &resident);
    give(0, G);
    give(2 * G, 3 * G);
    give(4 * G, BYTES);
    CHECK_EQ(ms_carve_dead_memory(), BYTES - 2 * G);
}

/* The last granule reaches behind the end. */
STORY_BETWEEN(start_dead, end, dead_memory_goes_back_and_that_of_blocks_stays,
              EQUALS(ms_carve_give_back(allocation, NULL), 6 * G),
              EQUALS(ms_allocation_backing(allocation)->backed_bytes, 2 * G),
              EQUALS(ms_carve_dead_memory(), 0), check(0, G, MS_DEAD), check(2 * G, 3 * G, MS_DEAD),
              check(3 * G, 4 * G, MS_RESIDENT), check(4 * G, BYTES, MS_DEAD),
              EQUALS(ms_allocation_lineage(allocation)->cached_bytes, G))

MS_TEST_BETWEEN(start_dead, end, memory_that_can_be_replayed_goes_back_as_well)
{
    CHECK_EQ(ms_carve_give_back(allocation, ms_replay_is_current), 7 * G);
    CHECK_EQ(ms_allocation_lineage(allocation)->cached_bytes, 0);
    check(G, 2 * G, MS_FILL);
    CHECK(fake_memory_at(allocation->address + 3 * G) > 0);
}

MS_TEST_BETWEEN(start_dead, end, memory_that_a_graph_or_another_may_use_is_kept)
{
    allocation->notes.keeps_dead = true;
    CHECK_EQ(ms_carve_give_back(allocation, NULL), 0);
    CHECK_EQ(ms_carve_dead_memory(), 0);
    allocation->notes.keeps_dead = false;
    ms_backing_chunk(&MS_OWN(allocation)->backing, 4 * G)->is_pinned = true;
    CHECK_EQ(ms_carve_give_back(allocation, NULL), 4 * G);
    check(4 * G, 6 * G, MS_RESIDENT);
    check(6 * G, BYTES, MS_DEAD);
}

MS_TEST_BETWEEN(start_dead, end, bytes_that_were_used_outside_of_blocks_are_kept)
{
    ms_carve_add_use(allocation, 4 * G, 5 * G);
    CHECK_EQ(ms_carve_give_back(allocation, NULL), 0);
    check(4 * G, BYTES, MS_RESIDENT);
}

MS_TEST_BETWEEN(start, end, an_allocation_that_is_not_carved_keeps_its_memory)
{
    set(G, 2 * G, &resident);
    set(4 * G - 1, 4 * G, &resident); /* a byte of a granule */
    set(7 * G, BYTES, &cached);
    CHECK_EQ(ms_carve_give_back(allocation, NULL), 0);
    CHECK_EQ(ms_carve_give_back(allocation, ms_replay_is_current), G);
    CHECK_EQ(ms_allocation_lineage(allocation)->cached_bytes, 0);
    check(G, 2 * G, MS_RESIDENT);
}

/* Part of a chunk is dead; all of it has to stay. */
STORY_BETWEEN(start, end, memory_that_a_block_shares_stays, take(0, 2 * G), take(2 * G, 4 * G),
              set(0, 4 * G, &resident), give(0, 2 * G),
              EQUALS(ms_carve_give_back(allocation, NULL), 0), check(0, 2 * G, MS_DEAD),
              check(2 * G, 4 * G, MS_RESIDENT))

/* A granule at an offset has the bytes of a file of its own. */
static void set_file(struct test_file *file, size_t begin, bool is_cached)
{
    make_test_file(file, "/tmp", G);
    set(begin, begin + G,
        &(struct ms_content){.kind = MS_SOURCE, .cached = is_cached, .source = file->source});
    ms_source_drop(file->source);
}

MS_TEST_BETWEEN(start, end, memory_that_a_changed_file_cannot_restore_stays)
{
    static struct test_file same, changed, missing;
    set_file(&same, 2 * G, true);
    set_file(&changed, BYTES - G, true);
    set_file(&missing, 0, false); /* it is lost already */
    CHECK(truncate(changed.path, 5) == 0 && truncate(missing.path, 5) == 0);
    CHECK_EQ(ms_carve_give_back(allocation, ms_replay_is_current), G);
    check(0, G, MS_SOURCE);
    check(2 * G, 3 * G, MS_SOURCE);
    check(BYTES - G, BYTES, MS_RESIDENT);
}

/* --- what it gains to give back */

static int64_t gain_of_memory(size_t begin, size_t end)
{
    const int64_t before = ms_carve_trim_gain(0);
    CHECK_EQ(ms_allocation_cover(allocation, begin, end), CUDA_SUCCESS);
    return ms_carve_trim_gain(0) - before;
}

MS_TEST_BETWEEN(start_dead, end, memory_that_comes_again_is_a_loss_once)
{
    CHECK_EQ(gain_of_memory(0, BYTES), 0); /* none has gone */
    CHECK_EQ(ms_carve_give_back(allocation, NULL), 6 * G);
    CHECK_EQ(ms_carve_trim_gain(0), 6 * G);
    CHECK_EQ(gain_of_memory(G, 2 * G), 0); /* it stayed */
    CHECK_EQ(gain_of_memory(4 * G - 1, 5 * G + 1), -2 * 2 * G);
    CHECK_EQ(gain_of_memory(4 * G, 6 * G), 0);
    CHECK_EQ(gain_of_memory(0, BYTES), -2 * 4 * G);
    CHECK_EQ(gain_of_memory(0, BYTES), 0);
    CHECK_EQ(ms_carve_trim_gain(0), -6 * G);
}

MS_TEST_BETWEEN(start_dead, end, memory_that_goes_again_may_come_again)
{
    CHECK_EQ(ms_carve_give_back(allocation, NULL), 6 * G);
    CHECK_EQ(gain_of_memory(0, 1), -2 * G);
    CHECK_EQ(ms_carve_give_back(allocation, NULL), G);
    CHECK_EQ(gain_of_memory(0, G), -2 * G);
    CHECK_EQ(gain_of_memory(2 * G, 3 * G), -2 * G); /* and what went before has not come yet */
}

MS_TEST_BETWEEN(start_dead, end, the_memory_a_block_did_without_is_a_gain)
{
    CHECK_EQ(ms_carve_give_back(allocation, NULL), 6 * G);
    take(4 * G, 7 * G);
    CHECK_EQ(gain_of_memory(5 * G, 6 * G), -2 * G);
    const int64_t before = ms_carve_trim_gain(0);
    give(4 * G, 7 * G);
    CHECK_EQ(ms_carve_trim_gain(0) - before, 2 * G);
    take(5 * G, 6 * G);
    give(5 * G, 6 * G);
    CHECK_EQ(ms_carve_trim_gain(0) - before, 2 * G);
}

static void drop_nothing(__attribute__((unused)) struct ms_counted *counted)
{
}

static int64_t gain_of_launch(size_t begin, size_t end, struct ms_recorded_launch *recorded)
{
    const int64_t before = ms_carve_trim_gain(0);
    const struct ms_content content = {.kind = MS_LAUNCHED, .recorded = recorded};
    CHECK_EQ(ms_bytes_set(allocation, begin, end, &content), CUDA_SUCCESS);
    CHECK_EQ(ms_bytes_set(allocation, begin, end, &undefined), CUDA_SUCCESS);
    return ms_carve_trim_gain(0) - before;
}

/* With memory there, the launch would not be recorded: its share of the input is gained. */
MS_TEST_BETWEEN(start_dead, end, the_input_of_a_launch_that_could_be_recorded_is_a_gain)
{
    struct ms_launch_input input = {.lineage = {.bytes = 10 * G}};
    struct ms_recorded_launch alone = {.before = {.bytes = 2 * G}}, reader = alone;
    reader.input = &input;
    ms_counted_init(&alone.counted, drop_nothing);
    ms_counted_init(&reader.counted, drop_nothing);
    CHECK_EQ(ms_carve_give_back(allocation, NULL), 6 * G);
    take(4 * G, 7 * G);
    CHECK_EQ(gain_of_launch(4 * G, 6 * G, &alone), 0);
    CHECK_EQ(gain_of_launch(4 * G, 5 * G, &reader), 5 * G);
    CHECK_EQ(gain_of_launch(4 * G, 6 * G, &reader), 10 * G);
    CHECK_EQ(ms_allocation_cover(allocation, 4 * G, 6 * G), CUDA_SUCCESS);
    CHECK_EQ(gain_of_launch(4 * G, 6 * G, &reader), 0); /* it has come again */
}

/* Memory was short. */
MS_TEST_BETWEEN(start_dead, end, memory_that_had_to_go_is_neither)
{
    CHECK_EQ(ms_carve_give_back(allocation, ms_replay_is_current), 7 * G);
    CHECK_EQ(gain_of_memory(0, BYTES), 0);
    CHECK_EQ(ms_carve_trim_gain(0), 0);
}

MS_TEST_BETWEEN(start_dead, end, memory_that_does_not_come_is_no_loss)
{
    CHECK_EQ(ms_carve_give_back(allocation, NULL), 6 * G);
    fake_fail(FAKE_mem_create, 1, CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_EQ(ms_allocation_cover(allocation, 0, G), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_EQ(ms_carve_trim_gain(0), 6 * G);
    CHECK_EQ(gain_of_memory(0, G), -2 * G);
}

/* Without memory for the list, all else goes on. */
MS_TEST(memory_that_cannot_be_noted_goes_and_comes)
{
    for (int grows = 0; grows < 10; grows++) {
        start_dead();
        may_grow = grows;
        const size_t freed = ms_carve_give_back(allocation, NULL);
        may_grow = 0;
        CHECK(gain_of_memory(0, G) >= -2 * (int64_t)freed);
        may_grow = 1000000;
        CHECK(gain_of_memory(0, BYTES) >= -2 * (int64_t)freed);
        end();
    }
}
