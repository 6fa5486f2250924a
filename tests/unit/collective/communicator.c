/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/collective/communicator.h"

#include <string.h>

#include "runtime/fill/prefetch.h"
#include "runtime/plan/plan.h"
#include "runtime/shard/shard.h"
#include "tests/unit/fake_driver.h"
#include "tools/simcuda/harness/test.h"
#include "tests/unit/between.h"

enum { MOST = 1024 };

static unsigned told, told_ranks, told_rank; /* those of the last one */
static bool told_split, is_known;            /* a plan waits for it, whatever it is */
WRAPS(ms_shard_add_communicator, ms_prefetch_prepare);
bool __wrap_ms_shard_add_communicator(uint32_t ranks, uint32_t rank, bool is_split_off)
{
    told++;
    told_ranks = ranks;
    told_rank = rank;
    told_split = is_split_off;
    return __real_ms_shard_add_communicator(ranks, rank, is_split_off) || is_known;
}

static unsigned prepared, first;
void __wrap_ms_prefetch_prepare(bool is_first)
{
    prepared++;
    first += is_first;
}

static const void *handle_of(int number)
{
    return (const void *)(uintptr_t)(number + 1);
}

static int rank_of(const void *handle)
{
    struct ms_communicator found;
    return ms_communicator_find(handle, &found) ? found.rank : -1;
}

static void set(int number)
{
    ms_communicator_set(handle_of(number), &(struct ms_communicator){4000, number, true, MS_MET});
}

/* A plan without a rank waits for one. */
static void read_plan(void)
{
    static const char text[] = "{\"format\": \"metashard-plan/1\", \"mesh\": {\"tp\": 2},"
                               " \"tensors\": []}";
    struct ms_plan *plan;
    struct ms_fault fault;
    fake_start();
    CHECK(ms_plan_parse(text, strlen(text), "plan", &plan, &fault));
    CHECK(ms_shard_set(plan, "plan", &fault));
    CHECK(!ms_shard_is_active());
}

MS_TEST(a_communicator_is_found_until_it_is_forgotten)
{
    struct ms_communicator found;
    CHECK(!ms_communicator_find(handle_of(0), &found));
    for (int i = 0; i < 3; i++)
        set(i);
    CHECK(ms_communicator_find(handle_of(1), &found));
    CHECK(found.ranks == 4000 && found.rank == 1 && found.is_blocking && found.origin == MS_MET);
    ms_communicator_set(handle_of(0), NULL);
    ms_communicator_set(handle_of(0), NULL);
    CHECK_EQ(rank_of(handle_of(0)), -1);
    CHECK(rank_of(handle_of(1)) == 1 && rank_of(handle_of(2)) == 2);
}

STORY_ALONE(a_handle_that_is_used_again_is_the_new_one, set(5),
            ms_communicator_set(handle_of(5), &(struct ms_communicator){2, 1, false, MS_MET}),
            EQUALS(rank_of(handle_of(5)), 1), ms_communicator_set(handle_of(5), NULL),
            EQUALS(rank_of(handle_of(5)), -1))

MS_TEST(a_communicator_beyond_the_table_is_not_found)
{
    for (int i = 0; i <= MOST; i++)
        set(i);
    CHECK(rank_of(handle_of(0)) == 0 && rank_of(handle_of(MOST - 1)) == MOST - 1);
    CHECK_EQ(rank_of(handle_of(MOST)), -1);
    ms_communicator_set(handle_of(3), NULL);
    set(MOST);
    CHECK(rank_of(handle_of(MOST)) == MOST && rank_of(handle_of(MOST - 1)) == MOST - 1);
}

STORY_ALONE(the_first_of_the_plans_size_gives_it_its_rank, read_plan(),
            ms_communicator_set(handle_of(0), &(struct ms_communicator){3, 1, true, MS_MADE}),
            ms_communicator_set(handle_of(1), &(struct ms_communicator){2, 1, true, MS_MET}),
            IS(!ms_shard_is_active()),
            ms_communicator_set(handle_of(2), &(struct ms_communicator){2, 1, true, MS_MADE}),
            IS(ms_shard_is_active()))

STORY_ALONE(a_communicator_without_a_rank_gives_none, read_plan(),
            ms_communicator_set(handle_of(0), &(struct ms_communicator){2, -1, true, MS_MADE}),
            ms_communicator_set(handle_of(1), &(struct ms_communicator){-1, 0, true, MS_MADE}),
            ms_communicator_set(handle_of(2), &(struct ms_communicator){0, 0, true, MS_MADE}),
            IS(!ms_shard_is_active()),
            ms_communicator_set(handle_of(3), &(struct ms_communicator){2, 0, true, MS_MADE}),
            IS(ms_shard_is_active()))

/* The first plan that comes into force is prepared as such, and a later one as another. */
MS_TEST(a_plan_is_told_of_what_its_rank_may_be)
{
    static const struct {
        struct ms_communicator communicator;
        unsigned told, prepared, first;
    } cases[] = {{{3, 1, true, MS_MADE}, 1, 0, 0},      {{2, 1, true, MS_MET}, 1, 0, 0},
                 {{2, -1, true, MS_MADE}, 1, 0, 0},     {{0, 0, true, MS_MADE}, 1, 0, 0},
                 {{2, 0, true, MS_SPLIT_OFF}, 2, 1, 1}, {{1, 0, true, MS_MADE}, 3, 1, 1}};
    read_plan();
    for (int i = 0; i < 6; i++) {
        const struct ms_communicator *communicator = &cases[i].communicator;
        ms_communicator_set(handle_of(i), communicator);
        CHECK(told == cases[i].told && prepared == cases[i].prepared && first == cases[i].first);
        CHECK_EQ(rank_of(handle_of(i)), communicator->rank); /* it is known in each case */
    }
    CHECK(told_ranks == 1 && told_rank == 0 && !told_split);
    is_known = true;
    ms_communicator_set(handle_of(7), &(struct ms_communicator){9, 8, true, MS_SPLIT_OFF});
    CHECK(told_ranks == 9 && told_rank == 8 && told_split);
    CHECK(prepared == 2 && first == 1);
    ms_communicator_set(handle_of(7), NULL);
    CHECK(told == 4 && rank_of(handle_of(7)) == -1);
}
