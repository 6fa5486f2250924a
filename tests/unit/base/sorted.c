/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/base/sorted.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/simcuda/harness/test.h"

/* The slow, obvious twin: an array that is moved whole. */
enum { MOST = 4000, STEPS = 20000, FEW = 3 };
struct item {
    uint64_t key, value;
    unsigned char more[24];
};

static struct item twin[MOST + FEW];
static size_t count;
static struct ms_sorted list;

static void start(void)
{
    list = (struct ms_sorted){.item_bytes = sizeof(struct item)};
    count = 0;
}

static void end(void)
{
    ms_sorted_cleanup(&list);
    CHECK_EQ(list.count, 0);
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
    while (at + 1 < count && twin[at + 1].key <= key)
        at++;
    return at;
}

static void insert(uint64_t key, size_t added)
{
    struct item items[FEW];
    const size_t at = count == 0 ? 0 : find(key) + (twin[find(key)].key <= key);
    struct ms_position place = ms_sorted_find(&list, key);
    if (count > 0 && twin[find(key)].key <= key)
        place = ms_sorted_next(&list, place);
    for (size_t i = 0; i < added; i++)
        items[i] = (struct item){.key = key, .value = (uint64_t)rand(), .more = {1, 2, 3}};
    memmove(&twin[at + added], &twin[at], (count - at) * sizeof(twin[0]));
    memcpy(&twin[at], items, added * sizeof(items[0]));
    count += added;
    CHECK(ms_sorted_insert(&list, place, items, added));
}

static void take_out(size_t at, size_t removed)
{
    ms_sorted_remove(&list, position(at), removed);
    count -= removed;
    memmove(&twin[at], &twin[at + removed], (count - at) * sizeof(twin[0]));
}

static void check_same(void)
{
    struct ms_position at = {0, 0};
    CHECK_EQ(list.count, count);
    for (size_t i = 0; i < count; i++, at = ms_sorted_next(&list, at))
        CHECK_BYTES(ms_sorted_item(&list, at), &twin[i], sizeof(twin[0]));
    CHECK(ms_sorted_item(&list, at) == NULL);
    for (size_t i = count; i > 0; i--) {
        at = ms_sorted_previous(&list, at);
        CHECK_EQ(((struct item *)ms_sorted_item(&list, at))->value, twin[i - 1].value);
    }
}

static void check_find(uint64_t key)
{
    const struct item *found = ms_sorted_item(&list, ms_sorted_find(&list, key));
    if (count == 0)
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
            const size_t removed = (size_t)rand() % (count / (rand() % 100 == 0 ? 2 : 50) + 1);
            if (count + FEW > MOST || rand() % 20 == 0)
                take_out(removed == 0 ? 0 : (size_t)rand() % (count - removed + 1), removed);
            else
                insert(keys[way], 1 + (size_t)rand() % FEW);
            check_find((uint64_t)rand() % (3 * (uint64_t)STEPS));
            if (step % 1000 == 0)
                check_same();
        }
        check_same();
        take_out(0, count);
        check_same();
        end();
    }
}

/* Leaves in pairs that would fit into one become one. */
MS_TEST(what_is_nearly_empty_becomes_small)
{
    start();
    for (uint64_t i = 0; i < MOST; i++)
        insert(i, 1);
    const size_t leaves = list.leaf_count;
    for (size_t i = 0; i < count; i++)
        take_out(i, count - i < 19 ? count - i : 19);
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
