/* SPDX-License-Identifier: Apache-2.0 */
/* The index against a twin; claims of several threads; and the lock of what threads without a claim
 * look up. */
#include "runtime/memory/space.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/memory/carve.h"
#include "runtime/memory/far_address.h"
#include "runtime/memory/mappings.h"
#include "runtime/memory/memory_internal.h"
#include "tests/unit/between.h"
#include "tools/simcuda/harness/test.h"

/* The slow, obvious twin: a place for each address that an allocation may have, in use or not. */
enum { PLACES = 300, ROUNDS = 20000, BYTES = 1000, STEP = 4096 };
/* Half of them are near addresses, the others far ones. */
#define FIRST (MS_FAR_ADDRESS - (CUdeviceptr)PLACES / 2 * STEP)

static struct ms_inside allocations[PLACES];
static bool used[PLACES];

static CUdeviceptr address_of(int place)
{
    return FIRST + (CUdeviceptr)place * STEP;
}

static void add(int place)
{
    allocations[place] = (struct ms_inside){
        .facts = {.address = address_of(place), .bytes = BYTES, .id = (uint64_t)place + 1},
        .backing = {.address = address_of(place), .bytes = BYTES, .granule = 1},
        .lineage = {.bytes = BYTES},
    };
    CHECK(ms_space_add(&allocations[place].facts));
    used[place] = true;
}

static void drop(int place)
{
    struct ms_allocation *claimed = ms_space_claim(address_of(place) + BYTES - 1);
    CHECK(claimed == &allocations[place].facts);
    ms_space_remove(claimed);
    used[place] = false;
}

static int next_used(int place)
{
    while (place < PLACES && !used[place])
        place++;
    return place;
}

static void check_place(int place)
{
    struct ms_allocation_facts facts;
    const CUdeviceptr address = address_of(place);
    CHECK_EQ(ms_space_look_up(address, &facts), used[place]);
    CHECK(!used[place] || facts.id == (uint64_t)place + 1);
    CHECK_EQ(ms_space_look_up(address + BYTES, &facts), false);
    CHECK_EQ(ms_space_find_pointed(address + BYTES, &facts), used[place]); /* its guard */
    CHECK(!used[place] || facts.id == (uint64_t)place + 1);
    const int next = next_used(place);
    CHECK_EQ(ms_space_first_behind(address, &facts), next < PLACES);
    CHECK(next == PLACES || facts.id == (uint64_t)next + 1);
}

/* A walk finds all of them, in order. */
static void check_walk(void)
{
    CUdeviceptr at = 0;
    for (int place = next_used(0); place < PLACES; place = next_used(place + 1)) {
        struct ms_allocation *allocation = ms_space_claim_next(at);
        CHECK(allocation == &allocations[place].facts);
        at = allocation->address + allocation->bytes;
        ms_space_unclaim(allocation); /* they are a place and no more: not valid, nor published */
    }
    CHECK(ms_space_claim_next(at) == NULL);
}

/* Around what is used of [first, end). */
static void check_range(const struct ms_range *range, int first, int end)
{
    int last = end - 1;
    first = next_used(first);
    while (last >= first && !used[last])
        last--;
    if (first >= end)
        CHECK(range->begin == range->end);
    else
        CHECK(range->begin == address_of(first) - 1 && range->end == address_of(last) + BYTES + 1);
}

static void check_bounds(void)
{
    struct ms_range bounds[MS_BOUNDS];
    ms_space_bounds(bounds);
    check_range(&bounds[MS_NEAR], 0, PLACES / 2);
    check_range(&bounds[MS_FAR], PLACES / 2, PLACES);
}

static void check_all(void)
{
    for (int place = 0; place < PLACES; place++)
        check_place(place);
    check_walk();
    check_bounds();
}

MS_TEST(index_is_a_set_of_addresses)
{
    const unsigned seed = 20261121;
    printf("# seed %u\n", seed);
    srand(seed);
    for (int round = 0; round < ROUNDS; round++) {
        const int place = rand() % PLACES;
        if (used[place])
            drop(place);
        else
            add(place);
        check_place(rand() % PLACES);
        if (round % 500 == 0)
            check_all();
    }
    check_all();
}

/* Drivers give addresses in a row, upwards or downwards, and programs free in either order. */
MS_TEST(index_of_addresses_in_a_row)
{
    for (int way = 0; way < 4; way++) {
        for (int i = 0; i < PLACES; i++) {
            add(way % 2 == 0 ? i : PLACES - 1 - i);
            check_place(rand() % PLACES);
        }
        check_all();
        for (int i = 0; i < PLACES; i++) {
            drop(way / 2 == 0 ? i : PLACES - 1 - i);
            check_place(rand() % PLACES);
        }
        check_all();
    }
}

/* --- two allocations, and threads */

enum { LARGE = 1 << 20 };
#define LOW MS_FAR_ADDRESS
#define HIGH (MS_FAR_ADDRESS + ((CUdeviceptr)1 << 30))

static struct ms_inside low, high;

static void add_large(struct ms_inside *inside, CUdeviceptr address)
{
    *inside = (struct ms_inside){
        .facts = {.address = address, .bytes = LARGE, .id = address, .granule = 4096},
        .backing = {.address = address, .bytes = LARGE, .granule = 4096},
        .lineage = {.bytes = LARGE},
    };
    CHECK(ms_space_add(&inside->facts));
}

static void start(void)
{
    alarm(20); /* a thread that nobody wakes fails the test */
    add_large(&low, LOW);
    add_large(&high, HIGH);
}

/* --- claims */

static struct {
    pthread_t thread;
    CUdeviceptr first, second; /* second: 0, or one that it claims as well */
    struct ms_claims got;
    atomic_bool begins, has_got;
} other;

static void *claim(void *unused)
{
    atomic_store(&other.begins, true);
    if (other.second != 0)
        other.got = ms_claims_begin(other.first, other.second);
    else
        other.got.first = ms_space_claim(other.first);
    atomic_store(&other.has_got, true);
    if (other.got.first != NULL)
        ms_space_unclaim(other.got.first);
    if (other.got.second != NULL)
        ms_space_unclaim(other.got.second);
    return unused;
}

/* Another thread claims, and waits if it has to. */
static void start_other(CUdeviceptr first, CUdeviceptr second)
{
    other.first = first;
    other.second = second;
    atomic_store(&other.begins, false);
    atomic_store(&other.has_got, false);
    CHECK_EQ(pthread_create(&other.thread, NULL, claim, NULL), 0);
    while (!atomic_load(&other.begins))
        usleep(100);
    usleep(20000);
}

MS_TEST_AFTER(start, a_claim_waits_for_the_one_before)
{
    CHECK(ms_space_claim(LOW + 5) == &low.facts);
    start_other(LOW, 0);
    CHECK(!atomic_load(&other.has_got));
    CHECK(ms_space_try_claim(LOW) == NULL);
    ms_space_unclaim(&low.facts);
    pthread_join(other.thread, NULL);
    CHECK(other.got.first == &low.facts);
}

STORY_AFTER(start, a_claim_that_waits_for_a_freed_allocation_gets_nothing,
            IS(ms_space_claim(LOW) == &low.facts), start_other(LOW, 0),
            IS(!atomic_load(&other.has_got)), ms_space_remove(&low.facts),
            pthread_join(other.thread, NULL), IS(other.got.first == NULL))

MS_TEST(two_claims_are_waited_for_in_the_order_of_addresses)
{
    for (int way = 0; way < 2; way++) {
        start();
        CHECK(ms_space_claim(LOW) == &low.facts);
        start_other(way == 0 ? HIGH : LOW, way == 0 ? LOW : HIGH);
        CHECK(!atomic_load(&other.has_got));
        CHECK(ms_space_try_claim(HIGH) ==
              &high.facts); /* it has none while it waits for the first */
        ms_space_unclaim(&high.facts);
        ms_space_unclaim(&low.facts);
        pthread_join(other.thread, NULL);
        CHECK(other.got.first == (way == 0 ? &high.facts : &low.facts));
        CHECK(other.got.second == (way == 0 ? &low.facts : &high.facts));
        CHECK(ms_space_claim(LOW) == &low.facts && ms_space_claim(HIGH) == &high.facts);
        ms_space_remove(&low.facts);
        ms_space_remove(&high.facts);
    }
}

MS_TEST_AFTER(start, two_addresses_of_one_allocation_are_one_claim)
{
    struct ms_claims claims = ms_claims_begin(LOW + 100, LOW);
    CHECK(claims.first == &low.facts && claims.second == &low.facts);
    ms_space_unclaim(&low.facts);
    claims = ms_claims_begin(LOW, HIGH + LARGE);
    CHECK(claims.first == &low.facts && claims.second == NULL);
    ms_space_unclaim(&low.facts);
}

static void *hold_elsewhere(void *unused)
{
    struct ms_allocation *claimed;
    CHECK(ms_space_hold(LOW, &claimed) == NULL && claimed == NULL);
    return unused;
}

MS_TEST_AFTER(start, a_thread_holds_what_it_claims_and_what_it_has_claimed)
{
    struct ms_allocation *claimed;
    pthread_t thread;
    CHECK(ms_space_hold(LOW, &claimed) == &low.facts && claimed == &low.facts);
    CHECK(ms_space_hold(LOW, &claimed) == &low.facts && claimed == NULL);
    CHECK_EQ(pthread_create(&thread, NULL, hold_elsewhere, NULL), 0);
    CHECK_EQ(pthread_join(thread, NULL), 0);
    ms_space_unclaim(&low.facts);
    CHECK(ms_space_hold(HIGH + LARGE, &claimed) == NULL && claimed == NULL);
}

/* --- bounds */

MS_TEST(a_claim_gets_nothing_where_nothing_is_owned)
{
    const struct ms_claims claims = ms_claims_begin(LOW, HIGH);
    CHECK(claims.first == NULL && claims.second == NULL);
    CHECK(ms_space_try_claim(LOW) == NULL && ms_space_claim_next(0) == NULL);
}

MS_TEST_AFTER(start, a_range_that_leaves_its_allocation_strays)
{
    CHECK(!ms_space_strays(LOW, LARGE));
    CHECK(!ms_space_strays(LOW + LARGE - 1, 1));
    CHECK(ms_space_strays(LOW, LARGE + 1));
    CHECK(ms_space_strays(LOW + 5, LARGE - 4));
    CHECK(ms_space_strays(LOW + 5, SIZE_MAX));
    CHECK(ms_space_strays(LOW - 1, 1)); /* its guards */
    CHECK(ms_space_strays(LOW + LARGE, 1));
    CHECK(!ms_space_strays(LOW + 10 * LARGE, 1)); /* nothing of the shim's */
}

MS_TEST_AFTER(start, a_pointer_a_little_before_a_block_means_it)
{
    struct ms_allocation_facts facts;
    CHECK(ms_space_claim(LOW) == &low.facts);
    CHECK(ms_carve_add_block(&low.facts, 8192, 16384));
    ms_space_unclaim(&low.facts);
    CHECK(ms_space_find_pointed(LOW + 8192 - 512, &facts));
    CHECK(facts.address == LOW + 8192 && facts.bytes == 8192);
    CHECK(!ms_space_find_pointed(LOW + 8192 - 513, &facts));
    CHECK(ms_space_find_pointed(LOW + 16383, &facts));
    CHECK(!ms_space_find_pointed(LOW + 16384, &facts));
}

/* `nothing` is the range that a scan may pass over. */
MS_TEST_AFTER(start, a_pointer_between_two_blocks_points_to_nothing)
{
    struct ms_pointed pointed = {.pointer = LOW + 20000};
    struct ms_range nothing;
    CHECK(ms_space_claim(LOW) == &low.facts);
    CHECK(ms_carve_add_block(&low.facts, 8192, 16384));
    CHECK(ms_carve_add_block(&low.facts, 32768, 40960));
    low.counted_deferred = true;
    ms_space_unclaim(&low.facts);
    CHECK_EQ(ms_space_find_all_pointed(&pointed, 1, &nothing), 0);
    CHECK_EQ(nothing.begin, LOW + 16384);
    CHECK_EQ(nothing.end, LOW + 32768 - 512);
    pointed.pointer = LOW; /* before the first of them, and behind the last */
    CHECK_EQ(ms_space_find_all_pointed(&pointed, 1, &nothing), 0);
    CHECK(nothing.begin == LOW - 4096 && nothing.end == LOW + 8192 - 512);
    pointed.pointer = LOW + 40960;
    CHECK_EQ(ms_space_find_all_pointed(&pointed, 1, &nothing), 0);
    CHECK(nothing.begin == LOW + 40960 && nothing.end == LOW + LARGE + 4096);
    pointed.pointer = LOW + 32768 - 512;
    CHECK_EQ(ms_space_find_all_pointed(&pointed, 1, &nothing), 1);
}

/* Also of what was used outside of its blocks: then all that is in none is one. */
MS_TEST_AFTER(start, an_allocation_whose_dead_bytes_are_used_may_be_pointed_to_as_a_whole)
{
    struct ms_allocation_facts facts;
    CHECK(ms_space_claim(LOW) == &low.facts);
    CHECK(ms_carve_add_block(&low.facts, 8192, 16384));
    ms_space_unclaim(&low.facts);
    CHECK(!ms_space_find_pointed(LOW + 20000, &facts));
    CHECK(ms_space_claim(LOW) == &low.facts);
    ms_carve_add_use(&low.facts, 20000, 20001);
    ms_space_unclaim(&low.facts);
    CHECK(ms_space_find_pointed(LOW + 20000, &facts));
    CHECK(facts.address == LOW && facts.bytes == LARGE);
    CHECK(ms_space_find_pointed(LOW + 10000, &facts));
    CHECK(facts.address == LOW + 8192 && facts.bytes == 8192);
    struct ms_pointed pointed = {.pointer = LOW + LARGE - 1};
    struct ms_range nothing;
    CHECK_EQ(ms_space_find_all_pointed(&pointed, 1, &nothing), 1);
    CHECK(nothing.begin == 0 && nothing.end == 0);
}

/* Bytes that are not deferred any more count as nothing. */
static void set_resident(struct ms_inside *inside, size_t bytes)
{
    CHECK(ms_space_claim(inside->facts.address) == &inside->facts);
    inside->lineage.resident_bytes = bytes;
    ms_space_unclaim(&inside->facts);
}

static void check_nothing(CUdeviceptr pointer, size_t found, CUdeviceptr begin, CUdeviceptr end)
{
    struct ms_pointed pointed = {.pointer = pointer};
    struct ms_range nothing;
    CHECK_EQ(ms_space_find_all_pointed(&pointed, 1, &nothing), found);
    CHECK_EQ(nothing.begin, begin);
    CHECK_EQ(nothing.end, end);
}

enum { GUARD_BYTES = 4096 };
#define LOW_BEGIN (LOW - GUARD_BYTES)
#define LOW_END (LOW + LARGE + GUARD_BYTES)
#define HIGH_BEGIN (HIGH - GUARD_BYTES)
#define HIGH_END (HIGH + LARGE + GUARD_BYTES)

MS_TEST_AFTER(start, a_pointer_between_deferred_allocations_points_to_nothing)
{
    check_nothing(5, 0, 0, LOW_BEGIN);
    check_nothing(LOW_BEGIN - 1, 0, 0, LOW_BEGIN);
    check_nothing(LOW + 5, 1, 0, 0);
    check_nothing(LOW_END, 0, LOW_END, HIGH_BEGIN);
    check_nothing(HIGH_BEGIN - 1, 0, LOW_END, HIGH_BEGIN);
    check_nothing(HIGH_END, 0, HIGH_END, UINT64_MAX);
    set_resident(&low, LARGE);
    check_nothing(5, 0, 0, HIGH_BEGIN);
    check_nothing(LOW + 5, 0, 0, HIGH_BEGIN);
    set_resident(&high, LARGE);
    check_nothing(LOW + 5, 0, 0, UINT64_MAX);
    check_nothing(HIGH + 5, 0, 0, UINT64_MAX);
    set_resident(&low, LARGE - 1);
    check_nothing(5, 0, 0, LOW_BEGIN);
    check_nothing(HIGH + 5, 0, LOW_END, UINT64_MAX);
    set_resident(&high, LARGE - 1);
    check_nothing(LOW_END, 0, LOW_END, HIGH_BEGIN);
    CHECK(ms_space_claim(HIGH) == &high.facts);
    ms_space_remove(&high.facts);
    check_nothing(LOW_END, 0, LOW_END, UINT64_MAX);
    check_nothing(HIGH + 5, 0, LOW_END, UINT64_MAX);
    CHECK(ms_space_claim(LOW) == &low.facts);
    ms_space_remove(&low.facts);
    CHECK(!ms_defers_any() && !ms_owns_any());
    check_nothing(LOW + 5, 0, 0, 0); /* there is none at all */
}

/* The search tells the pointers that mean something, and what they were, in their order. */
MS_TEST_AFTER(start, pointers_are_found_in_their_order)
{
    struct ms_pointed pointers[] = {{.pointer = HIGH, .offset = 1},
                                    {.pointer = LOW_END + 100, .offset = 2},
                                    {.pointer = LOW + LARGE - 1, .offset = 3},
                                    {.pointer = LOW, .offset = 4},
                                    {.pointer = HIGH_END + 5, .offset = 5}};
    struct ms_range nothing;
    CHECK_EQ(ms_space_find_all_pointed(pointers, 5, &nothing), 3);
    static const size_t offsets[] = {1, 3, 4};
    static const CUdeviceptr blocks[] = {HIGH, LOW, LOW};
    for (size_t i = 0; i < 3; i++) {
        CHECK_EQ(pointers[i].offset, offsets[i]);
        CHECK(pointers[i].block.address == blocks[i] && pointers[i].block.bytes == LARGE);
    }
    CHECK(pointers[1].pointer == LOW + LARGE - 1 && pointers[2].pointer == LOW);
    CHECK(nothing.begin == HIGH_END && nothing.end == UINT64_MAX); /* around the last one */
    CHECK_EQ(ms_space_find_all_pointed(pointers, 0, &nothing), 0);
    CHECK(nothing.begin == 0 && nothing.end == 0);
}

MS_TEST_AFTER(start, devices_that_are_none_have_nothing)
{
    CHECK(ms_space_sums(0).reserved > 0);
    for (CUdevice device = -1; device <= MS_MAX_DEVICES; device += MS_MAX_DEVICES + 1) {
        const struct ms_space_sums sums = ms_space_sums(device);
        CHECK(sums.live == 0 && sums.reserved == 0 && sums.unbacked == 0);
    }
}

/* --- the lock: launches of other threads look up blocks and mappings without a claim */

/* Other threads take locks, too. */
static pthread_mutex_t *_Atomic last_taken, *_Atomic index_lock;
static atomic_int index_takes;

WRAPS(pthread_mutex_lock);
int __wrap_pthread_mutex_lock(pthread_mutex_t *mutex)
{
    last_taken = mutex;
    index_takes += mutex == index_lock;
    return __real_pthread_mutex_lock(mutex);
}

static int takes(void)
{
    const int count = index_takes;
    index_takes = 0;
    return count;
}

MS_TEST_AFTER(start, blocks_and_mappings_change_under_the_lock_of_the_index)
{
    struct ms_allocation_facts facts;
    size_t end;
    CHECK(ms_space_look_up(LOW, &facts));
    index_lock = last_taken;
    CHECK(ms_space_claim(LOW) == &low.facts);
    takes();
    CHECK(ms_carve_add_block(&low.facts, 0, 4096));
    CHECK_EQ(takes(), 1);
    CHECK(ms_carve_remove_block(&low.facts, 0, &end));
    CHECK_EQ(takes(), 1);
    ms_carve_add_use(&low.facts, 0, 4096);
    CHECK_EQ(takes(), 1);
    const struct ms_program_mapping mapping = {.begin = 0, .end = 4096};
    CHECK(ms_lineage_init(&low.lineage, LARGE));
    CHECK(ms_mappings_add(&low.facts, &mapping));
    CHECK_EQ(takes(), 1);
    CHECK_EQ(ms_mappings_remove(&low.facts, &mapping, NULL), CUDA_SUCCESS);
    CHECK_EQ(takes(), 1);
    ms_lineage_cleanup(&low.lineage);
}
