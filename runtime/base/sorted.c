/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/base/sorted.h"

#include <string.h>

#include "runtime/base/heap.h"

enum { LEAF_BYTES = 4096 };

struct ms_leaf {
    uint32_t count, capacity;
    _Alignas(uint64_t) char items[];
};

static size_t most_items(const struct ms_sorted *list)
{
    return LEAF_BYTES / list->item_bytes;
}

static struct ms_leaf **place_of(struct ms_sorted *list, size_t index)
{
    return list->leaf_capacity == 0 ? &list->only : &list->leaves[index];
}

static struct ms_leaf *leaf_at(const struct ms_sorted *list, size_t index)
{
    return list->leaf_capacity == 0 ? list->only : list->leaves[index];
}

static char *item_at(const struct ms_sorted *list, struct ms_leaf *leaf, size_t index)
{
    return leaf->items + index * list->item_bytes;
}

static uint64_t key_at(const struct ms_sorted *list, struct ms_leaf *leaf, size_t index)
{
    uint64_t key;
    memcpy(&key, item_at(list, leaf, index), sizeof(key));
    return key;
}

struct ms_position ms_sorted_find(const struct ms_sorted *list, uint64_t key)
{
    struct ms_position at = {0, 0};
    if (list->leaf_count == 0)
        return at;
    for (size_t high = list->leaf_count; high - at.leaf > 1;) {
        const size_t middle = at.leaf + (high - at.leaf) / 2;
        if (key_at(list, leaf_at(list, middle), 0) <= key)
            at.leaf = middle;
        else
            high = middle;
    }
    struct ms_leaf *leaf = leaf_at(list, at.leaf);
    for (size_t high = leaf->count; high - at.item > 1;) {
        const size_t middle = at.item + (high - at.item) / 2;
        if (key_at(list, leaf, middle) <= key)
            at.item = middle;
        else
            high = middle;
    }
    return at;
}

void *ms_sorted_item(const struct ms_sorted *list, struct ms_position at)
{
    if (at.leaf >= list->leaf_count)
        return NULL;
    struct ms_leaf *leaf = leaf_at(list, at.leaf);
    return at.item < leaf->count ? item_at(list, leaf, at.item) : NULL;
}

/* The end is behind the last item of the last leaf. */
struct ms_position ms_sorted_next(const struct ms_sorted *list, struct ms_position at)
{
    if (at.leaf >= list->leaf_count)
        return at;
    const size_t count = leaf_at(list, at.leaf)->count;
    if (at.item + 1 < count || at.leaf + 1 == list->leaf_count)
        return (struct ms_position){at.leaf, at.item < count ? at.item + 1 : count};
    return (struct ms_position){at.leaf + 1, 0};
}

struct ms_position ms_sorted_previous(const struct ms_sorted *list, struct ms_position at)
{
    if (at.item > 0)
        return (struct ms_position){at.leaf, at.item - 1};
    if (at.leaf > 0)
        return (struct ms_position){at.leaf - 1, leaf_at(list, at.leaf - 1)->count - 1};
    return at;
}

size_t ms_sorted_distance(const struct ms_sorted *list, struct ms_position from,
                          struct ms_position to)
{
    size_t count = 0;
    for (; from.leaf < to.leaf; from = (struct ms_position){from.leaf + 1, 0})
        count += leaf_at(list, from.leaf)->count - from.item;
    return count + to.item - from.item;
}

/* Makes the leaf hold `capacity` items. NULL if out of memory; then it is as it was. */
static struct ms_leaf *resize(const struct ms_sorted *list, struct ms_leaf *leaf, size_t capacity)
{
    struct ms_leaf *resized = ms_heap_realloc(leaf, sizeof(*leaf) + capacity * list->item_bytes);
    if (resized == NULL)
        return NULL;
    if (leaf == NULL)
        resized->count = 0;
    resized->capacity = (uint32_t)capacity;
    return resized;
}

/* Makes room for one more leaf in the array. */
static bool grow_leaves(struct ms_sorted *list)
{
    if (list->leaf_count < list->leaf_capacity)
        return true;
    const size_t capacity = 2 * list->leaf_capacity + 4;
    struct ms_leaf **old = list->leaf_capacity == 0 ? NULL : list->leaves;
    struct ms_leaf **grown = ms_heap_realloc(old, capacity * sizeof(*grown));
    if (grown == NULL)
        return false;
    if (old == NULL)
        grown[0] = list->only;
    list->leaves = grown;
    list->leaf_capacity = capacity;
    return true;
}

static void add_leaf(struct ms_sorted *list, size_t index, struct ms_leaf *leaf)
{
    struct ms_leaf **place = place_of(list, index);
    memmove(place + 1, place, (list->leaf_count - index) * sizeof(*place));
    *place = leaf;
    list->leaf_count++;
}

static void remove_leaves(struct ms_sorted *list, size_t index, size_t count)
{
    for (size_t i = index; i < index + count; i++)
        ms_heap_free(leaf_at(list, i));
    list->leaf_count -= count;
    if (list->leaf_count > index)
        memmove(place_of(list, index), place_of(list, index + count),
                (list->leaf_count - index) * sizeof(struct ms_leaf *));
}

/* Splits a full leaf at the position, or in its middle, into which the position then points. */
static bool split(struct ms_sorted *list, struct ms_position *at)
{
    struct ms_leaf *right = resize(list, NULL, most_items(list));
    if (right == NULL || !grow_leaves(list)) {
        ms_heap_free(right);
        return false;
    }
    struct ms_leaf *left = leaf_at(list, at->leaf);
    const bool is_at_end = at->leaf + 1 == list->leaf_count && at->item > left->count / 2;
    const size_t kept = is_at_end ? at->item : left->count / 2;
    right->count = left->count - (uint32_t)kept;
    memcpy(right->items, item_at(list, left, kept), right->count * list->item_bytes);
    left->count = (uint32_t)kept;
    add_leaf(list, at->leaf + 1, right);
    if (at->item > kept || is_at_end)
        *at = (struct ms_position){at->leaf + 1, at->item - kept};
    return true;
}

/* Makes room for `more` items in the leaf of the position, which may move. */
static bool make_room(struct ms_sorted *list, struct ms_position *at, size_t more)
{
    const size_t most = most_items(list);
    struct ms_leaf *leaf = list->leaf_count > 0 ? leaf_at(list, at->leaf) : NULL;
    if (leaf != NULL && leaf->count + more > most)
        return split(list, at);
    const size_t needed = leaf != NULL ? leaf->count + more : more;
    if (leaf != NULL && needed <= leaf->capacity)
        return true;
    size_t capacity = leaf != NULL && 2 * leaf->capacity > needed ? 2 * leaf->capacity : needed;
    leaf = resize(list, leaf, capacity < most ? capacity : most);
    if (leaf == NULL)
        return false;
    *place_of(list, at->leaf) = leaf;
    list->leaf_count += list->leaf_count == 0;
    return true;
}

bool ms_sorted_insert(struct ms_sorted *list, struct ms_position at, const void *items,
                      size_t count)
{
    if (!make_room(list, &at, count))
        return false;
    struct ms_leaf *leaf = leaf_at(list, at.leaf);
    char *place = item_at(list, leaf, at.item);
    memmove(place + count * list->item_bytes, place, (leaf->count - at.item) * list->item_bytes);
    memcpy(place, items, count * list->item_bytes);
    leaf->count += (uint32_t)count;
    list->count += count;
    return true;
}

/* A leaf and the next one become one if they fill half of it. */
static void join(struct ms_sorted *list, size_t index)
{
    if (index + 1 >= list->leaf_count)
        return;
    struct ms_leaf *left = leaf_at(list, index), *right = leaf_at(list, index + 1);
    const size_t count = left->count + right->count;
    if (count > most_items(list) / 2)
        return;
    if (count > left->capacity && (left = resize(list, left, count)) == NULL)
        return; /* it is only smaller than it could be */
    *place_of(list, index) = left;
    memcpy(item_at(list, left, left->count), right->items, right->count * list->item_bytes);
    left->count = (uint32_t)count;
    remove_leaves(list, index + 1, 1);
}

void ms_sorted_remove(struct ms_sorted *list, struct ms_position at, size_t count)
{
    list->count -= count;
    size_t emptied = 0; /* leaves, from `first` on */
    const size_t first = at.item > 0 ? at.leaf + 1 : at.leaf;
    for (size_t index = at.leaf; count > 0; index++, at.item = 0) {
        struct ms_leaf *leaf = leaf_at(list, index);
        const size_t here = leaf->count - at.item < count ? leaf->count - at.item : count;
        char *place = item_at(list, leaf, at.item);
        memmove(place, place + here * list->item_bytes,
                (leaf->count - at.item - here) * list->item_bytes);
        leaf->count -= (uint32_t)here;
        count -= here;
        emptied += leaf->count == 0;
    }
    remove_leaves(list, first, emptied);
    join(list, at.leaf);
    if (at.leaf > 0)
        join(list, at.leaf - 1);
}

void ms_sorted_cleanup(struct ms_sorted *list)
{
    remove_leaves(list, 0, list->leaf_count);
    if (list->leaf_capacity > 0)
        ms_heap_free(list->leaves);
    *list = (struct ms_sorted){.item_bytes = list->item_bytes};
}
