/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/memory/publish.h"

#include "runtime/files/file.h"
#include "runtime/memory/memory_internal.h"
#include "runtime/memory/recorded_launch.h"
#include "runtime/state/counters.h"

static uint64_t deferred_bytes(const struct ms_lineage *lineage)
{
    return ms_mapped_bytes(lineage) - lineage->resident_bytes - lineage->cached_bytes -
           lineage->kind_bytes[MS_DEAD];
}

static void add_file(struct ms_state_block *block, const struct ms_content *content)
{
    const struct ms_file *file = ms_content_file(content);
    if (file == NULL)
        return;
    block->file = ms_state_file(ms_file_path(file));
    block->file_offset = content->source_offset;
}

static ms_tensor_namer *namer;

void ms_publish_set_namer(ms_tensor_namer *namer_)
{
    namer = namer_;
}

static void add_name(struct ms_state_block *block, const struct ms_allocation *allocation,
                     size_t begin, size_t end)
{
    if (namer != NULL)
        namer(allocation, begin, end, block->name, sizeof(block->name));
}

static struct ms_state_block describe(const struct ms_allocation *allocation)
{
    const struct ms_lineage *lineage = &MS_OWN(allocation)->lineage;
    const size_t *kinds = lineage->kind_bytes;
    struct ms_state_block block = {
        .id = allocation->id,
        .address = allocation->address,
        .bytes = ms_mapped_bytes(lineage),
        .backed_bytes = MS_OWN(allocation)->backing.backed_bytes,
        .kind_bytes = {[MS_BYTES_DEAD] = kinds[MS_DEAD],
                       [MS_BYTES_FILL] = kinds[MS_FILL],
                       [MS_BYTES_FILE] = lineage->file_bytes,
                       [MS_BYTES_SNAPSHOT] = kinds[MS_SOURCE] - lineage->file_bytes,
                       [MS_BYTES_LAUNCH] = kinds[MS_LAUNCHED],
                       [MS_BYTES_PARKED] = kinds[MS_PARKED],
                       [MS_BYTES_ABSENT] = kinds[MS_ABSENT],
                       [MS_BYTES_RESIDENT] = lineage->resident_bytes},
        .deferred_bytes = deferred_bytes(lineage),
        .cached_bytes = lineage->cached_bytes,
        .remote_bytes = lineage->remote_bytes,
        .device = (uint32_t)allocation->device,
        .flags = MS_OWN(allocation)->is_carved ? MS_BLOCK_CARVED : 0,
    };
    block.kind_bytes[MS_BYTES_UNDEFINED] =
        block.bytes - kinds[MS_DEAD] - lineage->deferred_bytes - lineage->resident_bytes;
    return block;
}

static enum ms_state_kind kind_of(const struct ms_content *content)
{
    static const enum ms_state_kind kinds[MS_KIND_COUNT] = {
        [MS_UNDEFINED] = MS_BYTES_UNDEFINED, [MS_DEAD] = MS_BYTES_DEAD,
        [MS_UNMAPPED] = MS_BYTES_DEAD,       [MS_FILL] = MS_BYTES_FILL,
        [MS_SOURCE] = MS_BYTES_SNAPSHOT,     [MS_LAUNCHED] = MS_BYTES_LAUNCH,
        [MS_PARKED] = MS_BYTES_PARKED,       [MS_ABSENT] = MS_BYTES_ABSENT,
        [MS_RESIDENT] = MS_BYTES_RESIDENT};
    return ms_content_file(content) != NULL ? MS_BYTES_FILE : kinds[content->kind];
}

static struct ms_state_block describe_part(const struct ms_allocation *allocation, size_t begin,
                                           size_t end)
{
    struct ms_state_block block = {.id = allocation->id,
                                   .address = allocation->address + begin,
                                   .bytes = end - begin,
                                   .device = (uint32_t)allocation->device,
                                   .flags = MS_BLOCK_PART};
    struct ms_extent extent;
    while (ms_lineage_next(&MS_OWN(allocation)->lineage, &begin, end, &extent)) {
        const size_t bytes = extent.end - extent.begin;
        block.kind_bytes[kind_of(&extent.content)] += bytes;
        if (extent.content.cached)
            block.cached_bytes += bytes;
        else if (extent.content.kind != MS_RESIDENT && extent.content.kind != MS_DEAD)
            block.deferred_bytes += bytes;
        if (extent.content.locality == MS_REMOTE)
            block.remote_bytes += bytes;
        if (block.file == 0)
            add_file(&block, &extent.content);
    }
    return block;
}

/* True if the block is due to be added up again. A block in many pieces is due after a number of
 * changes in proportion, because the sums visit all pieces. */
static bool is_due(const struct ms_allocation *allocation, struct ms_block *part)
{
    enum { PIECES_FOR_ONE = 64 };
    if (++part->unpublished * PIECES_FOR_ONE <
        ms_lineage_pieces(&MS_OWN(allocation)->lineage, part->begin, part->end))
        return false;
    part->unpublished = 0;
    return true;
}

static void publish_parts(struct ms_allocation *allocation, size_t begin, size_t end)
{
    struct ms_blocks *blocks = &MS_OWN(allocation)->blocks;
    struct ms_position at = ms_sorted_behind(&blocks->all, begin);
    for (struct ms_block *part;
         (part = ms_sorted_step(&blocks->all, &at)) != NULL && part->begin < end;) {
        if (!is_due(allocation, part))
            continue;
        struct ms_state_block block = describe_part(allocation, part->begin, part->end);
        add_name(&block, allocation, part->begin, part->end);
        ms_state_put(&part->place, &block);
    }
}

/*
 * True if the memory or the lineage of the allocation has changed. Ignores blocks that a caching
 * allocator hands out and takes back while nothing is deferred, as a training loop does all the
 * time: the shim publishes those blocks when something is deferred again.
 */
static bool has_news(const struct ms_allocation *allocation, uint64_t deferred)
{
    const struct ms_lineage *lineage = &MS_OWN(allocation)->lineage;
    const struct ms_published *published = &MS_OWN(allocation)->published;
    if (!published->place.is_counted ||
        published->backed_bytes != MS_OWN(allocation)->backing.backed_bytes)
        return true;
    const bool is_settled =
        MS_OWN(allocation)->is_carved && deferred == 0 && published->deferred_bytes == 0;
    return lineage->changed_begin < lineage->changed_end && !is_settled;
}

void ms_publish_allocation(struct ms_allocation *allocation)
{
    struct ms_lineage *lineage = &MS_OWN(allocation)->lineage;
    struct ms_published *published = &MS_OWN(allocation)->published;
    const bool is_changed = lineage->changed_begin < lineage->changed_end;
    const uint64_t deferred = deferred_bytes(lineage);
    if (!ms_is_recorded() || !has_news(allocation, deferred))
        return;
    const size_t live = ms_mapped_bytes(lineage);
    ms_counter_move(MS_GAUGE_LIVE, (int64_t)(live - published->live_bytes));
    published->live_bytes = live;
    ms_counter_move(MS_GAUGE_DEFERRED, (int64_t)(deferred - published->deferred_bytes));
    published->deferred_bytes = deferred;
    published->backed_bytes = MS_OWN(allocation)->backing.backed_bytes;
    struct ms_state_block block = describe(allocation);
    if (is_changed && !MS_OWN(allocation)->is_carved) {
        const struct ms_extent first = ms_lineage_at(lineage, 0);
        const struct ms_extent extent = ms_lineage_at(lineage, lineage->changed_begin);
        add_file(&block, &first.content);
        if (block.file == 0)
            add_file(&block, &extent.content);
        add_name(&block, allocation, lineage->changed_begin, lineage->changed_end);
    }
    ms_state_put(&published->place, &block);
    if (is_changed)
        publish_parts(allocation, lineage->changed_begin, lineage->changed_end);
    lineage->changed_begin = lineage->changed_end = 0;
    ms_state_sample();
}

void ms_publish_freed(struct ms_allocation *allocation)
{
    struct ms_published *published = &MS_OWN(allocation)->published;
    if (!ms_is_recorded())
        return;
    struct ms_position at = {0, 0};
    for (struct ms_block *part;
         (part = ms_sorted_step(&MS_OWN(allocation)->blocks.all, &at)) != NULL;)
        ms_state_remove(&part->place);
    if (published->place.is_counted) {
        ms_counter_move(MS_GAUGE_LIVE, -(int64_t)published->live_bytes);
        ms_counter_move(MS_GAUGE_DEFERRED, -(int64_t)published->deferred_bytes);
    }
    ms_state_remove(&published->place);
}
