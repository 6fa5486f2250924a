/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/memory/recorded_launch.h"

#include <stddef.h>

#include "runtime/base/heap.h"
#include "runtime/memory/memory_internal.h"

_Static_assert(offsetof(struct ms_recorded_launch, counted) == 0, "as lineage wants it");

/* Recursion ends at MS_MAX_LAUNCH_DEPTH. */
static void destroy(struct ms_counted *counted)
{
    struct ms_recorded_launch *recorded = (struct ms_recorded_launch *)counted;
    ms_lineage_cleanup(&recorded->before);
    if (recorded->input != NULL)
        ms_lineage_cleanup(&recorded->input->lineage);
    ms_heap_free(recorded->input);
    if (recorded->launch != NULL)
        ms_call_forget(recorded->launch);
    ms_heap_free(recorded);
}

struct ms_recorded_launch *ms_recorded_launch_create(void)
{
    struct ms_recorded_launch *recorded = ms_heap_zalloc(sizeof(*recorded));
    if (recorded != NULL)
        ms_counted_init(&recorded->counted, destroy);
    return recorded;
}

/* --- what a launch writes and reads */

static bool extract(const struct ms_part *part, struct ms_lineage *lineage_out)
{
    return ms_lineage_extract(ms_allocation_lineage(part->allocation), part->begin, part->end,
                              lineage_out);
}

/*
 * True if a replay can restore all of the part, except perhaps the bytes that round a block up. Not
 * with a snapshot, which would be kept for the replay, and be sent twice if the block is kept as
 * well. Cached bytes of a file, as after a broadcast, would be sent twice, too: if they are at
 * least half, the kernel runs.
 */
static bool can_be_input(const struct ms_part *part)
{
    enum { ROUNDING = 512 };
    struct ms_extent extent;
    size_t sent = 0, left = 0;
    for (size_t at = part->begin;
         ms_lineage_next(ms_allocation_lineage(part->allocation), &at, part->end, &extent);) {
        if (extent.content.kind == MS_RESIDENT || extent.content.kind == MS_PARKED ||
            (extent.content.kind == MS_SOURCE && ms_content_file(&extent.content) == NULL) ||
            (ms_content_is_nothing(&extent.content) && part->end - extent.begin >= ROUNDING))
            return false;
        if (extent.content.kind == MS_SOURCE)
            *(extent.content.cached ? &sent : &left) += extent.end - extent.begin;
    }
    return sent == 0 || sent < left;
}

/* What is below a new launch that writes or reads a part. */
struct below {
    uint32_t launches, inputs; /* the greatest depth and input_depth */
    bool has_sources;
};

static struct below below_of(const struct ms_part *part)
{
    struct below below = {0};
    struct ms_extent extent;
    size_t at = part->begin;
    while (ms_lineage_next(ms_allocation_lineage(part->allocation), &at, part->end, &extent)) {
        const struct ms_recorded_launch *recorded = extent.content.recorded;
        below.has_sources |= extent.content.kind == MS_SOURCE;
        if (extent.content.kind != MS_LAUNCHED)
            continue;
        below.launches = recorded->depth > below.launches ? recorded->depth : below.launches;
        below.inputs = recorded->input_depth > below.inputs ? recorded->input_depth : below.inputs;
        below.has_sources |= recorded->has_sources;
    }
    return below;
}

static bool add_input(struct ms_recorded_launch *recorded, const struct ms_part *in)
{
    const struct below below = below_of(in);
    const uint32_t depth = 1 + below.launches, input_depth = 1 + below.inputs;
    if (depth > MS_MAX_LAUNCH_DEPTH || input_depth > MS_MAX_INPUT_DEPTH || !can_be_input(in))
        return false;
    struct ms_launch_input *input = recorded->input = ms_heap_zalloc(sizeof(*input));
    if (input == NULL || !extract(in, &input->lineage))
        return false;
    recorded->depth = depth > recorded->depth ? depth : recorded->depth;
    recorded->input_depth =
        input_depth > recorded->input_depth ? input_depth : recorded->input_depth;
    recorded->has_sources |= below.has_sources;
    input->allocation_id = in->allocation->id;
    input->address = in->allocation->address + in->begin;
    return true;
}

struct ms_recorded_launch *ms_recorded_launch_of(const struct ms_part *out,
                                                 const struct ms_part *in)
{
    if (!ms_carve_is_block(out->allocation, out->begin, out->end))
        return NULL;
    const struct below below = below_of(out);
    struct ms_recorded_launch *recorded =
        below.launches < MS_MAX_LAUNCH_DEPTH ? ms_recorded_launch_create() : NULL;
    if (recorded == NULL)
        return NULL;
    recorded->depth = below.launches + 1;
    recorded->input_depth = below.inputs;
    recorded->has_sources = below.has_sources;
    recorded->allocation_id = out->allocation->id;
    recorded->address = out->allocation->address + out->begin;
    recorded->context = out->allocation->context;
    recorded->device = out->allocation->device;
    if ((in == NULL || add_input(recorded, in)) && extract(out, &recorded->before))
        return recorded;
    ms_recorded_launch_drop(recorded);
    return NULL;
}

/* --- copies */

struct copying {
    ms_replace_source *replace;
    void *argument;
};

/* True: the content has got a reference of its own. */
static bool copy_content(struct ms_content *content, const struct copying *copying)
{
    if (content->kind == MS_SOURCE) {
        content->source = copying->replace(content->source, copying->argument);
        return content->source != NULL;
    }
    if (content->kind == MS_LAUNCHED) {
        content->recorded =
            ms_recorded_launch_copy(content->recorded, copying->replace, copying->argument);
        return content->recorded != NULL;
    }
    return content->kind == MS_FILL || ms_content_is_nothing(content);
}

static bool copy_extent(struct ms_lineage *copy, const struct ms_extent *extent,
                        const struct copying *copying)
{
    struct ms_content content = extent->content;
    if (!copy_content(&content, copying))
        return false;
    const bool is_set = ms_lineage_set(copy, extent->begin, extent->end, &content);
    if (content.kind == MS_SOURCE || content.kind == MS_LAUNCHED)
        ms_counted_drop(content.owned);
    return is_set;
}

/* The caller cleans *copy_out up, also after a failure. */
static bool copy_lineage(const struct ms_lineage *lineage, struct ms_lineage *copy_out,
                         const struct copying *copying)
{
    enum { MOST_EXTENTS = 64 };
    bool is_good = lineage->bytes > 0 &&
                   ms_lineage_pieces(lineage, 0, lineage->bytes) <= MOST_EXTENTS &&
                   ms_lineage_init(copy_out, lineage->bytes);
    struct ms_walk walk = {lineage, 0, SIZE_MAX};
    for (const struct ms_extent *extent; is_good && (extent = ms_lineage_walk(&walk)) != NULL;)
        is_good = copy_extent(copy_out, extent, copying);
    return is_good;
}

static bool copy_input(const struct ms_launch_input *input, struct ms_recorded_launch *copy,
                       const struct copying *copying)
{
    copy->input = ms_heap_zalloc(sizeof(*copy->input));
    if (copy->input == NULL)
        return false;
    copy->input->allocation_id = input->allocation_id;
    copy->input->address = input->address;
    copy->input->loads = input->loads;
    copy->input->written_at = input->written_at;
    return copy_lineage(&input->lineage, &copy->input->lineage, copying);
}

struct ms_recorded_launch *ms_recorded_launch_copy(const struct ms_recorded_launch *recorded,
                                                   ms_replace_source *replace, void *argument)
{
    const struct copying copying = {replace, argument};
    struct ms_recorded_launch *copy = ms_recorded_launch_create();
    if (copy == NULL)
        return NULL;
    copy->depth = recorded->depth;
    copy->input_depth = recorded->input_depth;
    copy->only_writes = recorded->only_writes;
    copy->has_sources = recorded->has_sources;
    copy->allocation_id = recorded->allocation_id;
    copy->address = recorded->address;
    copy->context = recorded->context;
    copy->device = recorded->device;
    copy->launch = ms_call_take(recorded->launch);
    if (copy->launch == NULL || !copy_lineage(&recorded->before, &copy->before, &copying) ||
        (recorded->input != NULL && !copy_input(recorded->input, copy, &copying))) {
        ms_recorded_launch_drop(copy);
        return NULL;
    }
    return copy;
}
