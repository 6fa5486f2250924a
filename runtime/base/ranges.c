/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/base/ranges.h"

#include <stdlib.h>

#include "runtime/base/array.h"
#include "runtime/base/heap.h"

void ms_ranges_cleanup(struct ms_ranges *ranges)
{
    ms_heap_free(ranges->list);
    *ranges = (struct ms_ranges){0};
}

bool ms_ranges_add(struct ms_ranges *ranges, uint64_t begin, uint64_t end)
{
    if (begin >= end)
        return true;
    if (ranges->count > 0 && ranges->list[ranges->count - 1].end == begin) {
        ranges->list[ranges->count - 1].end = end;
        return true;
    }
    if (!MS_ARRAY_GROW(ranges->list, ranges->count, ranges->capacity))
        return false;
    ranges->list[ranges->count++] = (struct ms_range){begin, end};
    return true;
}

bool ms_ranges_add_all(struct ms_ranges *ranges, const struct ms_ranges *from)
{
    bool is_good = true;
    for (size_t i = 0; i < from->count && is_good; i++)
        is_good = ms_ranges_add(ranges, from->list[i].begin, from->list[i].end);
    return is_good;
}

static int by_begin(const void *a, const void *b)
{
    const struct ms_range *left = a, *right = b;
    return left->begin < right->begin ? -1 : left->begin > right->begin;
}

/* Most lists are built in order. */
static bool is_sorted(const struct ms_ranges *ranges)
{
    for (size_t i = 1; i < ranges->count; i++) {
        if (ranges->list[i].begin <= ranges->list[i - 1].end)
            return false;
    }
    return true;
}

void ms_ranges_sort(struct ms_ranges *ranges)
{
    if (is_sorted(ranges))
        return;
    qsort(ranges->list, ranges->count, sizeof(*ranges->list), by_begin);
    size_t kept = 0;
    for (size_t i = 1; i < ranges->count; i++) {
        struct ms_range *last = &ranges->list[kept];
        if (ranges->list[i].begin > last->end)
            ranges->list[++kept] = ranges->list[i];
        else if (ranges->list[i].end > last->end)
            last->end = ranges->list[i].end;
    }
    ranges->count = kept + 1;
}

bool ms_ranges_subtract(const struct ms_ranges *from, const struct ms_ranges *what,
                        struct ms_ranges *rest_out)
{
    size_t at = 0;
    for (size_t i = 0; i < from->count; i++) {
        uint64_t begin = from->list[i].begin;
        const uint64_t end = from->list[i].end;
        while (at < what->count && what->list[at].end <= begin)
            at++;
        /* A range of `what` may reach into the next one of `from`, so `at` stays. */
        for (size_t j = at; j < what->count && what->list[j].begin < end; j++) {
            if (!ms_ranges_add(rest_out, begin, what->list[j].begin))
                return false;
            begin = what->list[j].end;
        }
        if (!ms_ranges_add(rest_out, begin, end))
            return false;
    }
    return true;
}
