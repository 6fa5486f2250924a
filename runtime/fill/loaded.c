/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/fill/loaded.h"

#include "runtime/base/lock.h"
#include "runtime/memory/space.h"
#include "runtime/state/counters.h"

/* Few enough places to search them all, and copies large enough to be worth the search. */
enum { PLACES = 1024 };
static const size_t min_bytes = (size_t)256 << 10;

struct place {
    const struct ms_file *file; /* compared, never followed: it may be gone */
    uint64_t offset, bytes;
    CUdeviceptr address;
};

static struct {
    struct ms_lock lock;
    struct place places[PLACES];
    size_t next; /* modulo PLACES the oldest place */
} table = {.lock = MS_LOCK_INIT(loaded)};

void ms_loaded_note(const struct ms_file *file, uint64_t offset, size_t bytes, CUdeviceptr address)
{
    if (bytes < min_bytes)
        return;
    ms_lock_take(&table.lock);
    table.places[table.next++ % PLACES] = (struct place){file, offset, bytes, address};
    ms_lock_drop(&table.lock);
}

static struct ms_range overlap(const struct place *place, uint64_t offset, size_t bytes)
{
    const uint64_t begin = place->offset > offset ? place->offset : offset;
    const uint64_t place_end = place->offset + place->bytes, end = offset + bytes;
    return (struct ms_range){begin, place_end < end ? place_end : end};
}

/* Removes a place from the table that has at least min_bytes of these bytes. */
static bool take_place(const struct ms_file *file, uint64_t offset, size_t bytes,
                       struct place *place_out)
{
    bool found = false;
    ms_lock_take(&table.lock);
    for (size_t i = 0; i < PLACES && !found; i++) {
        struct place *place = &table.places[i];
        const struct ms_range common = overlap(place, offset, bytes);
        found = place->file == file && common.begin + min_bytes <= common.end;
        if (found) {
            *place_out = *place;
            place->file = NULL;
        }
    }
    ms_lock_drop(&table.lock);
    return found;
}

/* True if the wanted bytes of the place are still those of the file. */
static bool is_still_there(const struct ms_allocation *allocation, const struct place *place,
                           const struct ms_range *wanted)
{
    const CUdeviceptr begin = place->address + (wanted->begin - place->offset);
    const size_t at = begin - allocation->address;
    if (at + (wanted->end - wanted->begin) > allocation->bytes)
        return false;
    const struct ms_extent extent = ms_lineage_at(ms_allocation_lineage(allocation), at);
    const struct ms_content *content = &extent.content;
    return content->cached && ms_content_file(content) == place->file &&
           content->source_offset == wanted->begin &&
           extent.end - at >= wanted->end - wanted->begin;
}

static bool copy_from(const struct ms_allocation *other, const struct place *place,
                      const struct ms_range *wanted, CUdeviceptr address, CUstream stream)
{
    if (!is_still_there(other, place, wanted))
        return false;
    const CUresult result =
        ms_driver.memcpy_dtod_async(address, place->address + (wanted->begin - place->offset),
                                    wanted->end - wanted->begin, stream);
    return ms_driver_wait(stream) == CUDA_SUCCESS && result == CUDA_SUCCESS;
}

static bool copy_wanted(const struct ms_allocation *allocation, const struct place *place,
                        const struct ms_range *wanted, CUdeviceptr address, CUstream stream)
{
    const bool is_own = place->address - allocation->address < allocation->bytes;
    MS_CLAIMED struct ms_allocation *other = is_own ? NULL : ms_space_try_claim(place->address);
    const struct ms_allocation *source = is_own ? allocation : other;
    return source != NULL && source->context == allocation->context &&
           copy_from(source, place, wanted, address, stream);
}

struct ms_range ms_loaded_copy(struct ms_allocation *allocation, const struct ms_file *file,
                               uint64_t offset, size_t bytes, CUdeviceptr address, CUstream stream)
{
    struct place place;
    while (bytes >= min_bytes && take_place(file, offset, bytes, &place)) {
        const struct ms_range wanted = overlap(&place, offset, bytes);
        if (!copy_wanted(allocation, &place, &wanted, address + (wanted.begin - offset), stream))
            continue;
        ms_loaded_note(file, place.offset, place.bytes, place.address);
        return wanted;
    }
    return (struct ms_range){0};
}
