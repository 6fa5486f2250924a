/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sorted lists of any length that change anywhere. Items lie in leaves of a page each, and an array
 * points to the leaves. A change moves the items of one leaf, sometimes of three, and the pointers
 * of all later leaves if a leaf is added or removed. This is cheap up to about 10^7 items.
 *
 *     leaves:  |  o  |  o  |  o  |
 *                 |     |     `-> 4096 .. 9000
 *                 |     `-------> 512 .. 3000
 *                 `-------------> 0 .. 500
 *
 * An item begins with its key, a uint64_t. Keys ascend. Not thread-safe. Positions and pointers to
 * items hold until the list changes.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "runtime/base/range.h"

struct ms_leaf;

struct ms_sorted {
    uint32_t item_bytes; /* set by the owner, immutable */
    uint32_t count;      /* of items */
    uint32_t leaf_count, leaf_capacity;
    union {
        struct ms_leaf *only;    /* if leaf_capacity is 0 */
        struct ms_leaf **leaves; /* else */
    };
};

struct ms_position {
    size_t leaf, item;
};

/* The last item whose key is not above `key`; if there is none, the first item, or the end. */
struct ms_position ms_sorted_find(const struct ms_sorted *list, uint64_t key);

/* The item, or NULL at the end. */
void *ms_sorted_item(const struct ms_sorted *list, struct ms_position at);

/* One item forward, to the end at most; one item back, to the first at most. */
struct ms_position ms_sorted_next(const struct ms_sorted *list, struct ms_position at);
struct ms_position ms_sorted_previous(const struct ms_sorted *list, struct ms_position at);

/* The item at *at, which moves one item forward; NULL at the end. */
static inline void *ms_sorted_step(const struct ms_sorted *list, struct ms_position *at)
{
    void *item = ms_sorted_item(list, *at);
    *at = ms_sorted_next(list, *at);
    return item;
}

/* For items that begin with a struct ms_range and do not overlap: the first that ends behind
 * `offset`, or the end. */
static inline struct ms_position ms_sorted_behind(const struct ms_sorted *list, uint64_t offset)
{
    const struct ms_position at = ms_sorted_find(list, offset);
    const void *item = ms_sorted_item(list, at);
    struct ms_range range = {0, UINT64_MAX};
    if (item != NULL)
        memcpy(&range, item, sizeof(range));
    return range.end <= offset ? ms_sorted_next(list, at) : at;
}

/* For such items: true if they hold all of [begin, end). */
static inline bool ms_sorted_covers(const struct ms_sorted *list, uint64_t begin, uint64_t end)
{
    struct ms_position at = ms_sorted_behind(list, begin);
    struct ms_range range;
    for (const void *item; begin < end && (item = ms_sorted_step(list, &at)) != NULL;
         begin = range.end) {
        memcpy(&range, item, sizeof(range));
        if (range.begin > begin)
            return false;
    }
    return begin >= end;
}

/* The number of items from one position to a later one. */
size_t ms_sorted_distance(const struct ms_sorted *list, struct ms_position from,
                          struct ms_position to);

/* Inserts a few items before `at`, which may be the end. Out of memory: false, nothing changes. */
bool ms_sorted_insert(struct ms_sorted *list, struct ms_position at, const void *items,
                      size_t count);

/* Removes `count` items from `at` on. */
void ms_sorted_remove(struct ms_sorted *list, struct ms_position at, size_t count);

/* Frees all items. The list is empty then. */
void ms_sorted_cleanup(struct ms_sorted *list);
