/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/base/array.h"

#include <stdint.h>

#include "runtime/base/heap.h"
#include "tests/unit/counted_heap.h"

MS_TEST(an_array_has_room_for_one_more_and_keeps_what_it_has)
{
    enum { MOST = 1000 };
    uint32_t *array = NULL;
    size_t capacity = 0, growths = 0;
    for (uint32_t count = 0; count < MOST; count++) {
        const size_t before = capacity;
        CHECK(MS_ARRAY_GROW(array, count, capacity));
        CHECK(capacity > count);
        CHECK(capacity == before || capacity >= 2 * before);
        growths += capacity != before;
        array[count] = count;
        array[capacity - 1] = count; /* all of them are there */
    }
    CHECK(growths < 10);
    for (uint32_t i = 0; i < MOST; i++)
        CHECK_EQ(array[i], i);
    ms_heap_free(array);
    CHECK_EQ(live, 0);
}

MS_TEST(an_array_that_cannot_grow_is_as_it_was)
{
    uint64_t *array = NULL;
    size_t capacity = 0;
    may_make = 0;
    CHECK(!MS_ARRAY_GROW(array, 0, capacity));
    CHECK(array == NULL && capacity == 0);
    may_make = 1;
    CHECK(MS_ARRAY_GROW(array, 0, capacity));
    uint64_t *before = array;
    const size_t full = capacity;
    CHECK(MS_ARRAY_GROW(array, full - 1, capacity)); /* there is room: none is asked for */
    CHECK(!MS_ARRAY_GROW(array, full, capacity));
    CHECK(array == before && capacity == full);
    ms_heap_free(array);
    CHECK_EQ(live, 0);
}

/* How many of them are below. */
static size_t find(const int *list, size_t count, int value)
{
    return MS_ARRAY_FIND(at, count, list[at] < value);
}

MS_TEST(a_search_counts_the_items_that_come_before)
{
    static const int list[] = {1, 3, 3, 3, 5, 9, 9};
    for (size_t count = 0; count <= sizeof(list) / sizeof(list[0]); count++) {
        for (int value = 0; value < 11; value++) {
            size_t wanted = 0;
            while (wanted < count && list[wanted] < value)
                wanted++;
            CHECK_EQ(find(list, count, value), wanted);
        }
    }
}
