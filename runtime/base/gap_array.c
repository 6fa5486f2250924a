/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/base/gap_array.h"

#include <string.h>

#include "runtime/base/heap.h"

static char *place(const struct ms_gap_array *gaps, void *items, size_t index)
{
    return (char *)items + index * gaps->item_bytes;
}

static char *memory_of(const struct ms_gap_array *gaps, void *items)
{
    return items == NULL ? NULL : (char *)items - gaps->before * gaps->item_bytes;
}

void *ms_gap_array_reserve(struct ms_gap_array *gaps, void *items, size_t count, size_t more)
{
    if (gaps->behind >= more)
        return items;
    char *memory = memory_of(gaps, items);
    /* A queue drifts through its memory: move it back once half of its items have gone. */
    if (memory != NULL && gaps->before + gaps->behind >= more && gaps->before >= count / 2) {
        memmove(memory, items, count * gaps->item_bytes);
        gaps->behind += gaps->before;
        gaps->before = 0;
        return memory;
    }
    const size_t behind = count + more;
    char *grown = ms_heap_realloc(memory, (gaps->before + count + behind) * gaps->item_bytes);
    if (grown == NULL)
        return NULL;
    gaps->behind = behind;
    return grown + gaps->before * gaps->item_bytes;
}

void *ms_gap_array_replace(struct ms_gap_array *gaps, void *items, size_t count, size_t at,
                           size_t removed, size_t added)
{
    const size_t left = at, right = count - at - removed;
    const bool fits_before = added <= removed + gaps->before;
    if (left < right && fits_before) {
        char *first = place(gaps, items, removed) - added * gaps->item_bytes;
        memmove(first, items, left * gaps->item_bytes);
        gaps->before = gaps->before + removed - added;
        return first;
    }
    memmove(place(gaps, items, at + added), place(gaps, items, at + removed),
            right * gaps->item_bytes);
    gaps->behind = gaps->behind + removed - added;
    return items;
}

void ms_gap_array_free(struct ms_gap_array *gaps, void *items)
{
    ms_heap_free(memory_of(gaps, items));
    gaps->before = gaps->behind = 0;
}
