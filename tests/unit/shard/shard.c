/* SPDX-License-Identifier: Apache-2.0 */
/* Which plan is in force and for which rank, what the program names, and which entries decide
 * nothing. */
#include "runtime/files/host_snapshot.h"
#include "runtime/shard/shard.h"

#include <stdlib.h>

#include "runtime/base/heap.h"
#include "runtime/base/launcher.h"
#include "runtime/config/config.h"
#include "runtime/driver/flags.h"
#include "runtime/memory/carve.h"
#include "runtime/memory/memory_internal.h"
#include "runtime/shard/shard_internal.h"
#include "runtime/state/state.h"
#include "tests/unit/between.h"
#include "tests/unit/checkpoint/checkpoint_folder.h"
#include "tests/unit/counted_pages.h"
#include "tests/unit/fake_driver.h"
#include "tests/unit/files/files.h"
#include "tests/unit/use_plan.h"

#define PLAN "\"format\": \"metashard-plan/1\", \"tensors\": []"

static struct ms_fault fault;
static struct ms_state_plan facts;

/* The data that the state page gets. */
static struct ms_event event;
static struct ms_state_plan published;
static uint32_t page_rank, page_ranks;
static int event_count, plan_count, rank_count;

WRAPS(ms_state_event, ms_state_set_plan, ms_state_set_rank);
void __wrap_ms_state_event(const struct ms_event *happened)
{
    event = *happened;
    event_count++;
}

void __wrap_ms_state_set_plan(const struct ms_state_plan *plan)
{
    published = *plan;
    plan_count++;
}

void __wrap_ms_state_set_rank(uint32_t rank, uint32_t ranks)
{
    page_rank = rank;
    page_ranks = ranks;
    rank_count++;
}

static const struct ms_state_plan *describe(void)
{
    ms_shard_describe(&facts);
    return &facts;
}

static void start(void)
{
    for (size_t i = 0; i < MS_LAUNCHERS; i++)
        unsetenv(ms_launchers[i].rank);
    open_log(MS_INFO);
}

static struct ms_plan *parse(const char *text)
{
    struct ms_plan *plan;
    if (!ms_plan_parse(text, strlen(text), "plan", &plan, &fault))
        ms_test_fail(__FILE__, __LINE__, "%s", fault.text);
    return plan;
}

static void set_plan(const char *text)
{
    CHECK(ms_shard_set(parse(text), "some plan", &fault));
}

/* That the plan of this generation is in force for this rank of so many. */
static void check_force(uint64_t generation, uint32_t rank, uint32_t world)
{
    CHECK_EQ(describe()->generation, generation);
    CHECK_EQ(facts.rank, rank);
    CHECK_EQ(facts.world, world);
    CHECK(ms_shard_is_active() == (generation > 0));
    CHECK(strcmp(facts.name, generation > 0 ? "some plan" : "") == 0);
}

/* --- which plan is in force */

MS_TEST_AFTER(start, a_plan_with_a_rank_is_in_force_at_once)
{
    check_force(0, 0, 0);
    CHECK(!ms_shard_enforces() && !facts.enforced);
    set_plan("{" PLAN ", \"world_size\": 4, \"rank\": 3}");
    check_force(1, 3, 4);
    const int pieces = live;
    set_plan("{" PLAN ", \"world_size\": 4, \"rank\": 2}");
    check_force(2, 2, 4);
    CHECK_EQ(live, pieces); /* the one before is gone */
    ms_shard_warn_if_waiting();
    CHECK_EQ(count_log_lines("some plan: plan 1, of rank 3 of 4\n"), 1);
    CHECK_EQ(count_log_lines("some plan: plan 2, of rank 2 of 4\n"), 1);
    CHECK_EQ(count_log_lines(""), 2);
}

STORY_AFTER(start, a_plan_is_advice_if_the_mode_does_not_say_otherwise,
            ms_config.plan_mode = MS_ENFORCE, IS(!ms_shard_enforces()),
            set_plan("{" PLAN ", \"world_size\": 4, \"rank\": 3}"),
            IS(ms_shard_enforces() && describe()->enforced), ms_config.plan_mode = MS_ADVISE,
            IS(!ms_shard_enforces() && !describe()->enforced))

MS_TEST_AFTER(start, parts_are_received_of_a_broadcast_to_all_ranks)
{
    ms_config.receive_parts = true;
    CHECK(!ms_shard_receives_parts(0));
    set_plan("{" PLAN ", \"world_size\": 4, \"rank\": 3}");
    CHECK(ms_shard_receives_parts(4));
    CHECK(!ms_shard_receives_parts(3) && !ms_shard_receives_parts(5));
    ms_config.receive_parts = false;
    CHECK(!ms_shard_receives_parts(4));
}

MS_TEST_AFTER(start, a_wrong_rank_changes_nothing)
{
    set_plan("{" PLAN ", \"world_size\": 4, \"rank\": 3}");
    const int pieces = live;
    setenv("RANK", "4", 1);
    CHECK(!ms_shard_set(parse("{" PLAN ", \"world_size\": 4}"), "other", &fault));
    CHECK(strcmp(fault.text, "other: RANK: expected a rank below 4, found 4") == 0);
    CHECK_EQ(live, pieces);
    check_force(1, 3, 4);
}

/* --- a plan that waits for its rank */

static const char grid[] = "{" PLAN ", \"mesh\": {\"a\": 2, \"b\": 3, \"one\": 1}}";

MS_TEST_AFTER(start, a_plan_without_a_rank_waits_for_a_communicator_of_its_world)
{
    set_plan(grid);
    check_force(0, 0, 0);
    CHECK(!ms_shard_add_communicator(5, 4, false));
    CHECK(!ms_shard_add_communicator(7, 4, false));
    check_force(0, 0, 0);
    ms_shard_warn_if_waiting();
    CHECK_EQ(count_log_lines("no communicator of 6 ranks told it: the plan was not followed"), 1);
    CHECK(ms_shard_add_communicator(6, 4, false));
    check_force(1, 4, 6);
    CHECK(!ms_shard_add_communicator(6, 4, false));
    check_force(1, 4, 6);
    ms_shard_warn_if_waiting();
    CHECK_EQ(count_log_lines("the plan was not followed"), 1);
    CHECK_EQ(count_log_lines("the plan waits for a communicator of 6 ranks"), 1);
    CHECK_EQ(count_log_lines("treats this process as rank"), 0);
}

MS_TEST_AFTER(start, the_last_one_that_waits_is_the_one)
{
    set_plan(grid);
    const int pieces = live;
    set_plan(grid);
    CHECK_EQ(live, pieces);
    CHECK(!ms_shard_add_communicator(2, 1, true));
    set_plan(grid); /* which knows no coordinates yet */
    CHECK(!ms_shard_add_communicator(3, 1, true));
    set_plan("{" PLAN ", \"world_size\": 6, \"rank\": 3}"); /* and none waits any more */
    CHECK(!ms_shard_add_communicator(6, 4, false));
    check_force(1, 3, 6);
}

MS_TEST_AFTER(start, coordinates_along_all_dimensions_are_a_rank)
{
    set_plan(grid);
    CHECK(!ms_shard_add_communicator(3, 2, true));
    CHECK(!ms_shard_add_communicator(1, 0, true));
    CHECK(!ms_shard_add_communicator(2, 2, true)); /* no such coordinate */
    CHECK(!ms_shard_add_communicator(6, 6, true)); /* no such rank */
    CHECK(!ms_shard_add_communicator(4, 1, true)); /* along no dimension */
    check_force(0, 0, 0);
    CHECK(ms_shard_add_communicator(2, 1, true));
    check_force(1, 5, 6);
}

STORY_AFTER(start, a_group_of_all_ranks_is_the_world, set_plan(grid),
            IS(ms_shard_add_communicator(6, 5, true)), check_force(1, 5, 6))

MS_TEST_AFTER(start, a_group_tells_no_rank_of_two_dimensions_of_a_size)
{
    set_plan("{" PLAN ", \"mesh\": {\"a\": 2, \"b\": 3, \"c\": 2}}");
    CHECK(!ms_shard_add_communicator(2, 1, true));
    CHECK(!ms_shard_add_communicator(3, 1, true));
    CHECK(!ms_shard_add_communicator(2, 1, true));
    CHECK(!ms_shard_add_communicator(6, 1, true));
    CHECK(ms_shard_add_communicator(12, 7, true));
    check_force(1, 7, 12);
}

/* As many as there can be. */
MS_TEST_AFTER(start, a_group_along_none_of_eight_dimensions_tells_nothing)
{
    set_plan("{" PLAN ", \"mesh\": {\"a\": 2, \"b\": 3, \"c\": 1, \"d\": 1, \"e\": 1, "
             "\"f\": 1, \"g\": 1, \"h\": 1}}");
    CHECK(!ms_shard_add_communicator(5, 4, true));
    CHECK(!ms_shard_add_communicator(3, 1, true));
    CHECK(ms_shard_add_communicator(2, 1, true));
    check_force(1, 4, 6);
    ms_shard_add_communicator(6, 3, false);
    CHECK_EQ(count_log_lines("treats this process as rank 4, but it is rank 3"), 1);
}

MS_TEST_AFTER(start, the_page_has_the_rank_of_a_communicator_of_the_program)
{
    ms_shard_add_communicator(6, 4, true); /* split off another one */
    CHECK_EQ(rank_count, 0);
    ms_shard_add_communicator(5, 3, false);
    CHECK_EQ(rank_count, 1);
    CHECK(page_rank == 3 && page_ranks == 5);
}

MS_TEST_AFTER(start, the_page_has_the_plan_and_what_happened)
{
    atomic_store(&ms_hot.recorded, MS_NOT_RECORDED);
    set_plan("{" PLAN ", \"world_size\": 4, \"rank\": 3}");
    ms_shard_publish("set", 7);
    CHECK(plan_count == 0 && event_count == 0);
    atomic_store(&ms_hot.recorded, MS_RECORDED);
    ms_shard_publish(NULL, 7);
    CHECK(plan_count == 1 && event_count == 0);
    CHECK(published.rank == 3 && published.world == 4 && published.generation == 1);
    ms_shard_publish("set", 7);
    CHECK(plan_count == 2 && event_count == 1);
    CHECK_EQ(event.kind, MS_EVENT_PLAN);
    CHECK_EQ(event.began, 7);
    CHECK_EQ(event.bytes, published.owned_bytes);
    CHECK(strcmp(event.text, "set") == 0);
    atomic_store(&ms_hot.recorded, MS_NOT_RECORDED);
}

MS_TEST_AFTER(start, another_rank_in_a_communicator_of_that_size_is_said_once)
{
    set_plan("{" PLAN ", \"world_size\": 4, \"rank\": 3}");
    ms_shard_add_communicator(4, 3, false);
    ms_shard_add_communicator(5, 1, false);
    CHECK_EQ(count_log_lines("but it is rank"), 0);
    for (int i = 0; i < 2; i++) {
        CHECK(!ms_shard_add_communicator(4, 1, false));
        CHECK_EQ(count_log_lines("some plan: the plan treats this process as rank 3, but it is "
                                 "rank 1 in a communicator of 4 ranks"),
                 1);
    }
    check_force(1, 3, 4);
}

MS_TEST_AFTER(start, a_group_along_no_dimension_is_said_once)
{
    CHECK(!ms_shard_add_communicator(3, 1, true));
    set_plan("{" PLAN ", \"mesh\": {\"a\": 2, \"b\": 4}, \"rank\": 6}"); /* 1 and 2 */
    ms_shard_add_communicator(4, 2, true);
    ms_shard_add_communicator(2, 1, true);
    ms_shard_add_communicator(3, 1, true);
    ms_shard_add_communicator(1, 0, true);
    CHECK_EQ(count_log_lines("which is its coordinate in no"), 0);
    for (int i = 0; i < 2; i++) {
        CHECK(!ms_shard_add_communicator(4, 1, true)); /* as along the other one */
        CHECK_EQ(count_log_lines("some plan: rank 6 of the plan is rank 1 in a group of 4, which"),
                 1);
    }
}

/* --- names */

enum { BYTES = 4 * FAKE_GRANULE };

static struct ms_allocation *allocation;

static void start_memory(void)
{
    fake_start();
    start();
    allocation = fake_allocation(BYTES);
    set_plan("{\"format\": \"metashard-plan/1\", \"world_size\": 2, \"rank\": 1, \"tensors\": ["
             "{\"name\": \"a\", \"dtype\": \"U8\", \"shape\": [1000]},"
             "{\"name\": \"b\", \"dtype\": \"U8\", \"shape\": [2000]},"
             "{\"name\": \"x*\"}, {\"name\": \"y*\"}]}");
}

static void end_memory(void)
{
    fake_check_allocation(allocation);
    fake_allocation_free(allocation);
    fake_check_empty();
}

/* The names in the order in which the shard has them, and a space behind each. */
static void check_names(const char *wanted)
{
    char names[128] = "";
    ms_lock_take(&ms_shard.lock);
    for (size_t i = 0; i < ms_shard.named_count; i++) {
        CHECK_EQ(ms_shard.named[i]->at, i);
        CHECK(ms_shard_named_in_locked(ms_shard.named[i]->address, 1) == ms_shard.named[i]);
        strcat(strcat(names, ms_shard.named[i]->name), " ");
    }
    ms_lock_drop(&ms_shard.lock);
    if (strcmp(names, wanted) != 0)
        ms_test_fail(__FILE__, __LINE__, "expected %s, found %s", wanted, names);
}

static void forget(size_t begin, size_t end)
{
    CHECK(ms_space_claim(allocation->address) == allocation);
    ms_shard_forget(allocation, begin, end);
    ms_space_release(allocation);
}

MS_TEST_BETWEEN(start_memory, end_memory, a_name_replaces_those_that_it_meets)
{
    const CUdeviceptr at = allocation->address;
    name_tensor(at, 100, "one");
    name_tensor(at + 100, 100, "two");
    name_tensor(at + 300, 100, "three");
    check_names("one two three ");
    name_tensor(at + 199, 1, "four"); /* in two */
    check_names("one three four ");
    name_tensor(at + 200, 100, "five"); /* just between */
    check_names("one three four five ");
    name_tensor(at + 99, 202, "six"); /* all but their ends */
    check_names("six ");
    const int pieces = live;
    name_tensor(at + 99, 202, "six");
    CHECK_EQ(live, pieces);
    name_tensor(at, 0, "nothing");
    check_names("six ");
}

MS_TEST_BETWEEN(start_memory, end_memory, names_of_memory_that_is_gone_are_forgotten)
{
    const CUdeviceptr at = allocation->address;
    const int pieces = live;
    forget(0, BYTES);
    name_tensor(at, 100, "one");
    name_tensor(at + 100, 100, "two");
    name_tensor(at + 300, 100, "three");
    forget(200, 300);
    check_names("one two three ");
    forget(199, 301);
    check_names("one ");
    forget(100, BYTES);
    check_names("one ");
    forget(99, 100);
    check_names("");
    CHECK(live - pieces <= 2); /* what the lists have grown to */
}

MS_TEST_BETWEEN(start_memory, end_memory, memory_that_is_not_deferred_gets_no_name)
{
    const CUdeviceptr at = allocation->address;
    struct ms_tensor tensor = {.name = "t", .dtype = MS_DTYPE_U8, .dims = 1, .shape = {100}};
    CHECK(ms_tensor_measure(&tensor) == NULL);
    CHECK(ms_shard_name(at + BYTES - 100, 100, "t", &tensor, &fault));
    CHECK(!ms_shard_name(at + BYTES - 99, 100, "t", &tensor, &fault));
    CHECK(strstr(fault.text, "tensor t: no allocation that the shim defers holds 100 bytes") !=
          NULL);
    CHECK(!ms_shard_name(at + BYTES, 100, "t", &tensor, &fault));
    CHECK(!ms_shard_name(at, 99, "t", &tensor, &fault));
    CHECK(strstr(fault.text, "tensor t: expected the 100 bytes of dtype and shape, found 99") !=
          NULL);
    check_names("t ");
}

MS_TEST_BETWEEN(start_memory, end_memory, a_name_without_host_memory_is_refused)
{
    const int pieces = live;
    struct ms_tensor tensor = {.name = "t", .dtype = MS_DTYPE_U8, .dims = 1, .shape = {100}};
    CHECK(ms_tensor_measure(&tensor) == NULL);
    for (int mode = 0; mode < 2; mode++) {
        fails_once = mode == 1;
        for (int made = 0, is_named = 0; !is_named; made++) {
            may_make = made;
            is_named = ms_shard_name(allocation->address, 100, "t", &tensor, &fault);
            CHECK_EQ(is_named, may_make >= 0);
            may_make = PLENTY;
            check_names(is_named ? "t " : "");
            CHECK(is_named || strcmp(fault.text, "out of memory") == 0);
            CHECK(made < 10 && (!is_named || made >= 3));
            forget(0, BYTES);
            ms_heap_free(ms_shard.named); /* the list, which would stay */
            ms_shard.named = NULL;
            ms_shard.named_capacity = 0;
            CHECK_EQ(live, pieces);
        }
    }
}

/* --- copies of files */

/* A file with "x", of 3000 bytes, and "y", of 1000 behind it, which begin at *data_out. */
static struct ms_source *open_checkpoint(uint64_t *data_out)
{
    static const char header[] = "{'x':{'dtype':'U8','shape':[3000],'data_offsets':[0,3000]},"
                                 "'y':{'dtype':'U8','shape':[1000],'data_offsets':[3000,4000]}}";
    struct stat stat_;
    make_folder();
    save("c.safetensors", header, 4000);
    CHECK_EQ(stat(in_folder("c.safetensors"), &stat_), 0);
    struct ms_mapping mapping = {.device = stat_.st_dev, .inode = stat_.st_ino};
    snprintf(mapping.path, sizeof(mapping.path), "%s", in_folder("c.safetensors"));
    struct ms_source *source = ms_file_source(ms_trust_open(&mapping, (uint64_t)stat_.st_size));
    CHECK(source != NULL);
    *data_out = 8 + strlen(header);
    return source;
}

static void check_facts(uint64_t tensors, uint64_t planned, uint64_t owned)
{
    CHECK_EQ(describe()->tensors, tensors);
    CHECK_EQ(facts.planned_bytes, planned);
    CHECK_EQ(facts.owned_bytes, owned);
}

static const char halves[] = "{\"format\": \"metashard-plan/1\", \"world_size\": 2, \"rank\": 1, "
                             "\"tensors\": [{\"name\": \"*\", \"placements\": [{\"shard\": 0}]}]}";

MS_TEST_AFTER(start, tensors_are_counted_once_the_program_has_copied_from_them)
{
    uint64_t data;
    struct ms_source *source = open_checkpoint(&data);
    struct ms_host_snapshot *snapshot = ms_host_snapshot_create(4000, MS_SNAPSHOT_ANY);
    set_plan(halves);
    ms_shard_add_copy(ms_host_snapshot_source(snapshot), 0, 4000);
    check_facts(0, 0, 0);
    ms_shard_add_copy(source, data + 2999, 1);
    check_facts(1, 3000, 1500);
    ms_shard_add_copy(source, data, 3000);
    check_facts(1, 3000, 1500);
    set_plan(halves);
    check_facts(0, 0, 0);
    ms_shard_add_copy(source, data + 3000, 1000);
    check_facts(1, 1000, 500);
    ms_shard_add_copy(source, data, 3001);
    check_facts(2, 4000, 2000);
    ms_host_snapshot_drop(snapshot);
    ms_source_drop(source);
}

MS_TEST_BETWEEN(start_memory, end_memory, a_plan_counts_tensors_copied_before_it)
{
    uint64_t data;
    struct ms_source *source = open_checkpoint(&data);
    const struct ms_content content = {.kind = MS_SOURCE,
                                       .source = source,
                                       .source_offset = data + 2990};
    fake_set(allocation, BYTES - 11, BYTES, &content); /* ten of x, and one of y */
    set_plan(halves);
    check_facts(0, 0, 0);
    ms_shard_catch_up();
    check_facts(2, 4000, 2000);
    fake_set(allocation, BYTES - 1, BYTES, &(struct ms_content){.kind = MS_FILL});
    set_plan(halves);
    ms_shard_catch_up();
    check_facts(1, 3000, 1500);
    ms_source_drop(source);
}

/* --- entries that decide nothing */

static char idle[128];

static void add_idle(void *context, size_t index, const char *name, bool is_ambiguous)
{
    CHECK(context == idle);
    sprintf(idle + strlen(idle), "%zu:%s%s ", index, name != NULL ? name : "-",
            is_ambiguous ? "?" : "");
}

static void check_idle(const char *wanted)
{
    const int pieces = live;
    idle[0] = '\0';
    ms_shard_visit_idle(add_idle, idle);
    if (strcmp(idle, wanted) != 0)
        ms_test_fail(__FILE__, __LINE__, "expected %s, found %s", wanted, idle);
    CHECK(live <= pieces + 8); /* the sheet, if it was made */
    const int with_sheet = live;
    ms_shard_visit_idle(add_idle, idle);
    CHECK_EQ(live, with_sheet);
}

STORY_BETWEEN(start_memory, end_memory, an_entry_that_meets_no_tensor_is_idle,
              check_idle("0:a 1:b 2:x* 3:y* "), name_tensor(allocation->address, 1000, "a"),
              name_tensor(allocation->address + 1000, 10, "yes"), check_idle("1:b 2:x* "),
              name_tensor(allocation->address + 2000, 2000, "b"),
              name_tensor(allocation->address + 1000, 10, "xes"), check_idle("3:y* "),
              forget(0, BYTES), check_idle("0:a 1:b 2:x* 3:y* "))

MS_TEST_AFTER(start, a_process_without_a_plan_has_no_idle_entry)
{
    check_idle("");
}

MS_TEST_BETWEEN(start_memory, end_memory, the_one_block_of_a_size_is_the_one_tensor_of_it)
{
    struct ms_allocation *one = fake_allocation(1000), *two = fake_allocation(2000),
                         *also = fake_allocation(2000);
    ms_shard_match_unnamed();
    check_names("a ");
    CHECK(ms_shard.named[0]->is_guess && ms_shard.named[0]->address == one->address);
    check_idle("1:b? 2:x* 3:y* ");
    fake_allocation_free(also);
    ms_shard_match_unnamed();
    check_names("a b ");
    CHECK(ms_shard.named[1]->address == two->address);
    check_idle("2:x* 3:y* ");
    set_plan("{" PLAN ", \"world_size\": 2, \"rank\": 1}");
    check_names("");
    fake_allocation_free(one);
    fake_allocation_free(two);
}

MS_TEST_BETWEEN(start_memory, end_memory, a_block_matches_neither_of_two_tensors_of_a_size)
{
    struct ms_allocation *one = fake_allocation(1000), *two = fake_allocation(1000);
    set_plan("{\"format\": \"metashard-plan/1\", \"world_size\": 2, \"rank\": 1, \"tensors\": ["
             "{\"name\": \"a\", \"dtype\": \"U8\", \"shape\": [1000]},"
             "{\"name\": \"b\", \"dtype\": \"U8\", \"shape\": [1000]}]}");
    ms_shard_match_unnamed();
    check_idle("0:a? 1:b? ");
    fake_allocation_free(one);
    const int pieces = live;
    ms_shard_match_unnamed();
    check_idle("0:a? 1:b? ");
    CHECK_EQ(live, pieces);
    one = fake_allocation(1000);
    name_tensor(one->address, 1000, "a");
    ms_shard_match_unnamed();
    check_names("a b "); /* the one that is left is the other */
    CHECK(!ms_shard.named[0]->is_guess && ms_shard.named[1]->is_guess);
    CHECK(ms_shard.named[1]->address == two->address);
    check_idle("");
    fake_allocation_free(one);
    fake_allocation_free(two);
}

/* --- entries without a name */

static const char by_size[] =
    "{\"format\": \"metashard-plan/1\", \"world_size\": 2, \"rank\": 1, \"tensors\": ["
    "{\"size\": 1000}, {\"order\": 2}, {\"size\": 5}, {\"size\": 2000, \"order\": 0}]}";

MS_TEST_BETWEEN(start_memory, end_memory, entries_without_a_name_meet_blocks_by_size_and_order)
{
    struct ms_allocation *two = fake_allocation(2000), *one = fake_allocation(1000);
    set_plan(by_size);
    check_idle("0:- 1:- 2:- 3:- ");
    const int pieces = live;
    ms_shard_match_unnamed();
    check_idle("1:- 2:- 3:- "); /* the third block is decided by its size */
    CHECK_EQ(ms_shard.unnamed_count, 3);
    CHECK(!ms_shard.unnamed[0].is_selected && !ms_shard.unnamed[1].is_selected);
    CHECK(ms_shard.unnamed[2].is_selected && ms_shard.unnamed[2].address == one->address);
    CHECK(ms_shard.unnamed[1].address == two->address && ms_shard.unnamed[1].end == 2000);
    CHECK(live > pieces);
    ms_shard_match_unnamed();
    set_plan(by_size);
    check_idle("0:- 1:- 2:- 3:- ");
    CHECK_EQ(live, pieces);
    name_tensor(two->address, 2000, "named"); /* the first tensor; and blocks are not looked for */
    ms_shard_match_unnamed();
    check_idle("0:- 1:- 2:- ");
    CHECK_EQ(ms_shard.unnamed_count, 0);
    fake_allocation_free(one);
    fake_allocation_free(two);
}

/* Whether it had all that it wants, of which it may have so many pieces. */
static bool match_with(int pieces)
{
    may_make = pieces;
    ms_shard_match_unnamed();
    ms_shard_visit_idle(add_idle, strcpy(idle, ""));
    describe();
    const bool has_all = may_make >= 0;
    may_make = PLENTY;
    set_plan(by_size);
    check_idle("0:- 1:- 2:- 3:- ");
    return has_all;
}

MS_TEST_BETWEEN(start_memory, end_memory, a_match_without_memory_fails_and_leaks_nothing)
{
    struct ms_allocation *one = fake_allocation(1000);
    set_plan(by_size);
    check_idle("0:- 1:- 2:- 3:- ");
    const int before = live;
    for (int mode = 0; mode < 2; mode++) {
        int pieces = 0;
        fails_once = mode == 1;
        for (; !match_with(pieces); pieces++)
            CHECK_EQ(live, before);
        CHECK(pieces > 10);
    }
    CHECK_EQ(live, before);
    fake_allocation_free(one);
}

static void swap_ages(struct ms_allocation *a, struct ms_allocation *b)
{
    const uint64_t id = a->id;
    a->id = b->id;
    b->id = id;
}

MS_TEST_BETWEEN(start_memory, end_memory, blocks_are_ordered_by_age)
{
    fake_needs_hints(); /* the first lies before the second */
    struct ms_allocation *one = fake_allocation(1000), *two = fake_allocation(2000);
    CHECK(one->address < two->address);
    swap_ages(one, two); /* as when an address is taken again */
    set_plan(by_size);
    ms_shard_match_unnamed();
    CHECK_EQ(ms_shard.unnamed_count, 3);
    CHECK(ms_shard.unnamed[0].address == allocation->address);
    CHECK(ms_shard.unnamed[1].address == two->address);
    CHECK(ms_shard.unnamed[2].address == one->address);
    swap_ages(one, two);
    fake_allocation_free(one);
    fake_allocation_free(two);
}

MS_TEST_BETWEEN(start_memory, end_memory, an_entry_may_give_the_form_of_its_block)
{
    struct ms_allocation *one = fake_allocation(1000);
    set_plan("{\"format\": \"metashard-plan/1\", \"world_size\": 2, \"rank\": 1, \"tensors\": ["
             "{\"order\": 1, \"dtype\": \"F32\", \"shape\": [5, 50]}, {\"order\": 0}]}");
    ms_shard_match_unnamed();
    CHECK_EQ(ms_shard.unnamed_count, 2);
    const struct ms_tensor *whole = &ms_shard.unnamed[0].tensor,
                           *form = &ms_shard.unnamed[1].tensor;
    CHECK(whole->dtype == MS_DTYPE_U8 && whole->dims == 1 && whole->bytes == BYTES);
    CHECK(form->dtype == MS_DTYPE_F32 && form->dims == 2 && form->bytes == 1000);
    CHECK(whole->name == NULL && form->name == NULL);
    check_idle("");
    fake_allocation_free(one);
}

MS_TEST_BETWEEN(start_memory, end_memory, a_match_leaves_out_blocks_with_bytes_of_a_file)
{
    struct test_file file;
    make_test_file(&file, "/tmp", 1000);
    const struct ms_content content = {.kind = MS_SOURCE, .source = file.source};
    struct ms_allocation *one = fake_allocation(1000);
    fake_set(one, 999, 1000, &content); /* its last byte */
    set_plan(by_size);
    ms_shard_match_unnamed();
    CHECK_EQ(ms_shard.unnamed_count, 1);
    check_idle("0:- 1:- 2:- 3:- ");
    fake_allocation_free(one);
    ms_source_drop(file.source);
}

MS_TEST_BETWEEN(start_memory, end_memory, a_match_looks_at_no_blocks_where_files_are_known)
{
    uint64_t data;
    struct ms_source *source = open_checkpoint(&data);
    struct ms_allocation *one = fake_allocation(1000);
    ms_shard_add_copy(source, data, 1);
    ms_shard_match_unnamed();
    check_names("");
    set_plan(by_size);
    ms_shard_match_unnamed();
    CHECK_EQ(ms_shard.unnamed_count, 0);
    fake_allocation_free(one);
    ms_source_drop(source);
}

MS_TEST_BETWEEN(start_memory, end_memory, blocks_of_one_allocation_are_looked_for_each)
{
    static const size_t blocks[][2] = {{3000, 3700}, {1000, 2000}, {0, 500}};
    CHECK(ms_space_claim(allocation->address) == allocation);
    for (size_t i = 0; i < 3; i++)
        CHECK_EQ(ms_carve_take(allocation, blocks[i][0], blocks[i][1]), MS_CARVED);
    ms_space_release(allocation);
    ms_shard_match_unnamed();
    check_names("a ");
    CHECK_EQ(ms_shard.named[0]->address, allocation->address + 1000);
    CHECK_EQ(ms_shard.named[0]->begin, 1000);
    CHECK_EQ(ms_shard.named[0]->end, 2000);
    ms_shard_match_unnamed(); /* no other one has its size */
    check_names("a ");
    check_idle("1:b 2:x* 3:y* ");
    set_plan(by_size);
    ms_shard_match_unnamed();
    CHECK_EQ(ms_shard.unnamed_count, 3);
    for (size_t i = 0; i < 3; i++) {
        CHECK_EQ(ms_shard.unnamed[i].begin, blocks[2 - i][0]);
        CHECK_EQ(ms_shard.unnamed[i].tensor.bytes, blocks[2 - i][1] - blocks[2 - i][0]);
        CHECK_EQ(ms_shard.unnamed[i].is_selected, i > 0);
    }
}
