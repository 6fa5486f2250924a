/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/collective/communicator.h"

#include <string.h>

#include "runtime/plan/plan.h"
#include "runtime/shard/shard.h"
#include "tests/unit/fake_driver.h"
#include "tools/simcuda/harness/test.h"

enum { MOST = 1024 };

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

MS_TEST(each_is_found_until_it_is_forgotten)
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

MS_TEST(a_handle_that_is_used_again_is_the_new_one)
{
    set(5);
    ms_communicator_set(handle_of(5), &(struct ms_communicator){2, 1, false, MS_MET});
    CHECK_EQ(rank_of(handle_of(5)), 1);
    ms_communicator_set(handle_of(5), NULL);
    CHECK_EQ(rank_of(handle_of(5)), -1);
}

MS_TEST(what_does_not_fit_is_not_found_and_harms_nobody)
{
    for (int i = 0; i <= MOST; i++)
        set(i);
    CHECK(rank_of(handle_of(0)) == 0 && rank_of(handle_of(MOST - 1)) == MOST - 1);
    CHECK_EQ(rank_of(handle_of(MOST)), -1);
    ms_communicator_set(handle_of(3), NULL);
    set(MOST);
    CHECK(rank_of(handle_of(MOST)) == MOST && rank_of(handle_of(MOST - 1)) == MOST - 1);
}

MS_TEST(the_first_of_the_plans_size_gives_it_its_rank)
{
    read_plan();
    ms_communicator_set(handle_of(0), &(struct ms_communicator){3, 1, true, MS_MADE});
    ms_communicator_set(handle_of(1), &(struct ms_communicator){2, 1, true, MS_MET});
    CHECK(!ms_shard_is_active());
    ms_communicator_set(handle_of(2), &(struct ms_communicator){2, 1, true, MS_MADE});
    CHECK(ms_shard_is_active());
}

MS_TEST(what_has_no_rank_gives_none)
{
    read_plan();
    ms_communicator_set(handle_of(0), &(struct ms_communicator){2, -1, true, MS_MADE});
    ms_communicator_set(handle_of(1), &(struct ms_communicator){-1, 0, true, MS_MADE});
    ms_communicator_set(handle_of(2), &(struct ms_communicator){0, 0, true, MS_MADE});
    CHECK(!ms_shard_is_active());
    ms_communicator_set(handle_of(3), &(struct ms_communicator){2, 0, true, MS_MADE});
    CHECK(ms_shard_is_active());
}
