/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/memory/invariants.h"

#include <string.h>

#include "runtime/base/log.h"
#include "runtime/base/number.h"
#include "runtime/files/file.h"
#include "runtime/files/host_snapshot.h"
#include "runtime/memory/extent_states.h"
#include "runtime/memory/memory_internal.h"
#include "runtime/memory/parked.h"
#include "runtime/memory/recorded_launch.h"

static bool violates(struct ms_violation *violation, const char *rule, uint64_t begin, uint64_t end)
{
    *violation = (struct ms_violation){.rule = rule, .begin = begin, .end = end};
    return false;
}

static bool extent_violates(struct ms_violation *violation, const char *rule,
                            const struct ms_extent *extent)
{
    violates(violation, rule, extent->begin, extent->end);
    violation->content = &extent->content;
    return false;
}

/* --- lineage */

static void add(struct ms_lineage *sums, const struct ms_extent *extent)
{
    const size_t bytes = extent->end - extent->begin;
    const struct ms_content *content = &extent->content;
    sums->kind_bytes[content->kind] += bytes;
    sums->cached_bytes += content->cached ? bytes : 0;
    sums->remote_bytes += content->locality == MS_REMOTE ? bytes : 0;
    if (ms_content_file(content) != NULL)
        sums->file_bytes += bytes;
}

static bool sums_are_valid(const struct ms_lineage *lineage, const struct ms_lineage *sums,
                           struct ms_violation *violation)
{
    const size_t *kinds = sums->kind_bytes;
    const size_t deferred = lineage->bytes - kinds[MS_UNDEFINED] - kinds[MS_DEAD] -
                            kinds[MS_UNMAPPED] - kinds[MS_RESIDENT];
    const struct {
        const char *rule;
        bool is_kept;
    } rules[] = {
        {"deferred_bytes is the sum of its extents", lineage->deferred_bytes == deferred},
        {"resident_bytes is the sum of its extents", lineage->resident_bytes == kinds[MS_RESIDENT]},
        {"cached_bytes is the sum of its extents", lineage->cached_bytes == sums->cached_bytes},
        {"remote_bytes is the sum of its extents", lineage->remote_bytes == sums->remote_bytes},
        {"file_bytes is the sum of its extents", lineage->file_bytes == sums->file_bytes},
        {"what has changed lies in the lineage",
         lineage->changed_begin <= lineage->changed_end && lineage->changed_end <= lineage->bytes},
    };
    for (size_t i = 0; i < sizeof(rules) / sizeof(rules[0]); i++) {
        if (!rules[i].is_kept)
            return violates(violation, rules[i].rule, 0, lineage->bytes);
    }
    for (size_t kind = MS_UNDEFINED + 1; kind < MS_KIND_COUNT; kind++) {
        if (lineage->kind_bytes[kind] != kinds[kind])
            return violates(violation, "kind_bytes is the sum of its extents", 0, lineage->bytes);
    }
    return true;
}

bool ms_lineage_is_valid(const struct ms_lineage *lineage, struct ms_violation *violation)
{
    struct ms_lineage sums = {0};
    size_t at = 0;
    const struct ms_extent *before = NULL;
    struct ms_walk walk = {lineage, 0, lineage->bytes};
    for (const struct ms_extent *extent; (extent = ms_lineage_walk(&walk)) != NULL;) {
        if (extent->begin != at || extent->end <= at)
            return extent_violates(violation, "extents are sorted, without gaps", extent);
        if (!ms_content_state_is_legal(&extent->content))
            return extent_violates(violation, "states are those of extent_states.h", extent);
        if (!ms_content_marks_are_legal(&extent->content))
            return extent_violates(violation, "marks are where extent_states.h allows them",
                                   extent);
        if (before != NULL && ms_lineage_continues(before, extent))
            return extent_violates(violation, "neighbours differ", extent);
        add(&sums, extent);
        at = extent->end;
        before = extent;
    }
    if (at != lineage->bytes)
        return violates(violation, "extents end where the lineage does", at, lineage->bytes);
    return sums_are_valid(lineage, &sums, violation);
}

/* --- backing */

/* True if the range is whole granules, and begins at `after` or behind. */
static bool is_granules(const struct ms_backing *backing, struct ms_range range, uint64_t after)
{
    return range.begin >= after && range.begin < range.end && range.end <= backing->bytes &&
           range.begin % backing->granule == 0 && range.end % backing->granule == 0;
}

/* The mapping that contains the range. NULL: no single mapping does. */
static const struct ms_program_mapping *mapping_of(const struct ms_backing *backing, size_t begin,
                                                   size_t end)
{
    const struct ms_program_mapping *mapping = ms_backing_mapping(backing, begin);
    return mapping != NULL && mapping->begin <= begin && end <= mapping->end ? mapping : NULL;
}

/* The rules of a list that is sorted, and has a sum. */
struct list_rules {
    const char *are_sorted, *are_added;
};

static bool ranges_are_valid(const struct ms_backing *backing, const struct ms_sorted *list,
                             size_t sum, struct list_rules rules, struct ms_violation *violation)
{
    uint64_t at = 0, bytes = 0;
    struct ms_position next = {0, 0};
    for (const void *item; (item = ms_sorted_step(list, &next)) != NULL;) {
        struct ms_range range;
        memcpy(&range, item, sizeof(range));
        if (!is_granules(backing, range, at))
            return violates(violation, rules.are_sorted, range.begin, range.end);
        bytes += range.end - range.begin;
        at = range.end;
    }
    return bytes == sum || violates(violation, rules.are_added, 0, backing->bytes);
}

static bool chunks_are_valid(const struct ms_backing *backing, struct ms_violation *violation)
{
    static const struct list_rules rules = {"chunks are granules, sorted",
                                            "backed_bytes is the sum of its chunks"};
    return ranges_are_valid(backing, &backing->chunks, backing->backed_bytes, rules, violation);
}

static bool mappings_are_valid(const struct ms_backing *backing, struct ms_violation *violation)
{
    static const struct list_rules rules = {"mappings are granules, sorted",
                                            "mapped_bytes is the sum of its mappings"};
    struct ms_position next = {0, 0};
    if (!backing->is_programs)
        return true;
    for (const struct ms_chunk *chunk; (chunk = ms_sorted_step(&backing->chunks, &next)) != NULL;) {
        const struct ms_program_mapping *mapping = mapping_of(backing, chunk->begin, chunk->end);
        if (mapping == NULL || mapping->is_real != chunk->is_pinned)
            return violates(violation, "a chunk lies in one mapping, pinned if that is real",
                            chunk->begin, chunk->end);
    }
    return ranges_are_valid(backing, &backing->mappings, backing->mapped_bytes, rules, violation);
}

/* True if another range of a sink mapping overlaps this one. */
static bool is_sunk_twice(const struct ms_backing *backing, const struct ms_range *range)
{
    for (const struct ms_sink_mapping *sink = backing->sinks; sink != NULL; sink = sink->next) {
        for (size_t i = 0; i < sink->count; i++) {
            const struct ms_range *other = &sink->ranges[i];
            if (other != range && other->begin < range->end && range->begin < other->end)
                return true;
        }
    }
    return false;
}

bool ms_backing_is_valid(const struct ms_backing *backing, struct ms_violation *violation)
{
    if (!chunks_are_valid(backing, violation) || !mappings_are_valid(backing, violation))
        return false;
    for (const struct ms_sink_mapping *sink = backing->sinks; sink != NULL; sink = sink->next) {
        uint64_t at = 0;
        for (size_t i = 0; i < sink->count; i++) {
            const struct ms_range range = sink->ranges[i];
            struct ms_range backed = range;
            if (!is_granules(backing, range, at))
                return violates(violation, "sink mappings are sorted granules", range.begin,
                                range.end);
            if (ms_backing_next(backing, &backed))
                return violates(violation, "no granule is both backed and mapped to a sink",
                                backed.begin, backed.end);
            if (is_sunk_twice(backing, &sink->ranges[i]))
                return violates(violation, "no granule is mapped to a sink twice", range.begin,
                                range.end);
            at = range.end;
        }
    }
    return true;
}

/* --- allocations */

static bool blocks_are_valid(const struct ms_allocation *allocation, struct ms_violation *violation)
{
    const struct ms_blocks *blocks = &MS_OWN(allocation)->blocks;
    uint64_t at = 0;
    struct ms_position next = {0, 0};
    for (const struct ms_block *block; (block = ms_sorted_step(&blocks->all, &next)) != NULL;) {
        if (!MS_OWN(allocation)->is_carved || block->begin < at || block->end <= block->begin ||
            block->end > allocation->bytes)
            return violates(violation, "blocks are sorted parts of a carved allocation",
                            block->begin, block->end);
        at = block->end;
    }
    return true;
}

/* True if the extent lies where its kind may lie among the blocks. */
static bool is_placed(const struct ms_allocation *allocation, const struct ms_extent *extent)
{
    const struct ms_blocks *blocks = &MS_OWN(allocation)->blocks;
    const struct ms_block *block = ms_block_behind(allocation, extent->begin);
    if (extent->content.kind == MS_UNMAPPED)
        return allocation->is_programs;
    if (extent->content.kind == MS_DEAD)
        return MS_OWN(allocation)->is_carved && (block == NULL || block->begin >= extent->end);
    return ms_content_is_present(&extent->content) || !MS_OWN(allocation)->is_carved ||
           blocks->uses_dead || ms_sorted_covers(&blocks->all, extent->begin, extent->end);
}

static bool holds(uint64_t bytes, const struct ms_extent *extent)
{
    const uint64_t offset = extent->content.source_offset;
    return offset <= bytes && extent->end - extent->begin <= bytes - offset;
}

static bool is_missing(const struct ms_lineage *lineage)
{
    return lineage->resident_bytes + lineage->cached_bytes == 0;
}

/* True if the file, launch or parked memory behind the extent has all of its bytes, and a launch's
 * lineage is not cached. */
static bool refers_to_enough(const struct ms_extent *extent)
{
    const struct ms_content *content = &extent->content;
    switch (content->kind) {
    case MS_SOURCE:
        return ms_content_file(content) != NULL
                   ? holds((uint64_t)ms_file_stat(ms_content_file(content))->st_size, extent)
                   : !content->cached || ms_host_snapshot_is_shared(content->source);
    case MS_LAUNCHED:
        return holds(content->recorded->before.bytes, extent) &&
               is_missing(&content->recorded->before) &&
               (content->recorded->input == NULL ||
                is_missing(&content->recorded->input->lineage)) &&
               content->recorded->depth <= MS_MAX_LAUNCH_DEPTH &&
               content->recorded->input_depth <= MS_MAX_INPUT_DEPTH;
    case MS_PARKED:
        return holds(content->parked->bytes, extent);
    default:
        return true;
    }
}

/* How many bytes of an extent lie in no block. */
static size_t remote_bytes_of(const struct ms_allocation *allocation,
                              const struct ms_extent *extent)
{
    const struct ms_blocks *blocks = &MS_OWN(allocation)->blocks;
    size_t bytes = extent->end - extent->begin;
    struct ms_position at = ms_sorted_behind(&blocks->all, extent->begin);
    for (const struct ms_block *block;
         (block = ms_sorted_step(&blocks->all, &at)) != NULL && block->begin < extent->end;) {
        const size_t begin = block->begin > extent->begin ? block->begin : extent->begin;
        bytes -= ms_least(block->end, extent->end) - begin;
    }
    return bytes;
}

static bool extents_are_valid(const struct ms_allocation *allocation,
                              struct ms_violation *violation)
{
    size_t outside = 0;
    struct ms_walk walk = {&MS_OWN(allocation)->lineage, 0, SIZE_MAX};
    for (const struct ms_extent *extent; (extent = ms_lineage_walk(&walk)) != NULL;) {
        const bool is_present = ms_content_is_present(&extent->content);
        outside += is_present ? remote_bytes_of(allocation, extent) : 0;
        if (is_present &&
            !ms_sorted_covers(&MS_OWN(allocation)->backing.chunks, extent->begin, extent->end))
            return extent_violates(violation, "what is present is backed", extent);
        if (!is_placed(allocation, extent))
            return extent_violates(violation,
                                   "what is dead lies in no block, and what is deferred in one",
                                   extent);
        if (!refers_to_enough(extent))
            return extent_violates(violation, "what an extent refers to can give its bytes",
                                   extent);
    }
    return MS_OWN(allocation)->blocks.uses_dead || MS_OWN(allocation)->dead_memory <= outside ||
           violates(violation, "dead_memory is present, in no block", 0, allocation->bytes);
}

bool ms_allocation_is_valid(const struct ms_allocation *allocation, struct ms_violation *violation)
{
    const struct ms_backing *backing = &MS_OWN(allocation)->backing;
    if (MS_OWN(allocation)->lineage.bytes != allocation->bytes ||
        allocation->bytes > backing->bytes || allocation->address != backing->address)
        return violates(violation, "lineage and backing are the allocation's", 0,
                        allocation->bytes);
    return ms_lineage_is_valid(&MS_OWN(allocation)->lineage, violation) &&
           ms_backing_is_valid(backing, violation) && blocks_are_valid(allocation, violation) &&
           extents_are_valid(allocation, violation);
}

/* --- at the end of a claim */

/* Each claim adds FOR_A_CLAIM to the cost that its thread may spend. */
static bool is_due(const struct ms_allocation *allocation)
{
    enum { FOR_A_CLAIM = 64 };
    static _Thread_local size_t saved __attribute__((tls_model("initial-exec")));
    const struct ms_backing *backing = &MS_OWN(allocation)->backing;
    size_t sink = 0;
    for (const struct ms_sink_mapping *at = backing->sinks; at != NULL; at = at->next)
        sink += at->count;
    const size_t cost = MS_OWN(allocation)->lineage.extents.count +
                        MS_OWN(allocation)->blocks.all.count + backing->chunks.count +
                        sink * (sink + backing->chunks.count);
    saved += FOR_A_CLAIM;
    if (cost > saved)
        return false;
    saved -= cost;
    return true;
}

void ms_check_allocation(const struct ms_allocation *allocation)
{
    static const char *const kinds[] = {"undefined", "dead",   "unmapped", "fill",    "source",
                                        "launched",  "parked", "absent",   "resident"};
    _Static_assert(sizeof(kinds) / sizeof(kinds[0]) == MS_KIND_COUNT, "one name a kind");
    static const char *const localities[] = {"unknown", "local", "remote"};
    static const struct ms_content none = {.kind = MS_KIND_COUNT};
    struct ms_violation found;
    if (!is_due(allocation) || ms_allocation_is_valid(allocation, &found))
        return;
    const struct ms_content *content = found.content != NULL ? found.content : &none;
    ms_fatal(
        "the allocation of %zu bytes at 0x%llx breaks a rule: \"%s\" is not true of bytes %llu "
        "to %llu (%s, %s%s%s)",
        allocation->bytes, allocation->address, found.rule, (unsigned long long)found.begin,
        (unsigned long long)found.end,
        content->kind < MS_KIND_COUNT ? kinds[content->kind] : "no extent",
        localities[content->locality], content->cached ? ", cached" : "",
        content->is_remote_copy ? ", remote copy" : "");
}
