/* SPDX-License-Identifier: Apache-2.0 */
/* Claims of several threads, and the lock of what threads without a claim look up. */
#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

#include "runtime/memory/far_address.h"
#include "runtime/memory/memory_internal.h"
#include "runtime/memory/space.h"
#include "tests/unit/between.h"

enum { BYTES = 1 << 20 };
#define LOW MS_FAR_ADDRESS
#define HIGH (MS_FAR_ADDRESS + ((CUdeviceptr)1 << 30))

static struct ms_inside low, high;

static void add(struct ms_inside *inside, CUdeviceptr address)
{
    *inside = (struct ms_inside){
        .facts = {.address = address,
                  .bytes = BYTES,
                  .id = address,
                  .backing = {.address = address, .bytes = BYTES, .granule = 4096},
                  .lineage = {.bytes = BYTES}},
    };
    CHECK(ms_space_add(&inside->facts));
}

static void start(void)
{
    alarm(20); /* a thread that nobody wakes fails the test */
    add(&low, LOW);
    add(&high, HIGH);
}

/* --- claims */

static struct {
    pthread_t thread;
    CUdeviceptr first, second; /* second: 0, or one that it claims as well */
    struct ms_allocation *first_got, *second_got;
    atomic_bool begins, has_got;
} other;

static void *claim(void *unused)
{
    atomic_store(&other.begins, true);
    if (other.second != 0)
        ms_space_claim_two(other.first, other.second, &other.first_got, &other.second_got);
    else
        other.first_got = ms_space_claim(other.first);
    atomic_store(&other.has_got, true);
    if (other.first_got != NULL)
        ms_space_unclaim(other.first_got);
    if (other.second_got != NULL)
        ms_space_unclaim(other.second_got);
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
    CHECK(other.first_got == &low.facts);
}

MS_TEST_AFTER(start, who_waits_for_what_is_freed_gets_nothing)
{
    CHECK(ms_space_claim(LOW) == &low.facts);
    start_other(LOW, 0);
    CHECK(!atomic_load(&other.has_got));
    ms_space_remove(&low.facts);
    pthread_join(other.thread, NULL);
    CHECK(other.first_got == NULL);
}

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
        CHECK(other.first_got == (way == 0 ? &high.facts : &low.facts));
        CHECK(other.second_got == (way == 0 ? &low.facts : &high.facts));
        CHECK(ms_space_claim(LOW) == &low.facts && ms_space_claim(HIGH) == &high.facts);
        ms_space_remove(&low.facts);
        ms_space_remove(&high.facts);
    }
}

MS_TEST_AFTER(start, two_addresses_of_one_allocation_are_one_claim)
{
    struct ms_allocation *a, *b;
    ms_space_claim_two(LOW + 100, LOW, &a, &b);
    CHECK(a == &low.facts && b == &low.facts);
    ms_space_unclaim(&low.facts);
    ms_space_claim_two(LOW, HIGH + BYTES, &a, &b);
    CHECK(a == &low.facts && b == NULL);
    ms_space_unclaim(&low.facts);
}

/* --- bounds */

MS_TEST_AFTER(start, a_range_that_leaves_its_allocation_strays)
{
    CHECK(!ms_space_strays(LOW, BYTES));
    CHECK(!ms_space_strays(LOW + BYTES - 1, 1));
    CHECK(ms_space_strays(LOW, BYTES + 1));
    CHECK(ms_space_strays(LOW + 5, BYTES - 4));
    CHECK(ms_space_strays(LOW + 5, SIZE_MAX));
    CHECK(ms_space_strays(LOW - 1, 1)); /* its guards */
    CHECK(ms_space_strays(LOW + BYTES, 1));
    CHECK(!ms_space_strays(LOW + 10 * BYTES, 1)); /* nothing of the shim's */
}

MS_TEST_AFTER(start, a_pointer_a_little_before_a_block_means_it)
{
    struct ms_allocation_facts facts;
    CHECK(ms_space_claim(LOW) == &low.facts);
    CHECK(ms_space_add_block(&low.facts, 8192, 16384));
    ms_space_unclaim(&low.facts);
    CHECK(ms_space_find_pointed(LOW + 8192 - 512, &facts));
    CHECK(facts.address == LOW + 8192 && facts.bytes == 8192);
    CHECK(!ms_space_find_pointed(LOW + 8192 - 513, &facts));
    CHECK(ms_space_find_pointed(LOW + 16383, &facts));
    CHECK(!ms_space_find_pointed(LOW + 16384, &facts));
}

/* --- the lock: launches of other threads look up blocks and mappings without a claim */

/* Other threads take locks, too. */
static pthread_mutex_t *_Atomic last_taken, *_Atomic index_lock;
static atomic_int index_takes;

int __real_pthread_mutex_lock(pthread_mutex_t *mutex);
int __wrap_pthread_mutex_lock(pthread_mutex_t *mutex);
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

MS_TEST_AFTER(start, what_others_look_up_changes_under_the_lock)
{
    struct ms_allocation_facts facts;
    size_t end;
    CHECK(ms_space_look_up(LOW, &facts));
    index_lock = last_taken;
    CHECK(ms_space_claim(LOW) == &low.facts);
    takes();
    CHECK(ms_space_add_block(&low.facts, 0, 4096));
    CHECK_EQ(takes(), 1);
    CHECK(ms_space_remove_block(&low.facts, 0, &end));
    CHECK_EQ(takes(), 1);
    ms_space_add_use(&low.facts, 0, 4096);
    CHECK_EQ(takes(), 1);
    const struct ms_program_mapping mapping = {.begin = 0, .end = 4096};
    CHECK(ms_space_put_mapping(&low.facts, &mapping));
    CHECK_EQ(takes(), 1);
    ms_space_drop_mapping(&low.facts, 0);
    CHECK_EQ(takes(), 1);
}
