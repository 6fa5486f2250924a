/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/base/gap_array.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/simcuda/harness/test.h"

/* The slow, obvious twin: an array that is moved whole. Items have an odd size, so that none lies
 * by luck where it should. */
enum { MOST = 400, STEPS = 40000 };
struct item {
    unsigned char bytes[12];
};

static struct item twin[MOST];
static size_t twin_count;

static struct item *items;
static size_t count;
static struct ms_gap_array gaps;

static struct item random_item(void)
{
    struct item item;
    for (size_t i = 0; i < sizeof(item.bytes); i++)
        item.bytes[i] = (unsigned char)rand();
    return item;
}

static void start(void)
{
    items = NULL;
    count = twin_count = 0;
    gaps = (struct ms_gap_array){.item_bytes = sizeof(struct item)};
}

static void end(void)
{
    ms_gap_array_free(&gaps, items);
    CHECK_EQ(gaps.before, 0);
    CHECK_EQ(gaps.behind, 0);
}

/* In both. */
static void replace(size_t at, size_t removed, size_t added)
{
    if (added > removed) {
        items = ms_gap_array_reserve(&gaps, items, count, added - removed);
        CHECK(items != NULL);
        CHECK(gaps.behind >= added - removed);
    }
    if (items != NULL)
        items = ms_gap_array_replace(&gaps, items, count, at, removed, added);
    memmove(&twin[at + added], &twin[at + removed], (twin_count - at - removed) * sizeof(twin[0]));
    count = twin_count = twin_count - removed + added;
    for (size_t i = 0; i < added; i++)
        items[at + i] = twin[at + i] = random_item();
}

static void check_same(void)
{
    if (count > 0)
        CHECK_BYTES(items, twin, count * sizeof(items[0]));
}

MS_TEST(random_changes_match_the_model)
{
    const unsigned seed = 20261121;
    printf("# seed %u\n", seed);
    srand(seed);
    for (int way = 0; way < 4; way++) {
        start();
        for (int step = 0; step < STEPS; step++) {
            /* Anywhere; at the begin; at the end; a queue. */
            const size_t removed = count == 0 ? 0 : (size_t)rand() % (count < 4 ? count + 1 : 4);
            const size_t added = (size_t)rand() % 4;
            const size_t places[] = {(size_t)rand() % (count - removed + 1), 0, count - removed, 0};
            if (count - removed + added > MOST)
                replace(0, count / 2, 0);
            else if (way < 3)
                replace(places[way], removed, added);
            else if (step % 2 == 0)
                replace(count, 0, added);
            else
                replace(0, removed, 0);
            check_same();
        }
        end();
    }
}

MS_TEST(a_sweep_moves_nothing_that_stays)
{
    start();
    replace(0, 0, MOST);
    /* Upwards from the begin: what is behind stays in its place. */
    const struct item *last = &items[count - 1];
    while (count > 1) {
        replace(0, 1, 0);
        CHECK(&items[count - 1] == last);
    }
    check_same();
    end();
    start();
    replace(0, 0, MOST);
    const struct item *first = items;
    while (count > 1) {
        replace(count - 1, 1, 0);
        CHECK(items == first);
    }
    end();
}

MS_TEST(a_queue_does_not_grow)
{
    start();
    replace(0, 0, 10);
    for (int i = 0; i < 100000; i++) {
        replace(count, 0, 1);
        replace(0, 1, 0);
        CHECK(gaps.before + count + gaps.behind <= 64);
    }
    check_same();
    end();
}
