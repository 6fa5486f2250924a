/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/calls/recurring.h"

#include "tests/unit/between.h"
#include "tests/unit/files/files.h"

enum { SIZE = 4 << 20, ENOUGH = 16 };
#define AT(i) ((CUdeviceptr)0x302000000 + (CUdeviceptr)(i)*SIZE)

static void start(void)
{
    atomic_store(&ms_hot.started, 1);
}

/* So many at once, which are freed. */
static void defer(unsigned count, size_t bytes, bool has_saved)
{
    for (unsigned i = 0; i < count; i++)
        ms_recurring_begin(bytes);
    for (unsigned i = 0; i < count; i++)
        ms_recurring_end(bytes, has_saved);
}

static bool serve(size_t bytes, CUdeviceptr address)
{
    struct ms_recurring_size *size = ms_recurring_take(bytes);
    if (size != NULL)
        ms_recurring_serve(size, address);
    return size != NULL;
}

MS_TEST_AFTER(start, a_size_freed_again_and_again_is_left_to_the_driver)
{
    for (int i = 0; i < ENOUGH; i++) {
        CHECK(ms_recurring_take(SIZE) == NULL);
        defer(1, SIZE, false);
    }
    CHECK(serve(SIZE, AT(0)));
    CHECK(!serve(SIZE, AT(1))); /* it never had two */
    CHECK(ms_recurring_take(2 * (size_t)SIZE) == NULL);
    CHECK(!ms_recurring_free(AT(1)) && ms_recurring_free(AT(0)) && !ms_recurring_free(AT(0)));
    CHECK(serve(SIZE, AT(1)));
}

/* The driver could give the memory away that others need. */
MS_TEST_AFTER(start, promised_allocations_get_memory_before_recurring_ones)
{
    for (int i = 0; i < ENOUGH; i++)
        defer(1, SIZE, false);
    ms_examining_begin();
    CHECK(ms_recurring_take(SIZE) == NULL);
    ms_examining_end();
    atomic_store(&ms_space_owed, 1);
    CHECK(ms_recurring_take(SIZE) == NULL);
    atomic_store(&ms_space_owed, 0);
    CHECK(serve(SIZE, AT(0)));
    CHECK(ms_recurring_free(AT(0)));
}

MS_TEST_AFTER(start, a_deferred_recurring_allocation_is_no_sign_of_loading)
{
    for (int i = 0; i < ENOUGH; i++) {
        CHECK(!ms_recurring_expects(SIZE));
        defer(1, SIZE, false);
    }
    CHECK(ms_recurring_expects(SIZE) && !ms_recurring_expects(SIZE + 1));
    ms_recurring_begin(SIZE);
    CHECK(!ms_recurring_expects(SIZE)); /* it never had two */
    ms_recurring_end(SIZE, false);
    while (serve(SIZE, AT(0)))
        CHECK(ms_recurring_free(AT(0)));
    CHECK(!ms_recurring_expects(SIZE)); /* but every so often one shows whether it loads */
    ms_recurring_begin(SIZE);
    ms_recurring_end(SIZE, true);
    CHECK(!ms_recurring_expects(SIZE));
}

MS_TEST_AFTER(start, the_driver_serves_as_many_as_there_were_at_once)
{
    enum { AT_ONCE = 8, TIMES = 4 };
    open_log(MS_DEBUG);
    for (int i = 0; i < TIMES; i++) {
        CHECK(ms_recurring_take(SIZE) == NULL);
        defer(AT_ONCE, SIZE, false);
    }
    CHECK_EQ(count_log_lines("8 allocations of 4194304 bytes at a time are left to the driver"), 1);
    for (int i = 0; i < AT_ONCE; i++)
        CHECK(serve(SIZE, AT(i)));
    CHECK(!serve(SIZE, AT(AT_ONCE)));
    for (int i = 0; i < AT_ONCE; i++)
        CHECK(ms_recurring_free(AT(i)));
}

MS_TEST_AFTER(start, all_sizes_together_are_limited)
{
    CUdeviceptr at = AT(0);
    size_t served = 0;
    for (size_t bytes = SIZE; bytes < SIZE + ((size_t)64 << 10); bytes += 4096) {
        for (int i = 0; i < 4; i++)
            defer(8, bytes, false);
        for (; serve(bytes, at); at += 2 * (CUdeviceptr)SIZE)
            served += bytes;
    }
    CHECK(served > MS_RECURRING_BYTES / 2 && served <= MS_RECURRING_BYTES);
    for (int i = 0; i < 2 * ENOUGH; i++)
        defer(1, MS_RECURRING_BYTES + 1, false);
    CHECK(ms_recurring_take(MS_RECURRING_BYTES + 1) == NULL);
}

/* The first one after 16, then after twice as many each time. */
MS_TEST_AFTER(start, a_recurring_allocation_is_deferred_every_so_often)
{
    int served = 0, turns = 0;
    for (int i = 0; i < ENOUGH; i++)
        defer(1, SIZE, false);
    for (int limit = ENOUGH; turns < 12; turns++) {
        for (served = 0; serve(SIZE, AT(0)); served++)
            CHECK(ms_recurring_free(AT(0)));
        CHECK_EQ(served, limit);
        limit = limit < (16 << 10) ? 2 * limit : limit;
        defer(1, SIZE, false);
    }
}

MS_TEST_AFTER(start, a_size_that_saves_memory_is_deferred)
{
    for (int i = 0; i < ENOUGH - 1; i++)
        defer(1, SIZE, false);
    defer(1, SIZE, true);
    for (int i = 0; i < ENOUGH - 1; i++) {
        CHECK(ms_recurring_take(SIZE) == NULL);
        defer(1, SIZE, false);
    }
    defer(1, SIZE, false);
    CHECK(serve(SIZE, AT(0)));
    defer(1, SIZE, true);
    CHECK(ms_recurring_free(AT(0)));
    CHECK(ms_recurring_take(SIZE) == NULL);
}

/* An allocation that has a place is found there again. */
MS_TEST_AFTER(start, a_size_has_half_of_the_places_at_most)
{
    enum { SMALL = 4096, MOST = MS_RECURRING_PLACES / 2 };
    open_log(MS_DEBUG);
    for (int i = 0; i < 4; i++)
        defer(MOST + 1, SMALL, false);
    CHECK_EQ(count_log_lines("128 allocations of 4096 bytes at a time are left to the driver"), 1);
    for (int i = 0; i < ENOUGH; i++)
        defer(1, MS_RECURRING_BYTES - MOST * SMALL + 1, false); /* there is no room for it */
    CHECK_EQ(count_log_lines("are left to the driver"), 1);
}

MS_TEST_AFTER(start, a_recurring_size_may_be_as_large_as_all_together)
{
    for (int i = 0; i < ENOUGH; i++)
        defer(1, MS_RECURRING_BYTES, false);
    CHECK(serve(MS_RECURRING_BYTES, AT(0)));
    CHECK(ms_recurring_free(AT(0)));
    defer(1, MS_RECURRING_BYTES, true);
    CHECK(!serve(MS_RECURRING_BYTES, AT(0)));
}

/* Another size, in the same place. */
static size_t rival(void)
{
    size_t other = SIZE + 1;
    while (ms_recurring_hash(other, MS_RECURRING_SIZE_BITS) !=
           ms_recurring_hash(SIZE, MS_RECURRING_SIZE_BITS))
        other++;
    return other;
}

/* Only one that begins takes the place of another size. */
MS_TEST_AFTER(start, a_question_for_a_size_changes_nothing)
{
    for (int i = 0; i < ENOUGH; i++) {
        CHECK(!ms_recurring_expects(rival()));
        ms_recurring_end(rival(), true);
        defer(1, SIZE, false);
    }
    CHECK(serve(SIZE, AT(0)));
    CHECK(ms_recurring_free(AT(0)));
}

/* And only if nothing of that one is out, and it does not recur. */
MS_TEST_AFTER(start, a_size_that_is_in_use_keeps_its_place)
{
    for (int i = 0; i < ENOUGH; i++) {
        ms_recurring_begin(SIZE);
        defer(1, rival(), false);
        ms_recurring_end(SIZE, false);
    }
    defer(1, rival(), true);
    CHECK(serve(SIZE, AT(0)));
    defer(1, rival(), true);
    CHECK(ms_recurring_free(AT(0)));
    CHECK(serve(SIZE, AT(0)));
    CHECK(ms_recurring_free(AT(0)));
    defer(1, SIZE, true); /* not any more */
    for (int i = 0; i < ENOUGH; i++)
        defer(1, rival(), false);
    CHECK(serve(rival(), AT(0)));
    CHECK(ms_recurring_free(AT(0)));
}

/* Whoever asked while it was not served. */
MS_TEST_AFTER(start, a_deferred_allocation_begins_the_turns_anew)
{
    for (int i = 0; i < ENOUGH / 2; i++)
        defer(2, SIZE, false);
    for (int i = 0; i < ENOUGH; i++) {
        CHECK(ms_recurring_expects(SIZE) && serve(SIZE, AT(0)));
        CHECK(ms_recurring_free(AT(0)));
    }
    CHECK(!ms_recurring_expects(SIZE));
    ms_recurring_begin(SIZE);
    CHECK(ms_recurring_expects(SIZE));
    ms_recurring_end(SIZE, false);
}

/* The place of an address that another thread is just writing. */
MS_TEST_AFTER(start, a_place_being_written_stays_when_a_context_ends)
{
    struct ms_recurring_size size = {.bytes = SIZE};
    ms_recurring
        .places[ms_recurring_hash(MS_RECURRING_TAKING, MS_RECURRING_SET_BITS) * MS_RECURRING_WAYS] =
        (struct ms_recurring_place){MS_RECURRING_TAKING, &size};
    ms_recurring_forget();
    CHECK_EQ(size.room, 0);
}

MS_TEST_AFTER(start, a_size_whose_context_ended_may_be_served_again)
{
    for (int i = 0; i < ENOUGH; i++)
        defer(1, SIZE, false);
    CHECK(serve(SIZE, AT(0)));
    ms_recurring_forget();
    CHECK(!ms_recurring_free(AT(0)));
    CHECK(serve(SIZE, AT(0)));
}

MS_TEST_AFTER(start, a_forked_child_takes_nothing)
{
    for (int i = 0; i < ENOUGH; i++)
        defer(1, SIZE, false);
    atomic_store(&ms_hot.started, 0);
    CHECK(ms_recurring_take(SIZE) == NULL);
}
