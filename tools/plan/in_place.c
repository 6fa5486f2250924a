/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/plan/in_place.h"

#include "runtime/plan/placement.h"

enum { LOOKED_AT = 128 }; /* ranks, at most */

/* The bytes of the granules that hold any of the rank's part. */
uint64_t in_place_bytes(const struct ms_placement *placement, size_t tensor, uint64_t bytes)
{
    static struct ms_cursor cursor;
    struct ms_range range;
    uint64_t touched = 0, begin = 0; /* of the granules that are not counted yet */
    ms_placement_begin(&cursor, placement, tensor);
    while (begin < bytes && ms_placement_next(&cursor, &range)) {
        const uint64_t first = range.begin / IN_PLACE_GRANULE * IN_PLACE_GRANULE;
        const uint64_t last = (range.end - 1) / IN_PLACE_GRANULE * IN_PLACE_GRANULE;
        const uint64_t end = last + IN_PLACE_GRANULE < bytes ? last + IN_PLACE_GRANULE : bytes;
        if (first > begin)
            begin = first;
        if (end > begin) {
            touched += end - begin;
            begin = end;
        }
    }
    return touched;
}

bool in_place_whole_bytes(const struct ms_layout *layout, uint32_t world, uint64_t *bytes_out)
{
    const size_t count = layout->count;
    uint64_t all = 0, most = 0;
    for (size_t i = 0; i < count; i++)
        all += ms_layout_at(layout, i).tensor.bytes;
    /* Only where tensors are cut as one is there more than a look at the first rank. */
    for (uint32_t rank = 0; rank < world && most < all; rank += 1 + world / LOOKED_AT) {
        struct ms_placement *placement = ms_placement_create(layout, rank);
        uint64_t whole = 0;
        if (placement == NULL)
            return false;
        for (size_t i = 0; i < count; i++)
            whole +=
                ms_placement_bytes(placement, i) > 0 ? ms_layout_at(layout, i).tensor.bytes : 0;
        most = whole > most ? whole : most;
        ms_placement_destroy(placement);
    }
    *bytes_out = most;
    return true;
}

bool in_place_measure(const struct ms_layout *layout, uint32_t rank,
                      struct in_place_needs *found_out)
{
    struct ms_placement *placement = ms_placement_create(layout, rank);
    if (placement == NULL)
        return false;
    *found_out = (struct in_place_needs){0};
    for (size_t i = 0; i < layout->count; i++) {
        const uint64_t bytes = ms_layout_at(layout, i).tensor.bytes;
        const uint64_t touched = in_place_bytes(placement, i, bytes);
        found_out->bytes += touched;
        found_out->most = touched > found_out->most ? touched : found_out->most;
        if (touched == bytes && bytes > IN_PLACE_GRANULE &&
            ms_placement_bytes(placement, i) <= bytes / 2) {
            found_out->columns++;
            found_out->a_column = i;
        }
    }
    ms_placement_destroy(placement);
    return true;
}

bool in_place_measure_most(const struct ms_layout *layout, uint32_t world,
                           struct in_place_needs *found_out)
{
    struct in_place_needs found;
    *found_out = (struct in_place_needs){0};
    for (uint32_t rank = 0; rank < world; rank += 1 + world / LOOKED_AT) {
        if (!in_place_measure(layout, rank, &found))
            return false;
        if (found.bytes > found_out->bytes)
            *found_out = found;
    }
    return true;
}
