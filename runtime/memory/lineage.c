/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/memory/lineage.h"

#include <string.h>

#include "runtime/base/heap.h"

uint32_t ms_unwritten_pattern;

static bool refers(enum ms_kind kind)
{
    return kind == MS_SOURCE || kind == MS_LAUNCHED || kind == MS_PARKED;
}

static void hold(const struct ms_extent *extent)
{
    if (refers(extent->content.kind))
        ms_counted_take(extent->content.owned);
}

static void let_go(const struct ms_extent *extent)
{
    if (refers(extent->content.kind))
        ms_counted_drop(extent->content.owned);
}

bool ms_lineage_init(struct ms_lineage *lineage, size_t bytes)
{
    enum { FIRST_CAPACITY = 4 };
    struct ms_gap_array gaps = {.item_bytes = sizeof(struct ms_extent)};
    struct ms_extent *extents = ms_gap_array_reserve(&gaps, NULL, 0, FIRST_CAPACITY);
    if (extents == NULL)
        return false;
    extents = ms_gap_array_replace(&gaps, extents, 0, 0, 0, 1);
    extents[0] = (struct ms_extent){.begin = 0, .end = bytes};
    *lineage = (struct ms_lineage){.extents = extents, .count = 1, .gaps = gaps, .bytes = bytes};
    return true;
}

void ms_lineage_cleanup(struct ms_lineage *lineage)
{
    for (size_t i = 0; i < lineage->count; i++)
        let_go(&lineage->extents[i]);
    ms_gap_array_free(&lineage->gaps, lineage->extents);
    *lineage = (struct ms_lineage){0};
}

/* Index of the extent that holds offset. */
static size_t find(const struct ms_lineage *lineage, size_t offset)
{
    size_t low = 0;
    size_t high = lineage->count;
    while (high - low > 1) {
        const size_t middle = low + (high - low) / 2;
        if (lineage->extents[middle].begin <= offset)
            low = middle;
        else
            high = middle;
    }
    return low;
}

static void cut_front(struct ms_extent *extent, size_t begin)
{
    if (refers(extent->content.kind))
        extent->content.source_offset += begin - extent->begin;
    extent->begin = begin;
}

struct ms_extent ms_lineage_at(const struct ms_lineage *lineage, size_t offset)
{
    struct ms_extent extent = lineage->extents[find(lineage, offset)];
    cut_front(&extent, offset);
    return extent;
}

bool ms_lineage_next(const struct ms_lineage *lineage, size_t *at, size_t end,
                     struct ms_extent *extent_out)
{
    if (*at >= end)
        return false;
    *extent_out = ms_lineage_at(lineage, *at);
    if (extent_out->end > end)
        extent_out->end = end;
    *at = extent_out->end;
    return true;
}

bool ms_lineage_is_resident(const struct ms_lineage *lineage, size_t begin, size_t end)
{
    if (lineage->resident_bytes == lineage->bytes)
        return true;
    /* Neighbours differ, so a resident range lies in one extent. */
    const struct ms_extent *extent = &lineage->extents[find(lineage, begin)];
    return extent->content.kind == MS_RESIDENT && extent->end >= end;
}

size_t ms_lineage_index(const struct ms_lineage *lineage, size_t offset)
{
    return find(lineage, offset);
}

bool ms_lineage_any(const struct ms_lineage *lineage, size_t begin, size_t end,
                    bool (*is)(const struct ms_content *content))
{
    bool found = false;
    for (size_t i = find(lineage, begin); begin < end && !found && i < lineage->count; i++) {
        found = is(&lineage->extents[i].content);
        begin = lineage->extents[i].end;
    }
    return found;
}

static bool is_remote(const struct ms_content *content)
{
    return content->locality == MS_REMOTE;
}

bool ms_lineage_has_remote(const struct ms_lineage *lineage, size_t begin, size_t end)
{
    return lineage->remote_bytes > 0 && ms_lineage_any(lineage, begin, end, is_remote);
}

static bool is_absent(const struct ms_content *content)
{
    return content->kind == MS_ABSENT;
}

bool ms_lineage_has_absent(const struct ms_lineage *lineage, size_t begin, size_t end)
{
    return lineage->kind_bytes[MS_ABSENT] > 0 && ms_lineage_any(lineage, begin, end, is_absent);
}

static bool is_missing(const struct ms_content *content)
{
    return !ms_content_is_present(content);
}

bool ms_lineage_is_present(const struct ms_lineage *lineage, size_t begin, size_t end)
{
    return !ms_lineage_any(lineage, begin, end, is_missing);
}

size_t ms_lineage_present_bytes(const struct ms_lineage *lineage, size_t begin, size_t end)
{
    size_t bytes = 0;
    struct ms_extent extent;
    while (ms_lineage_next(lineage, &begin, end, &extent))
        bytes += ms_content_is_present(&extent.content) ? extent.end - extent.begin : 0;
    return bytes;
}

bool ms_lineage_is_unwritten(const struct ms_lineage *lineage)
{
    return lineage->deferred_bytes + lineage->resident_bytes + lineage->dead_bytes == 0;
}

bool ms_lineage_is_missing(const struct ms_lineage *lineage, size_t begin, size_t end)
{
    return lineage->resident_bytes + lineage->cached_bytes == 0 ||
           !ms_lineage_any(lineage, begin, end, ms_content_is_present);
}

bool ms_extent_continues(const struct ms_extent *left, const struct ms_extent *right)
{
    const struct ms_content *a = &left->content;
    const struct ms_content *b = &right->content;
    if (a->kind != b->kind || a->cached != b->cached || a->locality != b->locality ||
        a->is_remote_copy != b->is_remote_copy)
        return false;
    if (refers(a->kind))
        return a->owned == b->owned &&
               a->source_offset + (left->end - left->begin) == b->source_offset;
    return a->kind != MS_FILL || a->pattern == b->pattern;
}

static void account(struct ms_lineage *lineage, const struct ms_extent *extent, bool added)
{
    const size_t change = added ? extent->end - extent->begin : extent->begin - extent->end;
    if (extent->content.kind == MS_RESIDENT)
        lineage->resident_bytes += change;
    else if (extent->content.kind == MS_DEAD)
        lineage->dead_bytes += change;
    else if (!ms_content_is_nothing(&extent->content))
        lineage->deferred_bytes += change;
    lineage->kind_bytes[extent->content.kind] += change;
    if (extent->content.kind == MS_SOURCE && ms_source_is_file(extent->content.source))
        lineage->file_bytes += change;
    if (extent->content.cached)
        lineage->cached_bytes += change;
    if (extent->content.locality == MS_REMOTE)
        lineage->remote_bytes += change;
}

static void add_change(struct ms_lineage *lineage, size_t begin, size_t end)
{
    const bool was_empty = lineage->changed_begin == lineage->changed_end;
    if (was_empty || begin < lineage->changed_begin)
        lineage->changed_begin = begin;
    if (was_empty || end > lineage->changed_end)
        lineage->changed_end = end;
}

/*
 * Replaces the extents first..last by at most three: the rest of the first before `begin`, the new
 * one, and the rest of the last after `end`. Joins equal neighbours.
 */
bool ms_lineage_set(struct ms_lineage *lineage, size_t begin, size_t end,
                    const struct ms_content *content)
{
    if (begin == end)
        return true;
    struct ms_extent *roomy =
        ms_gap_array_reserve(&lineage->gaps, lineage->extents, lineage->count, 2);
    if (roomy == NULL)
        return false;
    lineage->extents = roomy;

    size_t first = find(lineage, begin);
    size_t last = find(lineage, end - 1);
    /* Include one neighbour on each side, so that one rule joins all. */
    first -= first > 0;
    last += last + 1 < lineage->count;

    struct ms_extent pieces[5];
    size_t count = 0;
    struct ms_extent wanted = {.begin = begin, .end = end, .content = *content};
    for (size_t i = first; i <= last; i++) {
        const struct ms_extent *old = &lineage->extents[i];
        if (old->begin < begin) {
            pieces[count] = *old;
            if (pieces[count].end > begin)
                pieces[count].end = begin;
            count++;
        }
    }
    if (count > 0 && ms_extent_continues(&pieces[count - 1], &wanted))
        pieces[count - 1].end = end;
    else
        pieces[count++] = wanted;
    for (size_t i = first; i <= last; i++) {
        struct ms_extent rest = lineage->extents[i];
        if (rest.end <= end)
            continue;
        if (rest.begin < end)
            cut_front(&rest, end);
        if (ms_extent_continues(&pieces[count - 1], &rest))
            pieces[count - 1].end = rest.end;
        else
            pieces[count++] = rest;
    }

    for (size_t i = 0; i < count; i++) {
        hold(&pieces[i]);
        account(lineage, &pieces[i], true);
    }
    for (size_t i = first; i <= last; i++) {
        account(lineage, &lineage->extents[i], false);
        let_go(&lineage->extents[i]);
    }
    lineage->extents = ms_gap_array_replace(&lineage->gaps, lineage->extents, lineage->count, first,
                                            last - first + 1, count);
    memcpy(&lineage->extents[first], pieces, count * sizeof(*pieces));
    lineage->count = lineage->count - (last - first + 1) + count;
    add_change(lineage, begin, end);
    return true;
}

bool ms_lineage_set_dead(struct ms_lineage *lineage, size_t begin, size_t end, bool dead)
{
    const struct ms_content wanted = {.kind = dead ? MS_DEAD : MS_UNDEFINED};
    struct ms_extent extent;
    while (ms_lineage_next(lineage, &begin, end, &extent)) {
        if (ms_content_is_nothing(&extent.content) && extent.content.kind != MS_UNMAPPED &&
            !ms_lineage_set(lineage, extent.begin, extent.end, &wanted))
            return false;
    }
    return true;
}

bool ms_lineage_forget(struct ms_lineage *lineage, size_t begin, size_t end)
{
    static const struct ms_content resident = {.kind = MS_RESIDENT};
    static const struct ms_content dead = {.kind = MS_DEAD};
    struct ms_extent extent;
    while (ms_lineage_next(lineage, &begin, end, &extent)) {
        const bool present = ms_content_is_present(&extent.content);
        if (extent.content.kind != MS_UNMAPPED &&
            !ms_lineage_set(lineage, extent.begin, extent.end, present ? &resident : &dead))
            return false;
    }
    return true;
}

/* A list of extents in the making, in order; equal neighbours are joined. */
static void append(struct ms_lineage *made, const struct ms_extent *extent)
{
    if (made->count > 0 && ms_extent_continues(&made->extents[made->count - 1], extent)) {
        made->extents[made->count - 1].end = extent->end;
    } else {
        hold(extent);
        made->extents[made->count++] = *extent;
    }
    account(made, extent, true);
}

/* [begin, end) of the lineage, changed or as it is. *at is the extent that holds begin, and is
 * moved. */
static void append_part(struct ms_lineage *made, const struct ms_lineage *lineage, size_t *at,
                        struct ms_range range, ms_content_change *change)
{
    while (range.begin < range.end) {
        struct ms_extent part = lineage->extents[*at];
        cut_front(&part, range.begin);
        if (part.end > range.end)
            part.end = range.end;
        range.begin = part.end;
        if (part.end == lineage->extents[*at].end)
            ++*at;
        if (change != NULL)
            change(&part.content);
        append(made, &part);
    }
}

bool ms_lineage_change(struct ms_lineage *lineage, const struct ms_range *ranges, size_t count,
                       ms_content_change *change)
{
    const size_t most = lineage->count + 2 * count;
    struct ms_lineage made = {.gaps = {.item_bytes = sizeof(struct ms_extent)},
                              .bytes = lineage->bytes,
                              .changed_end = lineage->bytes};
    made.extents = ms_gap_array_reserve(&made.gaps, NULL, 0, most);
    if (made.extents == NULL)
        return false;
    size_t at = 0, done = 0;
    for (size_t i = 0; i < count; i++) {
        append_part(&made, lineage, &at, (struct ms_range){done, ranges[i].begin}, NULL);
        append_part(&made, lineage, &at, ranges[i], change);
        done = ranges[i].end;
    }
    append_part(&made, lineage, &at, (struct ms_range){done, lineage->bytes}, NULL);
    made.extents = ms_gap_array_replace(&made.gaps, made.extents, 0, 0, 0, made.count);
    ms_lineage_cleanup(lineage);
    *lineage = made;
    return true;
}

bool ms_lineage_extract(const struct ms_lineage *lineage, size_t begin, size_t end,
                        struct ms_lineage *part_out)
{
    if (!ms_lineage_init(part_out, end - begin))
        return false;
    struct ms_extent extent;
    for (size_t at = begin; ms_lineage_next(lineage, &at, end, &extent);) {
        const size_t to = extent.begin - begin;
        extent.content.pattern = ms_pattern_move(extent.content.pattern, extent.begin, to);
        ms_content_forget_locality(&extent.content);
        if (!ms_lineage_set(part_out, to, extent.end - begin, &extent.content)) {
            ms_lineage_cleanup(part_out);
            return false;
        }
    }
    return true;
}

/* Joins neighbours that differed in nothing else. */
void ms_lineage_drop_caches(struct ms_lineage *lineage)
{
    size_t count = 0;
    for (size_t i = 0; i < lineage->count; i++) {
        struct ms_extent *extent = &lineage->extents[i];
        extent->content.cached = false;
        if (count > 0 && ms_extent_continues(&lineage->extents[count - 1], extent)) {
            lineage->extents[count - 1].end = extent->end;
            let_go(extent);
        } else {
            lineage->extents[count++] = *extent;
        }
    }
    lineage->extents = ms_gap_array_replace(&lineage->gaps, lineage->extents, lineage->count, count,
                                            lineage->count - count, 0);
    lineage->count = count;
    lineage->cached_bytes = 0;
    add_change(lineage, 0, lineage->bytes);
}

struct ms_extent *ms_lineage_copy(const struct ms_lineage *lineage, size_t begin, size_t end,
                                  size_t *count_out)
{
    const size_t first = find(lineage, begin);
    const size_t count = find(lineage, end - 1) - first + 1;
    struct ms_extent *copy = ms_heap_alloc(count * sizeof(*copy));
    if (copy == NULL)
        return NULL;
    memcpy(copy, &lineage->extents[first], count * sizeof(*copy));
    cut_front(&copy[0], begin);
    copy[count - 1].end = end;
    for (size_t i = 0; i < count; i++)
        hold(&copy[i]);
    *count_out = count;
    return copy;
}

void ms_extents_free(struct ms_extent *extents, size_t count)
{
    for (size_t i = 0; i < count; i++)
        let_go(&extents[i]);
    ms_heap_free(extents);
}

uint32_t ms_pattern_move(uint32_t pattern, size_t from, size_t to)
{
    /* The byte that stood at `from` must come to stand at `to`. */
    const unsigned shift = 8 * (unsigned)((to - from) & 3);
    return shift == 0 ? pattern : pattern << shift | pattern >> (32 - shift);
}
