/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/fill/loaded.h"

#include "runtime/base/lock.h"

/* Few enough places to search them all. A model and its copy are two waiting places for each
 * tensor. */
enum { PLACES = 1024, WAITING = 4096 };

/* A new place is compared with so many: for each piece of a copy, two places wait. */
enum { LATEST = 4 };

static struct {
    struct ms_lock lock;
    struct ms_loaded_place loaded[PLACES], waiting[WAITING];
    size_t next_loaded, next_waiting; /* modulo the size of the array the oldest place */
} table = {.lock = MS_LOCK_INIT(loaded)};

static struct ms_loaded_place part_of(const struct ms_loaded_place *place, uint64_t begin,
                                      uint64_t end)
{
    return (struct ms_loaded_place){begin < end ? place->source : NULL, begin, end - begin,
                                    place->address + (begin - place->offset)};
}

/* The bytes of the source that both places have. */
static struct ms_range overlap(const struct ms_loaded_place *place,
                               const struct ms_loaded_place *other)
{
    const uint64_t begin = place->offset > other->offset ? place->offset : other->offset;
    const uint64_t end = place->offset + place->bytes, other_end = other->offset + other->bytes;
    return (struct ms_range){begin, end < other_end ? end : other_end};
}

/* True if both places have bytes of one source at the same distance from their offset. */
static bool is_in_line(const struct ms_loaded_place *place, const struct ms_loaded_place *other)
{
    return place->source == other->source &&
           place->address - place->offset == other->address - other->offset;
}

MS_HOLDS(table.lock)
static void add_locked(const struct ms_loaded_place *place, enum ms_loaded_state state)
{
    if (state == MS_LOADED_IS_THERE)
        table.loaded[table.next_loaded++ % PLACES] = *place;
    else
        table.waiting[table.next_waiting++ % WAITING] = *place;
}

/* One of the latest places that the place goes on from, or nearly; NULL: there is none. */
MS_HOLDS(table.lock)
static struct ms_loaded_place *near_locked(const struct ms_loaded_place *place,
                                           enum ms_loaded_state state)
{
    const bool is_there = state == MS_LOADED_IS_THERE;
    struct ms_loaded_place *places = is_there ? table.loaded : table.waiting;
    const size_t next = is_there ? table.next_loaded : table.next_waiting;
    for (size_t age = 1; age <= LATEST; age++) {
        struct ms_loaded_place *other = &places[(next - age) % (is_there ? PLACES : WAITING)];
        const struct ms_range common = overlap(place, other);
        if (is_in_line(place, other) && common.begin < common.end + MS_LOADED_NEAR)
            return other;
    }
    return NULL;
}

/* Makes `place` long enough to have the bytes of the other. */
static void lengthen(struct ms_loaded_place *place, const struct ms_loaded_place *other)
{
    const uint64_t end = place->offset + place->bytes, other_end = other->offset + other->bytes;
    const uint64_t begin = place->offset < other->offset ? place->offset : other->offset;
    *place = part_of(place, begin, end > other_end ? end : other_end);
}

void ms_loaded_note(const struct ms_loaded_place *place, enum ms_loaded_state state)
{
    ms_lock_take(&table.lock);
    struct ms_loaded_place *other = near_locked(place, state);
    if (other != NULL)
        lengthen(other, place);
    else
        add_locked(place, state);
    ms_lock_drop(&table.lock);
}

/* The first place of the table that has some of the wanted bytes, at other addresses; NULL: none
 * has. */
MS_HOLDS(table.lock)
static struct ms_loaded_place *find_locked(struct ms_loaded_place *places, size_t count,
                                           const struct ms_loaded_place *wanted)
{
    for (size_t i = 0; i < count; i++) {
        const struct ms_range common = overlap(&places[i], wanted);
        if (places[i].source == wanted->source && common.begin < common.end &&
            !is_in_line(&places[i], wanted))
            return &places[i];
    }
    return NULL;
}

/* The part of a place in memory that has some of the wanted bytes. False if there is none. */
static bool find_part(const struct ms_loaded_place *wanted, struct ms_loaded_place *part_out)
{
    ms_lock_take(&table.lock);
    const struct ms_loaded_place *place = find_locked(table.loaded, PLACES, wanted);
    if (place != NULL) {
        const struct ms_range common = overlap(place, wanted);
        *part_out = part_of(place, common.begin, common.end);
    }
    ms_lock_drop(&table.lock);
    return place != NULL;
}

/* The place that find_part finds has none of the wanted bytes: keeps the bytes behind them, because
 * pieces are wanted in rising order. */
static void forget_part(const struct ms_loaded_place *wanted)
{
    ms_lock_take(&table.lock);
    struct ms_loaded_place *place = find_locked(table.loaded, PLACES, wanted);
    if (place != NULL)
        *place = part_of(place, overlap(place, wanted).end, place->offset + place->bytes);
    ms_lock_drop(&table.lock);
}

/* Makes the place its first piece whose bytes are still those of the source. False if there is
 * none. */
static bool find_there(const struct ms_allocation *allocation, struct ms_loaded_place *place)
{
    const size_t begin = place->address - allocation->address, end = begin + place->bytes;
    struct ms_extent extent;
    if (end > allocation->bytes)
        return false;
    for (size_t at = begin;
         ms_lineage_next(ms_allocation_lineage(allocation), &at, end, &extent);) {
        const struct ms_content *content = &extent.content;
        const uint64_t offset = place->offset + (extent.begin - begin);
        if (content->cached && content->kind == MS_SOURCE && content->source == place->source &&
            content->source_offset == offset) {
            *place = part_of(place, offset, offset + (extent.end - extent.begin));
            return true;
        }
    }
    return false;
}

static bool copy_from(const struct ms_loaded_place *place, CUdeviceptr address, CUstream stream)
{
    const CUresult result =
        ms_driver.memcpy_dtod_async(address, place->address, place->bytes, stream);
    return ms_driver_wait(stream) == CUDA_SUCCESS && result == CUDA_SUCCESS;
}

/* Copies a piece of the part to where the piece is wanted, and makes the part that piece. */
static bool copy_part(CUcontext context, struct ms_loaded_place *part,
                      const struct ms_loaded_place *wanted, CUstream stream)
{
    MS_CLAIMED struct ms_allocation *claimed;
    const struct ms_allocation *source = ms_space_hold(part->address, &claimed);
    return source != NULL && source->context == context && find_there(source, part) &&
           copy_from(part, wanted->address + (part->offset - wanted->offset), stream);
}

struct ms_range ms_loaded_copy(CUcontext context, const struct ms_loaded_place *place,
                               CUstream stream)
{
    struct ms_loaded_place part;
    while (find_part(place, &part)) {
        if (copy_part(context, &part, place, stream))
            return (struct ms_range){part.offset, part.offset + part.bytes};
        forget_part(place);
    }
    return (struct ms_range){0};
}

/* A short rest before the taken bytes goes: pieces are wanted in rising order, so the rest is what
 * lies between two of them. */
bool ms_loaded_take_waiting(const struct ms_loaded_place *place,
                            struct ms_loaded_place *waiting_out)
{
    ms_lock_take(&table.lock);
    struct ms_loaded_place *found = find_locked(table.waiting, WAITING, place);
    if (found != NULL) {
        const struct ms_loaded_place whole = *found;
        const struct ms_range common = overlap(&whole, place);
        *waiting_out = part_of(&whole, common.begin, common.end);
        *found = part_of(&whole, common.end, whole.offset + whole.bytes);
        const struct ms_loaded_place before = part_of(&whole, whole.offset, common.begin);
        if (before.bytes >= MS_LOADED_NEAR)
            add_locked(&before, MS_LOADED_WAITS);
    }
    ms_lock_drop(&table.lock);
    return found != NULL;
}
