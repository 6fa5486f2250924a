/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/machine/sized.h"

#include <stdlib.h>
#include <string.h>

#include "runtime/base/heap.h"
#include "runtime/machine/shard_internal.h"

/* One size, with the ranges that were found for it. */
struct size_class {
    uint64_t bytes;
    size_t first, count; /* in `tensors` */
    bool is_made;
    struct ms_ranges away;
};

/* Guarded by ms_shard.lock. */
static struct {
    uint64_t version;           /* of the sheet that all this is made of; 0: none */
    struct size_class *classes; /* by size */
    size_t class_count;
    size_t *tensors; /* of the layout, class by class */
} sizes;

static int by_size(const void *a, const void *b)
{
    const size_t left = *(const size_t *)a, right = *(const size_t *)b;
    const uint64_t left_bytes = ms_layout_tensor(ms_shard.sheet.layout, left)->bytes;
    const uint64_t right_bytes = ms_layout_tensor(ms_shard.sheet.layout, right)->bytes;
    if (left_bytes != right_bytes)
        return left_bytes < right_bytes ? -1 : 1;
    return left < right ? -1 : left > right;
}

static void forget(void)
{
    for (size_t i = 0; i < sizes.class_count; i++)
        ms_ranges_cleanup(&sizes.classes[i].away);
    ms_heap_free(sizes.classes);
    ms_heap_free(sizes.tensors);
    memset(&sizes, 0, sizeof(sizes));
}

/* Tensors of a layout that has been sorted into classes. */
static void make_classes(size_t count)
{
    const struct ms_layout *layout = ms_shard.sheet.layout;
    for (size_t i = 0; i < count; i++) {
        const uint64_t bytes = ms_layout_tensor(layout, sizes.tensors[i])->bytes;
        if (sizes.class_count == 0 || sizes.classes[sizes.class_count - 1].bytes != bytes)
            sizes.classes[sizes.class_count++] = (struct size_class){.bytes = bytes, .first = i};
        sizes.classes[sizes.class_count - 1].count++;
    }
}

static bool make(void)
{
    const size_t count = ms_layout_count(ms_shard.sheet.layout);
    forget();
    sizes.tensors = ms_heap_alloc((count + 1) * sizeof(*sizes.tensors));
    sizes.classes = ms_heap_alloc((count + 1) * sizeof(*sizes.classes));
    if (sizes.tensors == NULL || sizes.classes == NULL) {
        forget();
        return false;
    }
    for (size_t i = 0; i < count; i++)
        sizes.tensors[i] = i;
    qsort(sizes.tensors, count, sizeof(*sizes.tensors), by_size);
    make_classes(count);
    sizes.version = ms_shard.sheet.version;
    return true;
}

static bool add_ours(const struct ms_sheet *sheet, size_t tensor, struct ms_ranges *ours)
{
    struct ms_cursor cursor;
    struct ms_range range;
    bool is_good = true;
    ms_cursor_init(&cursor, sheet->placement, tensor);
    while (is_good && ms_cursor_next(&cursor, &range))
        is_good = ms_ranges_add(ours, range.begin, range.end);
    return is_good;
}

/* What the rank keeps of one of them is kept of all. */
static bool find_away(struct size_class *class)
{
    struct ms_ranges ours = {0}, all = {0};
    bool is_good = ms_ranges_add(&all, 0, class->bytes);
    for (size_t i = 0; i < class->count && is_good; i++)
        is_good = add_ours(&ms_shard.sheet, sizes.tensors[class->first + i], &ours);
    ms_ranges_sort(&ours);
    is_good = is_good && ms_ranges_subtract(&all, &ours, &class->away);
    ms_ranges_cleanup(&ours);
    ms_ranges_cleanup(&all);
    class->is_made = is_good;
    return is_good;
}

static struct size_class *find_class(uint64_t bytes)
{
    size_t low = 0, high = sizes.class_count;
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        if (sizes.classes[middle].bytes < bytes)
            low = middle + 1;
        else
            high = middle;
    }
    return low < sizes.class_count && sizes.classes[low].bytes == bytes ? &sizes.classes[low]
                                                                        : NULL;
}

/* No tensor that the plan declares, but perhaps one that an entry selects by size. */
static bool add_away_by_entry(uint64_t bytes, struct ms_ranges *away)
{
    struct ms_nameless block = {.end = bytes};
    struct ms_sheet sheet = {0};
    struct ms_fault fault;
    struct ms_ranges ours = {0}, all = {0};
    const struct ms_tensor *const tensors[] = {&block.tensor};
    const struct ms_layout_source source = {.tensors = tensors, .count = 1};
    if (!ms_nameless_select_locked(&block, SIZE_MAX) ||
        !ms_sheet_init_locked(&sheet, &source, &fault))
        return false;
    const bool is_good = add_ours(&sheet, sheet.positions[0], &ours) &&
                         ms_ranges_add(&all, 0, bytes) && ms_ranges_subtract(&all, &ours, away);
    ms_ranges_cleanup(&ours);
    ms_ranges_cleanup(&all);
    ms_sheet_cleanup_locked(&sheet);
    return is_good;
}

static bool add_away_locked(uint64_t bytes, struct ms_ranges *away)
{
    if (!ms_shard_has_sheet_locked() || (sizes.version != ms_shard.sheet.version && !make()))
        return false;
    struct size_class *class = find_class(bytes);
    if (class == NULL)
        return add_away_by_entry(bytes, away);
    if (!class->is_made && !find_away(class))
        return false;
    bool is_good = true;
    for (size_t i = 0; i < class->away.count && is_good; i++)
        is_good = ms_ranges_add(away, class->away.list[i].begin, class->away.list[i].end);
    return is_good;
}

bool ms_sized_away(uint64_t bytes, struct ms_ranges *away)
{
    pthread_mutex_lock(&ms_shard.lock);
    const bool is_good = add_away_locked(bytes, away);
    pthread_mutex_unlock(&ms_shard.lock);
    return is_good;
}
