/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/base/gap_array.h"

#include <string.h>

#include "runtime/base/heap.h"

static char *place(const struct ms_room *room, void *items, size_t index)
{
    return (char *)items + index * room->item_bytes;
}

static char *memory_of(const struct ms_room *room, void *items)
{
    return items == NULL ? NULL : (char *)items - room->before * room->item_bytes;
}

void *ms_room_make(struct ms_room *room, void *items, size_t count, size_t more)
{
    if (room->behind >= more)
        return items;
    char *memory = memory_of(room, items);
    /* A queue goes through its memory: at least half of the items have gone since they were moved to its begin. */
    if (memory != NULL && room->before + room->behind >= more && room->before >= count / 2) {
        memmove(memory, items, count * room->item_bytes);
        room->behind += room->before;
        room->before = 0;
        return memory;
    }
    const size_t behind = count + more;
    char *grown = ms_heap_realloc(memory, (room->before + count + behind) * room->item_bytes);
    if (grown == NULL)
        return NULL;
    room->behind = behind;
    return grown + room->before * room->item_bytes;
}

void *ms_room_replace(struct ms_room *room, void *items, size_t count, size_t at, size_t removed,
                      size_t added)
{
    const size_t left = at, right = count - at - removed;
    const bool fits_before = added <= removed + room->before;
    if (left < right && fits_before) {
        char *first = place(room, items, removed) - added * room->item_bytes;
        memmove(first, items, left * room->item_bytes);
        room->before = room->before + removed - added;
        return first;
    }
    memmove(place(room, items, at + added), place(room, items, at + removed),
            right * room->item_bytes);
    room->behind = room->behind + removed - added;
    return items;
}

void ms_room_free(struct ms_room *room, void *items)
{
    ms_heap_free(memory_of(room, items));
    room->before = room->behind = 0;
}
