/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/memory/lineage.h"

#include <string.h>

#include "runtime/base/heap.h"
#include "runtime/files/host_snapshot.h"

static bool refers(enum ms_kind kind)
{
    return kind == MS_SOURCE || kind == MS_LAUNCHED || kind == MS_PARKED;
}

static void hold(const struct ms_extent *extent)
{
    if (!refers(extent->content.kind))
        return;
    ms_counted_take(extent->content.owned);
    if (extent->content.kind == MS_SOURCE && !extent->content.cached)
        ms_host_snapshot_want(extent->content.source);
}

static void let_go(const struct ms_extent *extent)
{
    if (!refers(extent->content.kind))
        return;
    if (extent->content.kind == MS_SOURCE && !extent->content.cached)
        ms_host_snapshot_want_no_more(extent->content.source);
    ms_counted_drop(extent->content.owned);
}

bool ms_lineage_init(struct ms_lineage *lineage, size_t bytes)
{
    const struct ms_extent all = {.begin = 0, .end = bytes};
    *lineage = (struct ms_lineage){.extents = {.item_bytes = sizeof(all)}, .bytes = bytes};
    return ms_sorted_insert(&lineage->extents, (struct ms_position){0, 0}, &all, 1);
}

const struct ms_extent *ms_lineage_walk(struct ms_walk *walk)
{
    const struct ms_sorted *extents = &walk->lineage->extents;
    if (!walk->has_begun && walk->begin > 0)
        walk->at = ms_sorted_find(extents, walk->begin);
    walk->has_begun = true;
    const struct ms_extent *extent = ms_sorted_step(extents, &walk->at);
    return extent != NULL && extent->begin < walk->end ? extent : NULL;
}

void ms_lineage_cleanup(struct ms_lineage *lineage)
{
    struct ms_walk walk = {lineage, 0, SIZE_MAX};
    for (const struct ms_extent *extent; (extent = ms_lineage_walk(&walk)) != NULL;)
        let_go(extent);
    ms_sorted_cleanup(&lineage->extents);
    *lineage = (struct ms_lineage){0};
}

/* The extent that contains offset. */
static const struct ms_extent *find(const struct ms_lineage *lineage, size_t offset)
{
    return ms_sorted_item(&lineage->extents, ms_sorted_find(&lineage->extents, offset));
}

static void cut_front(struct ms_extent *extent, size_t begin)
{
    if (refers(extent->content.kind))
        extent->content.source_offset += begin - extent->begin;
    extent->begin = begin;
}

bool ms_lineage_next(const struct ms_lineage *lineage, size_t *at, size_t end,
                     struct ms_extent *extent_out)
{
    if (*at >= end)
        return false;
    *extent_out = *find(lineage, *at);
    cut_front(extent_out, *at);
    if (extent_out->end > end)
        extent_out->end = end;
    *at = extent_out->end;
    return true;
}

size_t ms_lineage_pieces(const struct ms_lineage *lineage, size_t begin, size_t end)
{
    return 1 + ms_sorted_distance(&lineage->extents, ms_sorted_find(&lineage->extents, begin),
                                  ms_sorted_find(&lineage->extents, end - 1));
}

/* The states that some byte may have, by the sums. */
static unsigned possible(const struct ms_lineage *lineage)
{
    const size_t present = lineage->resident_bytes + lineage->cached_bytes;
    const size_t unused = lineage->kind_bytes[MS_DEAD] + lineage->kind_bytes[MS_UNMAPPED];
    unsigned states = ~0u;
    if (lineage->resident_bytes == lineage->bytes)
        states = MS_OF_KIND(MS_RESIDENT) | MS_PRESENT;
    if (present == 0)
        states &= ~(MS_OF_KIND(MS_RESIDENT) | MS_PRESENT | MS_CACHED);
    if (present + unused == lineage->bytes)
        states &= ~(unsigned)(MS_WANTING | MS_UNDECIDED);
    for (unsigned kind = MS_UNDEFINED + 1; kind < MS_RESIDENT; kind++)
        states &= lineage->kind_bytes[kind] == 0 ? ~MS_OF_KIND(kind) : ~0u;
    if (lineage->remote_bytes == 0)
        states &= ~(unsigned)MS_OF_OTHERS;
    return states;
}

bool ms_lineage_any(const struct ms_lineage *lineage, size_t begin, size_t end, unsigned states)
{
    states &= possible(lineage);
    if (states == 0 || begin >= end)
        return false;
    struct ms_walk walk = {lineage, begin, end};
    for (const struct ms_extent *extent; (extent = ms_lineage_walk(&walk)) != NULL;) {
        if (ms_content_states(&extent->content) & states)
            return true;
    }
    return false;
}

/* True if b is the content `bytes` bytes behind a: the same, except that a reference moves on. */
static bool is_same(const struct ms_content *a, const struct ms_content *b, uint64_t bytes)
{
    if (a->kind != b->kind || a->cached != b->cached || a->locality != b->locality ||
        a->is_remote_copy != b->is_remote_copy || a->is_shadowed != b->is_shadowed ||
        a->is_in_sequence != b->is_in_sequence)
        return false;
    if (refers(a->kind))
        return a->owned == b->owned && a->source_offset + bytes == b->source_offset;
    return a->kind != MS_FILL || a->pattern == b->pattern;
}

bool ms_lineage_continues(const struct ms_extent *left, const struct ms_extent *right)
{
    return is_same(&left->content, &right->content, left->end - left->begin);
}

static void account(struct ms_lineage *lineage, const struct ms_extent *extent, bool added)
{
    const size_t change = added ? extent->end - extent->begin : extent->begin - extent->end;
    if (extent->content.kind == MS_RESIDENT)
        lineage->resident_bytes += change;
    else if (!ms_content_is_nothing(&extent->content))
        lineage->deferred_bytes += change;
    lineage->kind_bytes[extent->content.kind] += change;
    if (ms_content_file(&extent->content) != NULL)
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

/* The extents that replace those which a change touches. */
struct replacement {
    struct ms_position at; /* of the first extent that is replaced */
    struct ms_extent pieces[3];
    size_t removed, added;
};

static void add_piece(struct replacement *made, const struct ms_extent *piece)
{
    struct ms_extent *last = made->added > 0 ? &made->pieces[made->added - 1] : NULL;
    if (last != NULL && ms_lineage_continues(last, piece))
        last->end = piece->end;
    else
        made->pieces[made->added++] = *piece;
}

/* Up to three pieces: the front of the first old extent, the new extent, the rest of the last old
 * extent. Includes a neighbour on each side, so that add_piece joins all. */
static struct replacement find_replacement(const struct ms_lineage *lineage,
                                           const struct ms_extent *wanted)
{
    const struct ms_sorted *extents = &lineage->extents;
    struct replacement made = {.at = ms_sorted_find(extents, wanted->begin)};
    const struct ms_extent *old = ms_sorted_item(extents, made.at);
    if (old->begin == wanted->begin && wanted->begin > 0) {
        made.at = ms_sorted_previous(extents, made.at);
        old = ms_sorted_item(extents, made.at);
    }
    if (old->begin < wanted->begin) {
        struct ms_extent front = *old;
        front.end = wanted->begin;
        add_piece(&made, &front);
    }
    add_piece(&made, wanted);
    struct ms_position at = made.at;
    while ((old = ms_sorted_step(extents, &at)) != NULL && old->begin <= wanted->end) {
        made.removed++;
        if (old->end <= wanted->end)
            continue;
        struct ms_extent rest = *old;
        if (rest.begin < wanted->end)
            cut_front(&rest, wanted->end);
        add_piece(&made, &rest);
    }
    return made;
}

/* Inserts copies until there is a place for each new extent. False if out of memory. */
static bool make_places(struct ms_lineage *lineage, struct replacement *made)
{
    const uint64_t begin = made->pieces[0].begin;
    struct ms_position behind = made->at;
    for (size_t i = 0; i < made->removed; i++)
        behind = ms_sorted_next(&lineage->extents, behind);
    if (made->added <= made->removed)
        return true;
    if (!ms_sorted_insert(&lineage->extents, behind, &made->pieces[made->removed],
                          made->added - made->removed))
        return false;
    made->at = ms_sorted_find(&lineage->extents, begin);
    return true;
}

bool ms_lineage_set(struct ms_lineage *lineage, size_t begin, size_t end,
                    const struct ms_content *content)
{
    if (begin == end)
        return true;
    const struct ms_extent wanted = {.begin = begin, .end = end, .content = *content};
    struct replacement made = find_replacement(lineage, &wanted);
    if (!make_places(lineage, &made))
        return false;
    for (size_t i = 0; i < made.added; i++) {
        hold(&made.pieces[i]);
        account(lineage, &made.pieces[i], true);
    }
    struct ms_position at = made.at;
    for (size_t i = 0; i < made.removed; i++) {
        struct ms_extent *old = ms_sorted_item(&lineage->extents, at);
        account(lineage, old, false);
        let_go(old);
        if (i < made.added)
            *old = made.pieces[i];
        if (i + 1 == made.added)
            made.at = ms_sorted_next(&lineage->extents, at);
        at = ms_sorted_next(&lineage->extents, at);
    }
    if (made.removed > made.added)
        ms_sorted_remove(&lineage->extents, made.at, made.removed - made.added);
    add_change(lineage, begin, end);
    return true;
}

bool ms_lineage_change(struct ms_lineage *lineage, const struct ms_range *ranges, size_t count,
                       ms_content_change *change)
{
    struct ms_extent extent;
    for (size_t i = 0; i < count; i++) {
        for (size_t at = ranges[i].begin; ms_lineage_next(lineage, &at, ranges[i].end, &extent);) {
            const struct ms_content before = extent.content;
            change(&extent.content);
            if (!is_same(&before, &extent.content, 0) &&
                !ms_lineage_set(lineage, extent.begin, extent.end, &extent.content))
                return false;
        }
    }
    return true;
}

/* The extent itself is one of those that want the bytes of a snapshot. */
static bool can_be_cached(const struct ms_content *content)
{
    return content->kind == MS_FILL || content->kind == MS_LAUNCHED ||
           ms_content_file(content) != NULL ||
           (content->kind == MS_SOURCE && ms_host_snapshot_is_wanted(content->source, 1));
}

static void make_present(struct ms_content *content)
{
    if (ms_content_is_present(content))
        return;
    if (can_be_cached(content))
        content->cached = true;
    else
        *content = (struct ms_content){.kind = MS_RESIDENT};
    if (content->locality != MS_LOCAL)
        ms_content_forget_locality(content); /* remote bytes were read all the same */
    content->is_in_sequence = false;
}

bool ms_lineage_set_present(struct ms_lineage *lineage, const struct ms_range *ranges, size_t count)
{
    return ms_lineage_change(lineage, ranges, count, make_present);
}

bool ms_lineage_extract(const struct ms_lineage *lineage, size_t begin, size_t end,
                        struct ms_lineage *part_out)
{
    if (!ms_lineage_init(part_out, end - begin))
        return false;
    struct ms_extent extent;
    for (size_t at = begin; ms_lineage_next(lineage, &at, end, &extent);) {
        const size_t to = extent.begin - begin;
        const struct ms_content moved = ms_content_move(&extent.content, extent.begin, to);
        if (!ms_lineage_set(part_out, to, extent.end - begin, &moved)) {
            ms_lineage_cleanup(part_out);
            return false;
        }
    }
    return true;
}

struct ms_extent *ms_lineage_copy(const struct ms_lineage *lineage, size_t begin, size_t end,
                                  size_t *count_out)
{
    const size_t count = ms_lineage_pieces(lineage, begin, end);
    struct ms_walk walk = {lineage, begin, end};
    struct ms_extent *copy = ms_heap_alloc(count * sizeof(*copy));
    if (copy == NULL)
        return NULL;
    size_t at = 0;
    for (const struct ms_extent *extent; (extent = ms_lineage_walk(&walk)) != NULL; at++) {
        copy[at] = *extent;
        hold(extent);
    }
    cut_front(&copy[0], begin);
    copy[count - 1].end = end;
    *count_out = count;
    return copy;
}

void ms_lineage_free_copy(struct ms_extent *extents, size_t count)
{
    for (size_t i = 0; i < count; i++)
        let_go(&extents[i]);
    ms_heap_free(extents);
}
