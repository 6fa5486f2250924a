/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/plan/layout_sizes.h"

#include <stdlib.h>
#include <string.h>

#include "runtime/base/heap.h"

struct member {
    uint64_t bytes;
    size_t unit, tensor;
};

struct ms_layout_sizes {
    size_t count;
    struct member *members;  /* sorted by unit, then in the order of the list */
    size_t *places;          /* by tensor: its index in `members` */
    struct member entries[]; /* the same, sorted by size */
};

static int by_size(const void *a, const void *b)
{
    const struct member *left = a, *right = b;
    if (left->bytes != right->bytes)
        return left->bytes < right->bytes ? -1 : 1;
    return left->tensor < right->tensor ? -1 : left->tensor > right->tensor;
}

static int by_unit(const void *a, const void *b)
{
    const struct member *left = a, *right = b;
    if (left->unit != right->unit)
        return left->unit < right->unit ? -1 : 1;
    return left->tensor < right->tensor ? -1 : left->tensor > right->tensor;
}

static void list_members(struct ms_layout_sizes *sizes, const struct ms_layout *layout)
{
    for (size_t i = 0; i < sizes->count; i++)
        sizes->members[i] =
            (struct member){ms_layout_tensor(layout, i).bytes, ms_layout_unit(layout, i), i};
    qsort(sizes->members, sizes->count, sizeof(*sizes->members), by_unit);
    for (size_t i = 0; i < sizes->count; i++)
        sizes->places[sizes->members[i].tensor] = i;
}

struct ms_layout_sizes *ms_layout_sizes_create(const struct ms_layout *layout)
{
    const size_t count = ms_layout_count(layout);
    struct ms_layout_sizes *sizes =
        ms_heap_zalloc(sizeof(*sizes) + count * sizeof(*sizes->entries));
    if (sizes == NULL)
        return NULL;
    sizes->count = count;
    sizes->members = ms_heap_alloc((count + 1) * sizeof(*sizes->members));
    sizes->places = ms_heap_alloc((count + 1) * sizeof(*sizes->places));
    if (sizes->members == NULL || sizes->places == NULL) {
        ms_layout_sizes_destroy(sizes);
        return NULL;
    }
    list_members(sizes, layout);
    memcpy(sizes->entries, sizes->members, count * sizeof(*sizes->entries));
    qsort(sizes->entries, count, sizeof(*sizes->entries), by_size);
    return sizes;
}

void ms_layout_sizes_destroy(struct ms_layout_sizes *sizes)
{
    if (sizes != NULL) {
        ms_heap_free(sizes->members);
        ms_heap_free(sizes->places);
    }
    ms_heap_free(sizes);
}

/* Returns the first tensor of at least `bytes` bytes. */
static size_t find(const struct ms_layout_sizes *sizes, uint64_t bytes)
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

bool ms_layout_sizes_has(const struct ms_layout_sizes *sizes, uint64_t bytes)
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

/* True if the members at `place` and `other` are in one unit. */
static bool is_together(const struct ms_layout_sizes *sizes, size_t place, size_t other)
{
    return other < sizes->count && sizes->members[other].unit == sizes->members[place].unit;
}

/* Counts how many neighbours of the tensor, without a gap, are as in the sequence. */
static size_t count_neighbours(const struct ms_layout_sizes *sizes, size_t tensor,
                               const struct ms_sequence *sequence)
{
    const size_t place = sizes->places[tensor];
    size_t before = 0, behind = 0;
    while (before < sequence->at && before < place &&
           is_together(sizes, place, place - before - 1) &&
           sizes->members[place - before - 1].bytes == sequence->bytes[sequence->at - before - 1])
        before++;
    while (sequence->at + behind + 1 < sequence->count &&
           is_together(sizes, place, place + behind + 1) &&
           sizes->members[place + behind + 1].bytes == sequence->bytes[sequence->at + behind + 1])
        behind++;
    return before + behind;
}

bool ms_layout_sizes_local_in(const struct ms_layout_sizes *sizes,
                              const struct ms_placement *placement,
                              const struct ms_sequence *sequence, struct ms_ranges *ours_out)
{
    const uint64_t bytes = sequence->bytes[sequence->at];
    const size_t first = find(sizes, bytes);
    size_t most = 0;
    bool is_good = true;
    for (size_t i = first; i < sizes->count && sizes->entries[i].bytes == bytes; i++) {
        const size_t count = count_neighbours(sizes, sizes->entries[i].tensor, sequence);
        if (count > most)
            most = count;
    }
    for (size_t i = first; is_good && i < sizes->count && sizes->entries[i].bytes == bytes; i++) {
        if (count_neighbours(sizes, sizes->entries[i].tensor, sequence) == most)
            is_good = add_tensor(placement, sizes->entries[i].tensor, ours_out);
    }
    ms_ranges_sort(ours_out);
    return is_good;
}

bool ms_layout_sizes_local(const struct ms_layout_sizes *sizes,
                           const struct ms_placement *placement, uint64_t bytes,
                           struct ms_ranges *ours_out)
{
    return ms_layout_sizes_local_in(sizes, placement, &(struct ms_sequence){&bytes, 1, 0},
                                    ours_out);
}
