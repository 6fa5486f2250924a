/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/fill/loaded.h"

#include "runtime/base/lock.h"
#include "runtime/memory/space.h"
#include "runtime/state/counters.h"

/* Few enough places to search them all. A model and its copy are two waiting places for each
 * tensor. */
enum { PLACES = 1024, WAITING = 4096 };

static struct {
    struct ms_lock lock;
    struct ms_loaded_place loaded[PLACES], waiting[WAITING];
    size_t next_loaded, next_waiting; /* modulo the size of the array the oldest place */
} table = {.lock = MS_LOCK_INIT(loaded)};

void ms_loaded_note(const struct ms_loaded_place *place, enum ms_loaded_state state)
{
    if (place->bytes < MS_LOADED_LEAST)
        return;
    ms_lock_take(&table.lock);
    if (state == MS_LOADED_IS_THERE)
        table.loaded[table.next_loaded++ % PLACES] = *place;
    else
        table.waiting[table.next_waiting++ % WAITING] = *place;
    ms_lock_drop(&table.lock);
}

/* The bytes of the source that both places have. */
static struct ms_range overlap(const struct ms_loaded_place *place,
                               const struct ms_loaded_place *other)
{
    const uint64_t begin = place->offset > other->offset ? place->offset : other->offset;
    const uint64_t end = place->offset + place->bytes, other_end = other->offset + other->bytes;
    return (struct ms_range){begin, end < other_end ? end : other_end};
}

/* True if the place has at least MS_LOADED_LEAST of the wanted bytes, and at other addresses. */
static bool has_some(const struct ms_loaded_place *place, const struct ms_loaded_place *wanted)
{
    const struct ms_range common = overlap(place, wanted);
    return place->source == wanted->source && common.begin + MS_LOADED_LEAST <= common.end &&
           place->address - place->offset != wanted->address - wanted->offset;
}

/* Removes a place from the table that has some of the wanted bytes. */
static bool take_place(struct ms_loaded_place *places, size_t count,
                       const struct ms_loaded_place *wanted, struct ms_loaded_place *place_out)
{
    bool found = false;
    ms_lock_take(&table.lock);
    for (size_t i = 0; i < count && !found; i++) {
        found = has_some(&places[i], wanted);
        if (found) {
            *place_out = places[i];
            places[i].source = NULL;
        }
    }
    ms_lock_drop(&table.lock);
    return found;
}

static struct ms_loaded_place part_of(const struct ms_loaded_place *place, uint64_t begin,
                                      uint64_t end)
{
    return (struct ms_loaded_place){place->source, begin, end - begin,
                                    place->address + (begin - place->offset)};
}

/* True if the bytes of the place are still those of the source. */
static bool is_still_there(const struct ms_allocation *allocation,
                           const struct ms_loaded_place *place)
{
    const size_t at = place->address - allocation->address;
    if (at + place->bytes > allocation->bytes)
        return false;
    const struct ms_extent extent = ms_lineage_at(ms_allocation_lineage(allocation), at);
    const struct ms_content *content = &extent.content;
    return content->cached && content->kind == MS_SOURCE && content->source == place->source &&
           content->source_offset == place->offset && extent.end - at >= place->bytes;
}

static bool copy_from(const struct ms_allocation *other, const struct ms_loaded_place *place,
                      CUdeviceptr address, CUstream stream)
{
    if (!is_still_there(other, place))
        return false;
    const CUresult result =
        ms_driver.memcpy_dtod_async(address, place->address, place->bytes, stream);
    return ms_driver_wait(stream) == CUDA_SUCCESS && result == CUDA_SUCCESS;
}

static bool copy_part(const struct ms_allocation *allocation, const struct ms_loaded_place *part,
                      CUdeviceptr whole, CUdeviceptr address, CUstream stream)
{
    const bool is_own = whole - allocation->address < allocation->bytes;
    MS_CLAIMED struct ms_allocation *other = is_own ? NULL : ms_space_try_claim(whole);
    const struct ms_allocation *source = is_own ? allocation : other;
    return source != NULL && source->context == allocation->context &&
           copy_from(source, part, address, stream);
}

struct ms_range ms_loaded_copy(struct ms_allocation *allocation,
                               const struct ms_loaded_place *place, CUstream stream)
{
    struct ms_loaded_place loaded;
    while (place->bytes >= MS_LOADED_LEAST && take_place(table.loaded, PLACES, place, &loaded)) {
        const struct ms_range wanted = overlap(&loaded, place);
        const struct ms_loaded_place part = part_of(&loaded, wanted.begin, wanted.end);
        if (!copy_part(allocation, &part, loaded.address,
                       place->address + (wanted.begin - place->offset), stream))
            continue;
        ms_loaded_note(&loaded, MS_LOADED_IS_THERE);
        return wanted;
    }
    return (struct ms_range){0};
}

bool ms_loaded_take_waiting(const struct ms_loaded_place *place,
                            struct ms_loaded_place *waiting_out)
{
    struct ms_loaded_place whole;
    if (place->bytes < MS_LOADED_LEAST || !take_place(table.waiting, WAITING, place, &whole))
        return false;
    const struct ms_range common = overlap(&whole, place);
    const struct ms_loaded_place before = part_of(&whole, whole.offset, common.begin);
    const struct ms_loaded_place behind = part_of(&whole, common.end, whole.offset + whole.bytes);
    ms_loaded_note(&before, MS_LOADED_WAITS);
    ms_loaded_note(&behind, MS_LOADED_WAITS);
    *waiting_out = part_of(&whole, common.begin, common.end);
    return true;
}
