/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/base/sorted.h"

#include <string.h>

#include "runtime/base/heap.h"
#include "runtime/base/number.h"

/*
 * Each leaf is a page; a single leaf is only as large as it must be. WINDOW neighbouring leaves
 * become one fewer when their items fit, and one more when none of them has room. So most leaves
 * are three quarters full, whatever is inserted and removed.
 */
enum { LEAF_BYTES = 4096, WINDOW = 3 };

struct ms_leaf {
    uint32_t count, capacity;
    _Alignas(uint64_t) char items[];
};

static size_t most_items(const struct ms_sorted *list)
{
    return (LEAF_BYTES - sizeof(struct ms_leaf)) / list->item_bytes;
}

/* Joining fills leaves only up to this, so that the next few insertions have room. */
static size_t usual_items(const struct ms_sorted *list)
{
    return most_items(list) - most_items(list) / 16;
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
    /* The comparisons are not branches, which no CPU could predict. */
    for (size_t left = list->leaf_count; left > 1;) {
        const size_t half = left / 2, middle = at.leaf + half;
        at.leaf = key_at(list, leaf_at(list, middle), 0) <= key ? middle : at.leaf;
        left -= half;
    }
    struct ms_leaf *leaf = leaf_at(list, at.leaf);
    for (size_t left = leaf->count; left > 1;) {
        const size_t half = left / 2, middle = at.item + half;
        at.item = key_at(list, leaf, middle) <= key ? middle : at.item;
        left -= half;
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

/* The end position is behind the last item of the last leaf. */
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

/* Resizes the leaf to `capacity` items. NULL if out of memory: the leaf is as it was. */
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

static bool grow_leaves(struct ms_sorted *list)
{
    if (list->leaf_count < list->leaf_capacity)
        return true;
    const uint32_t capacity = 2 * list->leaf_capacity + 4;
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
    list->leaf_count -= (uint32_t)count;
    if (list->leaf_count > index)
        memmove(place_of(list, index), place_of(list, index + count),
                (list->leaf_count - index) * sizeof(struct ms_leaf *));
}

/* Up to WINDOW leaves side by side, if there are as many, and all of their items. */
struct window {
    size_t first, leaves, items;
};

static struct window window_around(const struct ms_sorted *list, size_t leaf)
{
    struct window window = {.leaves = ms_least(WINDOW, list->leaf_count)};
    window.first = ms_least(leaf > 0 ? leaf - 1 : 0, list->leaf_count - window.leaves);
    for (size_t i = 0; i < window.leaves; i++)
        window.items += leaf_at(list, window.first + i)->count;
    return window;
}

static bool make_full_size(struct ms_sorted *list, const struct window *window)
{
    for (size_t i = window->first; i < window->first + window->leaves; i++) {
        struct ms_leaf *leaf = leaf_at(list, i);
        if (leaf->capacity < most_items(list) &&
            (leaf = resize(list, leaf, most_items(list))) == NULL)
            return false;
        *place_of(list, i) = leaf;
    }
    return true;
}

/* Copies the items of the window, one behind the other. */
static void gather(const struct ms_sorted *list, const struct window *window, char *items)
{
    for (size_t i = 0; i < window->leaves; i++) {
        struct ms_leaf *leaf = leaf_at(list, window->first + i);
        memcpy(items, leaf->items, leaf->count * list->item_bytes);
        items += leaf->count * list->item_bytes;
    }
}

/* Distributes the items of the window evenly over `leaves` leaves, and moves *at along with its
 * item. Returns false, and changes no item, if out of memory. */
static bool spread(struct ms_sorted *list, const struct window *window, size_t leaves,
                   struct ms_position *at)
{
    char items[WINDOW * LEAF_BYTES];
    struct ms_leaf *more = NULL;
    if (!make_full_size(list, window))
        return false;
    if (leaves > window->leaves) {
        more = resize(list, NULL, most_items(list));
        if (more == NULL || !grow_leaves(list)) {
            ms_heap_free(more);
            return false;
        }
    }
    size_t index = at->item;
    for (size_t i = window->first; i < at->leaf; i++)
        index += leaf_at(list, i)->count;
    gather(list, window, items);
    if (more != NULL)
        add_leaf(list, window->first + window->leaves, more);
    else
        remove_leaves(list, window->first + leaves, window->leaves - leaves);
    bool is_placed = false;
    for (size_t i = 0, done = 0; i < leaves; i++) {
        struct ms_leaf *leaf = leaf_at(list, window->first + i);
        leaf->count = (uint32_t)((window->items - done) / (leaves - i));
        memcpy(leaf->items, items + done * list->item_bytes, leaf->count * list->item_bytes);
        if (!is_placed && index <= done + leaf->count) {
            *at = (struct ms_position){window->first + i, index - done};
            is_placed = true;
        }
        done += leaf->count;
    }
    return true;
}

/* Moves the items behind the position into a new last leaf. When items are appended in order, this
 * keeps the leaves before it full. */
static bool split_last(struct ms_sorted *list, struct ms_position *at)
{
    struct ms_leaf *right = resize(list, NULL, most_items(list));
    if (right == NULL || !grow_leaves(list)) {
        ms_heap_free(right);
        return false;
    }
    struct ms_leaf *left = leaf_at(list, at->leaf);
    right->count = left->count - (uint32_t)at->item;
    memcpy(right->items, item_at(list, left, at->item), right->count * list->item_bytes);
    left->count = (uint32_t)at->item;
    add_leaf(list, at->leaf + 1, right);
    *at = (struct ms_position){at->leaf + 1, 0};
    return true;
}

/* The leaf of the position is full. */
static bool add_room(struct ms_sorted *list, struct ms_position *at, size_t more)
{
    if (at->leaf + 1 == list->leaf_count && at->item > leaf_at(list, at->leaf)->count / 2)
        return split_last(list, at);
    const struct window window = window_around(list, at->leaf);
    const bool has_room = window.items + more <= window.leaves * usual_items(list);
    return spread(list, &window, window.leaves + (has_room ? 0 : 1), at);
}

/* Makes room for `more` items in the leaf of the position, which may move. */
static bool make_room(struct ms_sorted *list, struct ms_position *at, size_t more)
{
    const size_t most = most_items(list);
    struct ms_leaf *leaf = list->leaf_count > 0 ? leaf_at(list, at->leaf) : NULL;
    const size_t needed = leaf != NULL ? leaf->count + more : more;
    if (needed > most)
        return add_room(list, at, more);
    if (leaf != NULL && needed <= leaf->capacity)
        return true;
    leaf = resize(list, leaf, ms_least(needed + needed / 4, most));
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
    list->count += (uint32_t)count;
    return true;
}

/* Joins neighbouring leaves while their items fit into one leaf fewer. A failure is harmless: it
 * leaves more leaves than needed. */
static void join(struct ms_sorted *list, size_t leaf)
{
    struct ms_position nowhere = {0, 0};
    while (list->leaf_count > 1) {
        const struct window window = window_around(list, ms_least(leaf, list->leaf_count - 1));
        nowhere.leaf = window.first;
        if (window.items > (window.leaves - 1) * usual_items(list) ||
            !spread(list, &window, window.leaves - 1, &nowhere))
            return;
    }
}

void ms_sorted_remove(struct ms_sorted *list, struct ms_position at, size_t count)
{
    list->count -= (uint32_t)count;
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
    join(list, at.leaf + 1);
    join(list, at.leaf);
}

void ms_sorted_cleanup(struct ms_sorted *list)
{
    remove_leaves(list, 0, list->leaf_count);
    if (list->leaf_capacity > 0)
        ms_heap_free(list->leaves);
    *list = (struct ms_sorted){.item_bytes = list->item_bytes};
}
