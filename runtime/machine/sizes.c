/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/machine/sizes.h"

#include <stdlib.h>

#include "runtime/base/heap.h"

struct entry {
    uint64_t bytes;
    size_t tensor;
};

struct ms_sizes {
    size_t count;
    struct entry entries[]; /* by size */
};

static int by_size(const void *a, const void *b)
{
    const struct entry *left = a, *right = b;
    if (left->bytes != right->bytes)
        return left->bytes < right->bytes ? -1 : 1;
    return left->tensor < right->tensor ? -1 : left->tensor > right->tensor;
}

struct ms_sizes *ms_sizes_create(const struct ms_layout *layout)
{
    const size_t count = ms_layout_count(layout);
    struct ms_sizes *sizes = ms_heap_alloc(sizeof(*sizes) + count * sizeof(*sizes->entries));
    if (sizes == NULL)
        return NULL;
    sizes->count = count;
    for (size_t i = 0; i < count; i++)
        sizes->entries[i] = (struct entry){ms_layout_tensor(layout, i)->bytes, i};
    qsort(sizes->entries, count, sizeof(*sizes->entries), by_size);
    return sizes;
}

void ms_sizes_destroy(struct ms_sizes *sizes)
{
    ms_heap_free(sizes);
}

/* The first tensor of at least so many bytes. */
static size_t find(const struct ms_sizes *sizes, uint64_t bytes)
{
    size_t low = 0, high = sizes->count;
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        if (sizes->entries[middle].bytes < bytes)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

bool ms_sizes_has(const struct ms_sizes *sizes, uint64_t bytes)
{
    const size_t at = find(sizes, bytes);
    return at < sizes->count && sizes->entries[at].bytes == bytes;
}

static bool add_tensor(const struct ms_placement *placement, size_t tensor, struct ms_ranges *ours)
{
    struct ms_cursor cursor;
    struct ms_range range;
    bool is_good = true;
    ms_cursor_init(&cursor, placement, tensor);
    while (is_good && ms_cursor_next(&cursor, &range))
        is_good = ms_ranges_add(ours, range.begin, range.end);
    return is_good;
}

bool ms_sizes_ours(const struct ms_sizes *sizes, const struct ms_placement *placement,
                   uint64_t bytes, struct ms_ranges *ours_out)
{
    bool is_good = true;
    for (size_t i = find(sizes, bytes);
         is_good && i < sizes->count && sizes->entries[i].bytes == bytes; i++)
        is_good = add_tensor(placement, sizes->entries[i].tensor, ours_out);
    ms_ranges_sort(ours_out);
    return is_good;
}

bool ms_sizes_agree(const struct ms_sizes *sizes, const struct ms_placement *placement,
                    uint64_t bytes, const struct ms_ranges *ours)
{
    const uint64_t kept = ms_ranges_bytes(ours);
    bool is_same = true;
    for (size_t i = find(sizes, bytes);
         is_same && i < sizes->count && sizes->entries[i].bytes == bytes; i++)
        is_same = ms_placement_bytes(placement, sizes->entries[i].tensor) == kept;
    return is_same;
}
