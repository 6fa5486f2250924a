/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/shard/remote_parts.h"

#include "runtime/config/config.h"
#include "runtime/plan/layout_sizes.h"
#include "runtime/shard/shard_internal.h"

/*
 * --- by the size alone: what a rank keeps of any tensor of so many bytes that the plan declares,
 * or that an entry without a name and an order selects. Programs that get their tensors from
 * another rank have no file that would identify them.
 */

enum { MAX_KNOWN = 64 };

static struct {
    uint64_t version; /* of the sheet that all this comes from; 0: none */
    struct ms_layout_sizes *sizes;
    size_t count; /* sizes that do not fit are found anew each time */
    struct {
        uint64_t bytes;
        struct ms_ranges remote;
    } known[MAX_KNOWN];
} sized MS_GUARDED_BY(ms_shard.lock);

MS_HOLDS(ms_shard.lock) static bool follow_sheet(void)
{
    if (sized.version == ms_shard.sheet.version)
        return true;
    while (sized.count > 0)
        ms_ranges_cleanup(&sized.known[--sized.count].remote);
    ms_layout_sizes_destroy(sized.sizes);
    sized.sizes = ms_layout_sizes_create(ms_shard.sheet.layout);
    sized.version = sized.sizes != NULL ? ms_shard.sheet.version : 0;
    return sized.sizes != NULL;
}

/* Adds the others of `bytes` bytes, if `ours` was found; frees that. */
static bool add_rest(uint64_t bytes, bool is_found, struct ms_ranges *ours,
                     struct ms_ranges *remote)
{
    struct ms_ranges all = {0};
    const bool is_good =
        is_found && ms_ranges_add(&all, 0, bytes) && ms_ranges_subtract(&all, ours, remote);
    ms_ranges_cleanup(&all);
    ms_ranges_cleanup(ours);
    return is_good;
}

MS_HOLDS(ms_shard.lock) static bool add_declared(uint64_t bytes, struct ms_ranges *remote)
{
    struct ms_ranges ours = {0};
    const bool is_found =
        ms_layout_sizes_local(sized.sizes, ms_shard.sheet.placement, bytes, &ours);
    return add_rest(bytes, is_found, &ours, remote);
}

/* Returns NULL if the table is full, or out of memory. */
MS_HOLDS(ms_shard.lock) static const struct ms_ranges *find_known(uint64_t bytes)
{
    for (size_t i = 0; i < sized.count; i++) {
        if (sized.known[i].bytes == bytes)
            return &sized.known[i].remote;
    }
    if (sized.count == MAX_KNOWN)
        return NULL;
    struct ms_ranges remote = {0};
    if (!add_declared(bytes, &remote)) {
        ms_ranges_cleanup(&remote);
        return NULL;
    }
    sized.known[sized.count].bytes = bytes;
    sized.known[sized.count].remote = remote;
    return &sized.known[sized.count++].remote;
}

/* For a tensor that the plan does not declare, but that an entry may select by size. */
MS_HOLDS(ms_shard.lock) static bool add_by_entry(uint64_t bytes, struct ms_ranges *remote)
{
    struct ms_unnamed_block block = {.end = bytes};
    struct ms_sheet sheet = {0};
    struct ms_fault fault;
    struct ms_ranges ours = {0};
    const struct ms_layout_source source = {.at = ms_unnamed_block_tensor,
                                            .context = &block,
                                            .count = 1};
    if (!ms_unnamed_block_select_locked(&block, SIZE_MAX) ||
        !ms_sheet_init_locked(&sheet, &source, &fault))
        return false;
    struct ms_layout_sizes *sizes = ms_layout_sizes_create(sheet.layout);
    const bool is_found =
        sizes != NULL && ms_layout_sizes_local(sizes, sheet.placement, bytes, &ours);
    ms_layout_sizes_destroy(sizes);
    ms_sheet_cleanup_locked(&sheet);
    return add_rest(bytes, is_found, &ours, remote);
}

MS_HOLDS(ms_shard.lock)
static bool add_sized_locked(const struct ms_sequence *sequence, struct ms_ranges *remote)
{
    const uint64_t bytes = sequence->bytes[sequence->at];
    struct ms_ranges ours = {0};
    if (!ms_shard_has_sheet_locked() || !follow_sheet())
        return false;
    if (!ms_layout_sizes_has(sized.sizes, bytes))
        return add_by_entry(bytes, remote);
    if (sequence->count > 1) { /* its place there may decide which tensor of the size it is */
        const bool is_found =
            ms_layout_sizes_local_in(sized.sizes, ms_shard.sheet.placement, sequence, &ours);
        return add_rest(bytes, is_found, &ours, remote);
    }
    const struct ms_ranges *known = find_known(bytes);
    return known != NULL ? ms_ranges_add_all(remote, known) : add_declared(bytes, remote);
}

/* --- by the content */

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
    struct ms_walk walk = ms_walk_begin(lineage, begin, end);
    for (const struct ms_extent *extent; is_good && (extent = ms_walk_next(&walk)) != NULL;) {
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

/*
 * Adds the bytes, from `begin` on, that are remote for the tensor in the sequence's turn. If the
 * plan has several tensors of that size, only bytes that are remote in all of them that it can be.
 * Returns false if the active plan has none of that size, or out of memory.
 */
static bool list_sized(size_t begin, const struct ms_sequence *sequence, struct ms_ranges *remote)
{
    const size_t first = remote->count;
    ms_lock_take(&ms_shard.lock);
    const bool is_good = add_sized_locked(sequence, remote);
    ms_lock_drop(&ms_shard.lock);
    for (size_t i = first; i < remote->count && is_good; i++) {
        remote->list[i].begin += begin;
        remote->list[i].end += begin;
    }
    return is_good;
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
