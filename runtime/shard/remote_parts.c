/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/shard/remote_parts.h"

#include "runtime/config/config.h"
#include "runtime/shard/active_plan.h"
#include "runtime/shard/tensors_by_size.h"

/* True if bytes of a file continue outside: then the range is not a tensor in its place. */
static bool is_cut(const struct ms_extent *extent, size_t begin, size_t end)
{
    return extent->content.kind == MS_SOURCE && (extent->begin < begin || extent->end > end);
}

/* What the extents of a range say about the tensor that will be received there. */
struct findings {
    bool is_cut;  /* the range is no tensor in its place */
    bool is_open; /* they say nothing */
    struct ms_ranges remote, copies;
};

/* Received bytes say nothing: in reused memory, they may be another tensor's. */
static bool is_known(const struct ms_content *content)
{
    return content->kind != MS_ABSENT && content->locality != MS_UNKNOWN;
}

/* Returns false if out of memory. */
static bool look_at(const struct ms_lineage *lineage, size_t begin, size_t end,
                    struct findings *found)
{
    bool is_good = true;
    *found = (struct findings){.is_open = true};
    for (size_t i = ms_lineage_index(lineage, begin);
         is_good && i < lineage->count && lineage->extents[i].begin < end; i++) {
        const struct ms_extent *extent = &lineage->extents[i];
        const struct ms_content *content = &extent->content;
        const size_t from = extent->begin > begin ? extent->begin : begin;
        const size_t to = extent->end < end ? extent->end : end;
        found->is_cut |= is_cut(extent, begin, end);
        found->is_open &= !is_known(content);
        if (content->is_remote_copy)
            is_good = ms_ranges_add(&found->copies, from, to);
        else if (is_known(content) && content->locality == MS_REMOTE)
            is_good = ms_ranges_add(&found->remote, from, to);
    }
    return is_good;
}

static bool list_sized(size_t begin, const struct ms_sequence *sequence, struct ms_ranges *remote)
{
    const size_t first = remote->count;
    if (!ms_sized_remote_parts(sequence, remote))
        return false;
    for (size_t i = first; i < remote->count; i++) {
        remote->list[i].begin += begin;
        remote->list[i].end += begin;
    }
    return true;
}

/* Adds what is in both, which are sorted. */
static bool add_common(const struct ms_ranges *left, const struct ms_ranges *right,
                       struct ms_ranges *both)
{
    struct ms_ranges only = {0};
    const bool is_good =
        ms_ranges_subtract(left, right, &only) && ms_ranges_subtract(left, &only, both);
    ms_ranges_cleanup(&only);
    return is_good;
}

/*
 * Adds what the tensor's content says is remote, or what its size says if the content says nothing;
 * and what was copied here from remote bytes. Those may be another tensor's that lay here, so next
 * to the size, only bytes that are remote by both are added.
 */
static bool add_found(size_t begin, const struct ms_sequence *sequence, struct findings *found,
                      struct ms_ranges *remote_parts)
{
    const bool is_sized = found->is_open && list_sized(begin, sequence, &found->remote);
    if (is_sized && found->copies.count > 0)
        return add_common(&found->remote, &found->copies, remote_parts);
    const bool is_good = ms_ranges_add_all(remote_parts, &found->remote) &&
                         ms_ranges_add_all(remote_parts, &found->copies);
    ms_ranges_sort(remote_parts);
    return is_good;
}

bool ms_list_remote_parts(struct ms_allocation *allocation, size_t begin, size_t bytes,
                          const struct ms_sequence *sequence, struct ms_ranges *remote_parts)
{
    const struct ms_sequence alone = {.bytes = &bytes, .count = 1};
    const size_t end = begin + bytes;
    struct findings found = {0};
    if (!ms_config.receive_parts || !ms_shard_is_active())
        return true;
    ms_shard_query_placement(allocation, begin, end);
    if (ms_shard_named_remote_parts(allocation, begin, end, remote_parts))
        return true;
    bool is_good = look_at(&allocation->lineage, begin, end, &found);
    if (is_good && !found.is_cut)
        is_good = add_found(begin, sequence != NULL ? sequence : &alone, &found, remote_parts);
    ms_ranges_cleanup(&found.remote);
    ms_ranges_cleanup(&found.copies);
    return is_good;
}
