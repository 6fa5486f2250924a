/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/plan/census.h"

#include <string.h>

#include "runtime/base/heap.h"
#include "runtime/plan/plan_internal.h"

/* Coordinates from begin to the next run's that get `length`. */
struct run {
    uint32_t begin;
    uint64_t length;
};

enum { RUNS_MAX = 2 * MS_PARTS_MAX + 2 };

/* One cut's runs, and the current one (`at`) in the walk over all combinations. */
struct level {
    unsigned mesh_dim, count, at;
    uint64_t before; /* elements or indices of the axis when this level began */
    struct run runs[RUNS_MAX];
};

struct walk {
    const struct ms_mesh *mesh;
    const struct ms_tensor *tensor;
    unsigned cut_count;
    const struct ms_cut *cuts;
    uint64_t lengths[MS_TENSOR_DIMS_MAX];
    struct level levels[MS_MESH_DIMS_MAX];
};

static void add_begin(struct level *level, uint64_t begin, uint32_t ranks)
{
    if (begin >= ranks)
        return;
    unsigned i = level->count;
    while (i > 0 && level->runs[i - 1].begin > begin)
        i--;
    if (i > 0 && level->runs[i - 1].begin == begin)
        return;
    memmove(&level->runs[i + 1], &level->runs[i], (level->count - i) * sizeof(struct run));
    level->runs[i].begin = (uint32_t)begin;
    level->count++;
}

/* Adds the runs of one part: full chunks, then the rest, then nothing. */
static void add_part(struct level *level, uint64_t count, uint32_t ranks)
{
    const uint64_t chunk = ms_chunk(count, ranks);
    if (chunk == 0)
        return;
    add_begin(level, count / chunk, ranks);
    add_begin(level, count / chunk + 1, ranks);
}

static uint64_t part_at(const struct ms_cut *cut, uint64_t count, unsigned part)
{
    return cut->part_count == 0 ? count : cut->parts[part] * (count / cut->part_sum);
}

static uint64_t walk_elements(const struct walk *walk)
{
    uint64_t elements = 1;
    for (unsigned i = 0; i < walk->tensor->dims; i++)
        elements *= walk->lengths[i];
    return elements;
}

static void level_begin(struct walk *walk, unsigned depth)
{
    const struct ms_cut *cut = &walk->cuts[depth];
    struct level *level = &walk->levels[depth];
    const uint32_t ranks = walk->mesh->size[cut->mesh_dim];
    const unsigned parts = cut->part_count > 0 ? cut->part_count : 1;
    level->mesh_dim = cut->mesh_dim;
    level->before = cut->kind == MS_CUT_SHARD ? walk->lengths[cut->dim] : walk_elements(walk);
    level->count = 0;
    level->at = 0;
    add_begin(level, 0, ranks);
    for (unsigned i = 0; i < parts; i++)
        add_part(level, part_at(cut, level->before, i), ranks);
    for (unsigned i = 0; i < level->count; i++) {
        level->runs[i].length = 0;
        for (unsigned j = 0; j < parts; j++) {
            const struct ms_range kept =
                ms_chunk_of(part_at(cut, level->before, j), ranks, level->runs[i].begin);
            level->runs[i].length += kept.end - kept.begin;
        }
    }
}

/* Adds amount to all ranks of the walk's current box, as differences: 2 corners for each mesh
 * dimension, except those beyond the mesh. */
static void add_box(uint64_t *sums, const struct walk *walk, unsigned depth, uint64_t amount)
{
    size_t corners[1 << MS_MESH_DIMS_MAX] = {0};
    bool is_negative[1 << MS_MESH_DIMS_MAX] = {false};
    unsigned count = 1;
    for (unsigned i = 0; i < depth; i++) {
        const struct level *level = &walk->levels[i];
        const size_t stride = walk->mesh->stride[level->mesh_dim];
        const size_t low = level->runs[level->at].begin * stride;
        const bool has_end = level->at + 1 < level->count;
        for (unsigned j = 0; j < count && has_end; j++) {
            corners[count + j] = corners[j] + level->runs[level->at + 1].begin * stride;
            is_negative[count + j] = !is_negative[j];
        }
        for (unsigned j = 0; j < count; j++)
            corners[j] += low;
        count *= has_end ? 2 : 1;
    }
    for (unsigned i = 0; i < count; i++)
        sums[corners[i]] += is_negative[i] ? -amount : amount;
}

/* Adds a leaf of the walk, where all cuts have a run. */
static void add_leaf(struct ms_census *census, const struct walk *walk)
{
    const unsigned depth = walk->cut_count;
    const uint64_t element_bytes = ms_dtype_bits[walk->tensor->dtype] / 8;
    const bool is_flat = depth > 0 && walk->cuts[depth - 1].kind == MS_CUT_ZERO3;
    if (!is_flat) {
        add_box(census->bytes, walk, depth, walk_elements(walk) * element_bytes);
        return;
    }
    const struct level *last = &walk->levels[depth - 1];
    const uint64_t kept = last->runs[last->at].length;
    const uint64_t chunk = ms_chunk(last->before, walk->mesh->size[last->mesh_dim]);
    add_box(census->bytes, walk, depth, kept * element_bytes);
    add_box(census->padding, walk, depth, (chunk - kept) * element_bytes);
}

static void level_use(struct walk *walk, unsigned depth)
{
    const struct ms_cut *cut = &walk->cuts[depth];
    const struct level *level = &walk->levels[depth];
    if (cut->kind == MS_CUT_SHARD)
        walk->lengths[cut->dim] = level->runs[level->at].length;
}

/* Visits all combinations of runs without recursion: down all cuts, then to the next run. */
static void walk_all(struct ms_census *census, struct walk *walk)
{
    unsigned depth = 0;
    for (;;) {
        for (; depth < walk->cut_count; depth++) {
            level_begin(walk, depth);
            level_use(walk, depth);
        }
        add_leaf(census, walk);
        while (depth > 0 && ++walk->levels[depth - 1].at == walk->levels[depth - 1].count) {
            depth--;
            if (walk->cuts[depth].kind == MS_CUT_SHARD)
                walk->lengths[walk->cuts[depth].dim] = walk->levels[depth].before;
        }
        if (depth == 0)
            return;
        level_use(walk, depth - 1);
    }
}

static void walk_init(struct walk *walk, const struct ms_layout *layout, size_t tensor)
{
    const struct ms_plan_entry *entry = layout->bound[tensor].entry;
    walk->mesh = &layout->plan->mesh;
    walk->tensor = layout->tensors[tensor];
    walk->cut_count = entry != NULL ? entry->cut_count : 0;
    walk->cuts = entry != NULL ? entry->cuts : NULL;
    memcpy(walk->lengths, walk->tensor->shape, sizeof(walk->lengths));
}

/* From differences to sums, along each mesh dimension. */
static void sum_up(uint64_t *sums, const struct ms_mesh *mesh)
{
    for (unsigned dim = 0; dim < mesh->dims; dim++) {
        for (uint32_t rank = 0; rank < mesh->world; rank++) {
            if (ms_mesh_coordinate(mesh, rank, dim) > 0)
                sums[rank] += sums[rank - mesh->stride[dim]];
        }
    }
}

static bool is_fsdp1(const struct ms_plan_entry *entry)
{
    return entry != NULL && entry->cut_count > 0 &&
           entry->cuts[entry->cut_count - 1].kind == MS_CUT_FSDP1;
}

/* Adds the ranges of an entry that decides `times` tensors: by rank, not as differences. */
static void add_ranges(uint64_t *bytes, const struct ms_plan_entry *entry, uint64_t times,
                       uint32_t world)
{
    for (uint32_t rank = 0; rank < world; rank++) {
        for (const struct ms_range *at = entry->ranges[rank]; at < entry->ranges[rank + 1]; at++)
            bytes[rank] += times * (at->end - at->begin);
    }
}

static bool add_all_ranges(struct ms_census *census, const struct ms_layout *layout)
{
    const struct ms_plan *plan = layout->plan;
    uint64_t *times = ms_heap_zalloc((plan->count + 1) * sizeof(*times)); /* by entry */
    if (times == NULL)
        return false;
    for (size_t i = 0; i < layout->count; i++) {
        if (layout->bound[i].entry != NULL)
            times[layout->bound[i].entry - plan->entries]++;
    }
    for (size_t i = 0; i < plan->count; i++) {
        if (plan->entries[i].ranges != NULL && times[i] > 0)
            add_ranges(census->bytes, &plan->entries[i], times[i], census->world);
    }
    ms_heap_free(times);
    return true;
}

/* Lists tensors by unit: unit i has members[begins[i]] to members[begins[i + 1] - 1]. */
static bool group_units(const struct ms_layout *layout, size_t **members_out, size_t **begins_out)
{
    size_t *begins = ms_heap_zalloc((layout->unit_count + 2) * sizeof(*begins));
    size_t *members = ms_heap_alloc((layout->count + 1) * sizeof(*members));
    *members_out = members;
    *begins_out = begins;
    if (begins == NULL || members == NULL)
        return false;
    for (size_t i = 0; i < layout->count; i++) {
        if (is_fsdp1(layout->bound[i].entry))
            begins[layout->bound[i].unit + 2]++;
    }
    for (size_t i = 2; i < layout->unit_count + 2; i++)
        begins[i] += begins[i - 1];
    for (size_t i = 0; i < layout->count; i++) {
        if (is_fsdp1(layout->bound[i].entry))
            members[begins[layout->bound[i].unit + 1]++] = i;
    }
    return true;
}

/* Returns the mesh with one rank along each dimension that shards no tensor of the unit. */
static struct ms_mesh mesh_of_shards(const struct ms_layout *layout, const size_t *members,
                                     size_t count)
{
    struct ms_mesh mesh = layout->plan->mesh;
    bool is_used[MS_MESH_DIMS_MAX] = {false};
    for (size_t i = 0; i < count; i++) {
        const struct ms_plan_entry *entry = layout->bound[members[i]].entry;
        for (unsigned j = 0; j + 1 < entry->cut_count; j++)
            is_used[entry->cuts[j].mesh_dim] = true;
    }
    for (unsigned dim = 0; dim < mesh.dims; dim++) {
        if (!is_used[dim])
            mesh.size[dim] = 1;
    }
    ms_mesh_number(&mesh);
    return mesh;
}

/* Sets the bytes of a unit before its flat cut, by rank of `shards`. */
static void unit_sizes(const struct ms_layout *layout, const struct ms_mesh *shards,
                       const size_t *members, size_t count, uint64_t *sizes, struct walk *walk)
{
    struct ms_census sum = {.bytes = sizes};
    memset(sizes, 0, shards->world * sizeof(*sizes));
    for (size_t i = 0; i < count; i++) {
        walk_init(walk, layout, members[i]);
        walk->mesh = shards;
        walk->cut_count--;
        walk_all(&sum, walk);
    }
    sum_up(sizes, shards);
}

/* Sets the walk's box: ranks [begin, end) of `shards`, which differ only in their last dimension,
 * and all ranks along dimensions that shard nothing. Returns the number of its levels. */
static unsigned stand_in(struct walk *walk, const struct ms_mesh *shards, uint32_t begin,
                         uint32_t end)
{
    unsigned depth = 0;
    for (unsigned dim = 0; dim < shards->dims; dim++) {
        if (shards->size[dim] == 1)
            continue;
        const uint32_t first = ms_mesh_coordinate(shards, begin, dim);
        const uint32_t behind = ms_mesh_coordinate(shards, end - 1, dim) + 1;
        walk->levels[depth++] = (struct level){.mesh_dim = dim,
                                               .count = behind < shards->size[dim] ? 2 : 1,
                                               .runs = {{.begin = first}, {.begin = behind}}};
    }
    return depth;
}

/* Adds the flat cut of a unit: for ranks where the unit has one size, it is one flat tensor. */
static void add_unit(struct ms_census *census, const struct ms_layout *layout,
                     const struct ms_unit *unit, const struct ms_mesh *shards,
                     const uint64_t *sizes, struct walk *walk)
{
    struct ms_tensor flat = {.dims = 1, .dtype = layout->tensors[unit->first]->dtype};
    struct ms_cut cuts[MS_MESH_DIMS_MAX] = {0};
    uint32_t row = 1; /* ranks of `shards` along its last dimension */
    for (unsigned dim = shards->dims; dim-- > 0 && row == 1;)
        row = shards->size[dim];
    for (uint32_t begin = 0, end; begin < shards->world; begin = end) {
        for (end = begin + 1; end % row != 0 && sizes[end] == sizes[begin];)
            end++;
        const unsigned depth = stand_in(walk, shards, begin, end);
        flat.shape[0] = sizes[begin] / (ms_dtype_bits[flat.dtype] / 8);
        cuts[depth] = (struct ms_cut){.kind = MS_CUT_ZERO3, .mesh_dim = unit->mesh_dim};
        walk->mesh = &layout->plan->mesh;
        walk->tensor = &flat;
        walk->cuts = cuts;
        walk->cut_count = depth + 1;
        walk->lengths[0] = flat.shape[0];
        level_begin(walk, depth);
        for (; walk->levels[depth].at < walk->levels[depth].count; walk->levels[depth].at++)
            add_leaf(census, walk);
    }
}

static bool add_units(struct ms_census *census, const struct ms_layout *layout, struct walk *walk)
{
    size_t *members = NULL, *begins = NULL;
    uint64_t *sizes = ms_heap_alloc(census->world * sizeof(*sizes));
    const bool is_good = group_units(layout, &members, &begins) && sizes != NULL;
    for (size_t i = 0; i < layout->unit_count && is_good; i++) {
        const size_t *of_unit = members + begins[i], count = begins[i + 1] - begins[i];
        const struct ms_mesh shards = mesh_of_shards(layout, of_unit, count);
        unit_sizes(layout, &shards, of_unit, count, sizes, walk);
        add_unit(census, layout, &layout->units[i], &shards, sizes, walk);
    }
    ms_heap_free(sizes);
    ms_heap_free(members);
    ms_heap_free(begins);
    return is_good;
}

bool ms_census_init(struct ms_census *census, const struct ms_layout *layout)
{
    const struct ms_mesh *mesh = &layout->plan->mesh;
    const size_t world = mesh->world;
    *census = (struct ms_census){.world = mesh->world,
                                 .bytes = ms_heap_zalloc(world * sizeof(uint64_t)),
                                 .padding = ms_heap_zalloc(world * sizeof(uint64_t))};
    struct walk *walk = ms_heap_alloc(sizeof(*walk));
    bool is_good = census->bytes != NULL && census->padding != NULL && walk != NULL;
    for (size_t i = 0; i < layout->count && is_good; i++) {
        const struct ms_plan_entry *entry = layout->bound[i].entry;
        if (is_fsdp1(entry) || (entry != NULL && entry->ranges != NULL))
            continue;
        walk_init(walk, layout, i);
        if (walk->cut_count == 0) /* elements may be smaller than a byte */
            census->bytes[0] += walk->tensor->bytes;
        else
            walk_all(census, walk);
    }
    is_good = is_good && add_units(census, layout, walk);
    if (is_good) {
        sum_up(census->bytes, mesh);
        sum_up(census->padding, mesh);
        is_good = add_all_ranges(census, layout);
    }
    ms_heap_free(walk);
    if (!is_good)
        ms_census_cleanup(census);
    return is_good;
}

void ms_census_cleanup(struct ms_census *census)
{
    ms_heap_free(census->bytes);
    ms_heap_free(census->padding);
    census->bytes = census->padding = NULL;
}
