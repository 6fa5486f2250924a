/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/base/sorted.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit/counted_heap.h"
#include "tools/simcuda/harness/test.h"

/* The slow, obvious twin: an array that is moved whole. */
enum { MOST = 4000, STEPS = 20000, FEW = 3 };
struct item {
    uint64_t key, value;
    unsigned char more[24];
};

static struct item twin[MOST + FEW];
static size_t items_there;
static struct ms_sorted list;

static void start(void)
{
    list = (struct ms_sorted){.item_bytes = sizeof(struct item)};
    items_there = 0;
}

static void end(void)
{
    ms_sorted_cleanup(&list);
    CHECK_EQ(list.count, 0);
    CHECK_EQ(live, 0);
    CHECK(ms_sorted_item(&list, (struct ms_position){0, 0}) == NULL);
}

static struct ms_position position(size_t index)
{
    struct ms_position at = {0, 0};
    while (index-- > 0)
        at = ms_sorted_next(&list, at);
    return at;
}

/* The index of the last item whose key is not above. */
static size_t find(uint64_t key)
{
    size_t at = 0;
    while (at + 1 < items_there && twin[at + 1].key <= key)
        at++;
    return at;
}

static bool try_insert(uint64_t key, size_t added)
{
    struct item items[FEW];
    const size_t at = items_there == 0 ? 0 : find(key) + (twin[find(key)].key <= key);
    struct ms_position place = ms_sorted_find(&list, key);
    if (items_there > 0 && twin[find(key)].key <= key)
        place = ms_sorted_next(&list, place);
    for (size_t i = 0; i < added; i++)
        items[i] = (struct item){.key = key, .value = (uint64_t)rand(), .more = {1, 2, 3}};
    if (!ms_sorted_insert(&list, place, items, added))
        return false;
    memmove(&twin[at + added], &twin[at], (items_there - at) * sizeof(twin[0]));
    memcpy(&twin[at], items, added * sizeof(items[0]));
    items_there += added;
    return true;
}

static void insert(uint64_t key, size_t added)
{
    CHECK(try_insert(key, added));
}

static void take_out(size_t at, size_t removed)
{
    ms_sorted_remove(&list, position(at), removed);
    items_there -= removed;
    memmove(&twin[at], &twin[at + removed], (items_there - at) * sizeof(twin[0]));
}

static void check_same(void)
{
    struct ms_position at = {0, 0};
    CHECK_EQ(list.count, items_there);
    for (size_t i = 0; i < items_there; i++, at = ms_sorted_next(&list, at))
        CHECK_BYTES(ms_sorted_item(&list, at), &twin[i], sizeof(twin[0]));
    CHECK(ms_sorted_item(&list, at) == NULL);
    for (size_t i = items_there; i > 0; i--) {
        at = ms_sorted_previous(&list, at);
        CHECK_EQ(((struct item *)ms_sorted_item(&list, at))->value, twin[i - 1].value);
    }
}

static void check_find(uint64_t key)
{
    const struct item *found = ms_sorted_item(&list, ms_sorted_find(&list, key));
    if (items_there == 0)
        CHECK(found == NULL);
    else
        CHECK_EQ(found->value, twin[find(key)].value);
}

MS_TEST(random_changes_match_the_model)
{
    const unsigned seed = 20261123;
    printf("# seed %u\n", seed);
    srand(seed);
    for (int way = 0; way < 4; way++) {
        start();
        for (int step = 0; step < STEPS; step++) {
            /* Anywhere; upwards; downwards; in one place. */
            const uint64_t keys[] = {(uint64_t)rand(), (uint64_t)step * 3,
                                     3 * (uint64_t)(STEPS - step), 1000};
            const size_t removed =
                (size_t)rand() % (items_there / (rand() % 100 == 0 ? 2 : 50) + 1);
            if (items_there + FEW > MOST || rand() % 20 == 0)
                take_out(removed == 0 ? 0 : (size_t)rand() % (items_there - removed + 1), removed);
            else
                insert(keys[way], 1 + (size_t)rand() % FEW);
            check_find((uint64_t)rand() % (3 * (uint64_t)STEPS));
            if (step % 1000 == 0)
                check_same();
        }
        check_same();
        take_out(0, items_there);
        check_same();
        end();
    }
}

/* Leaves in pairs that would fit into one become one. */
MS_TEST(a_list_that_is_nearly_empty_becomes_small)
{
    start();
    for (uint64_t i = 0; i < MOST; i++)
        insert(i, 1);
    const size_t leaves = list.leaf_count;
    for (size_t i = 0; i < items_there; i++)
        take_out(i, items_there - i < 19 ? items_there - i : 19);
    check_same();
    CHECK(list.leaf_count <= leaves / 5);
    end();
}

/* Upwards, leaves are full. */
MS_TEST(a_list_that_grows_at_its_end_wastes_nothing)
{
    start();
    for (uint64_t i = 0; i < MOST; i++)
        insert(i, 1);
    CHECK(list.leaf_count <= MOST * sizeof(struct item) / 4000 + 1);
    end();
}

/* Some of what a step needs can be had, and the next is not. */
MS_TEST(an_insert_without_memory_leaves_the_list_as_it_was)
{
    enum { PLENTY = 1000000 };
    int refused = 0;
    for (int way = 0; way < 3; way++) {
        start();
        for (unsigned step = 0; items_there + FEW < MOST; step++) {
            const uint64_t keys[] = {step * UINT64_C(2654435761) % 1000003, step, MOST - step};
            may_make = (int)(step % 3);
            const bool is_added = try_insert(keys[way], 1 + step % FEW);
            may_make = PLENTY;
            if (is_added)
                continue;
            refused++;
            check_same();
            insert(keys[way], 1 + step % FEW);
        }
        check_same();
        end();
    }
    CHECK(refused > 20);
}

/* Removing needs no memory: leaves stay more than they would be. */
MS_TEST(a_removal_needs_no_memory)
{
    start();
    for (uint64_t i = 0; i < MOST; i++)
        insert(i, 1);
    may_make = 0;
    for (size_t i = 0; i < items_there; i++)
        take_out(i, items_there - i < 19 ? items_there - i : 19);
    check_same();
    take_out(0, items_there);
    end();
}

MS_TEST(a_distance_is_the_number_of_items_between)
{
    enum { EACH = 371 };
    start();
    for (uint64_t i = 0; i < MOST; i++)
        insert(i, 1);
    for (size_t from = 0; from <= MOST; from += EACH) {
        for (size_t to = from; to <= MOST; to += EACH)
            CHECK_EQ(ms_sorted_distance(&list, position(from), position(to)), to - from);
    }
    CHECK_EQ(ms_sorted_distance(&list, position(0), position(MOST)), MOST);
    /* Behind the end is the end, and before the begin the begin. */
    const struct ms_position behind = ms_sorted_next(&list, position(MOST));
    CHECK(ms_sorted_item(&list, behind) == NULL);
    CHECK_EQ(ms_sorted_distance(&list, position(0), behind), MOST);
    const struct ms_position before = ms_sorted_previous(&list, position(0));
    CHECK_EQ(ms_sorted_distance(&list, before, position(0)), 0);
    end();
}
