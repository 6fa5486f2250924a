/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/shard/tensors_by_size.h"

#include "runtime/plan/layout_sizes.h"
#include "runtime/shard/shard_internal.h"

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

static bool add_rest(uint64_t bytes, const struct ms_ranges *ours, struct ms_ranges *remote)
{
    struct ms_ranges all = {0};
    const bool is_good = ms_ranges_add(&all, 0, bytes) && ms_ranges_subtract(&all, ours, remote);
    ms_ranges_cleanup(&all);
    return is_good;
}

MS_HOLDS(ms_shard.lock) static bool add_declared(uint64_t bytes, struct ms_ranges *remote)
{
    struct ms_ranges ours = {0};
    const bool is_good =
        ms_layout_sizes_local(sized.sizes, ms_shard.sheet.placement, bytes, &ours) &&
        add_rest(bytes, &ours, remote);
    ms_ranges_cleanup(&ours);
    return is_good;
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
    const struct ms_tensor *const tensors[] = {&block.tensor};
    const struct ms_layout_source source = {.tensors = tensors, .count = 1};
    if (!ms_unnamed_block_select_locked(&block, SIZE_MAX) ||
        !ms_sheet_init_locked(&sheet, &source, &fault))
        return false;
    struct ms_layout_sizes *sizes = ms_layout_sizes_create(sheet.layout);
    const bool is_good = sizes != NULL &&
                         ms_layout_sizes_local(sizes, sheet.placement, bytes, &ours) &&
                         add_rest(bytes, &ours, remote);
    ms_layout_sizes_destroy(sizes);
    ms_ranges_cleanup(&ours);
    ms_sheet_cleanup_locked(&sheet);
    return is_good;
}

MS_HOLDS(ms_shard.lock) static bool add_away_locked(uint64_t bytes, struct ms_ranges *remote)
{
    if (!ms_shard_has_sheet_locked() || !follow_sheet())
        return false;
    if (!ms_layout_sizes_has(sized.sizes, bytes))
        return add_by_entry(bytes, remote);
    const struct ms_ranges *known = find_known(bytes);
    return known != NULL ? ms_ranges_add_all(remote, known) : add_declared(bytes, remote);
}

/* Its place in the sequence may decide which tensor of the size it is. */
MS_HOLDS(ms_shard.lock)
static bool add_away_in_locked(const struct ms_sequence *sequence, struct ms_ranges *remote)
{
    const uint64_t bytes = sequence->bytes[sequence->at];
    struct ms_ranges ours = {0};
    if (sequence->count == 1 || !ms_shard_has_sheet_locked() || !follow_sheet() ||
        !ms_layout_sizes_has(sized.sizes, bytes))
        return add_away_locked(bytes, remote);
    const bool is_good =
        ms_layout_sizes_local_in(sized.sizes, ms_shard.sheet.placement, sequence, &ours) &&
        add_rest(bytes, &ours, remote);
    ms_ranges_cleanup(&ours);
    return is_good;
}

bool ms_sized_remote_parts(const struct ms_sequence *sequence, struct ms_ranges *remote)
{
    ms_lock_take(&ms_shard.lock);
    const bool is_good = add_away_in_locked(sequence, remote);
    ms_lock_drop(&ms_shard.lock);
    return is_good;
}
