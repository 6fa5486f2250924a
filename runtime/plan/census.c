/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/plan/census.h"

#include <string.h>

#include "runtime/base/heap.h"
#include "runtime/plan/plan_internal.h"

/* Coordinates from begin on (up to the next run's) that get `length`. */
struct run {
    uint32_t begin;
    uint64_t length;
};

enum { RUNS_MAX = 2 * MS_PARTS_MAX + 2 };

/* One cut's runs, and where the walk over all combinations stands in them. */
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

/* Of one part: full chunks, then what is left, then nothing. */
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

/* Adds amount to all ranks of the box that the walk stands in, as differences: 2 corners for each
 * mesh dimension, less those beyond the mesh. */
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

/* One leaf of the walk: all cuts have a run. */
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

/* Every combination of runs, without recursion: down while there are cuts, then to the next run. */
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
    const struct ms_entry *entry = layout->bound[tensor].entry;
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

static bool is_fsdp1(const struct ms_entry *entry)
{
    return entry != NULL && entry->cut_count > 0 &&
           entry->cuts[entry->cut_count - 1].kind == MS_CUT_FSDP1;
}

/* Bytes of one explicit entry, as differences in the outermost-to-innermost order of sum_up: each
 * rank is a box of its own, so they are kept apart. */
static void add_ranges(uint64_t *sums, const struct ms_entry *entry, uint32_t world)
{
    for (uint32_t rank = 0; rank < world; rank++) {
        for (const struct ms_range *at = entry->ranges[rank]; at < entry->ranges[rank + 1]; at++)
            sums[rank] += at->end - at->begin;
    }
}

/* `sizes`, by rank: elements of the unit before its flat cut. */
static void add_unit(struct ms_census *census, const struct ms_mesh *mesh, unsigned dim,
                     uint64_t element_bytes, const uint64_t *sizes, uint64_t *bytes)
{
    for (uint32_t rank = 0; rank < mesh->world; rank++) {
        const struct ms_range kept =
            ms_chunk_of(sizes[rank], mesh->size[dim], ms_mesh_coordinate(mesh, rank, dim));
        bytes[rank] += (kept.end - kept.begin) * element_bytes;
        census->padding[rank] +=
            (ms_chunk(sizes[rank], mesh->size[dim]) - (kept.end - kept.begin)) * element_bytes;
    }
}

/* Tensors of a unit next to each other. */
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

/* Sets the size before the flat cut of a unit that nothing else cuts: it is the same for all ranks. */
static bool is_uncut(const struct ms_layout *layout, const size_t *members, size_t count,
                     uint64_t *size_out)
{
    *size_out = 0;
    for (size_t i = 0; i < count; i++) {
        if (layout->bound[members[i]].entry->cut_count > 1)
            return false;
        *size_out += layout->tensors[members[i]]->elements;
    }
    return true;
}

/* As one flat tensor. */
static void add_uncut(struct ms_census *census, const struct ms_layout *layout,
                      const struct ms_unit *unit, uint64_t elements, struct walk *walk)
{
    const struct ms_cut cut = {.kind = MS_CUT_ZERO3, .mesh_dim = unit->mesh_dim};
    const struct ms_tensor tensor = {.dims = 1,
                                     .shape = {elements},
                                     .dtype = layout->tensors[unit->first]->dtype};
    walk->mesh = &layout->plan->mesh;
    walk->tensor = &tensor;
    walk->cut_count = 1;
    walk->cuts = &cut;
    walk->lengths[0] = elements;
    walk_all(census, walk);
}

static void add_units(struct ms_census *census, const struct ms_layout *layout,
                      const size_t *members, const size_t *begins, uint64_t *sizes, uint64_t *apart,
                      struct walk *walk)
{
    const struct ms_mesh *mesh = &layout->plan->mesh;
    for (size_t unit = 0; unit < layout->unit_count; unit++) {
        const unsigned bits = ms_dtype_bits[layout->tensors[layout->units[unit].first]->dtype];
        struct ms_census sum = {.bytes = sizes};
        uint64_t elements;
        if (is_uncut(layout, members + begins[unit], begins[unit + 1] - begins[unit], &elements))
            continue;
        memset(sizes, 0, mesh->world * sizeof(*sizes));
        for (size_t i = begins[unit]; i < begins[unit + 1]; i++) {
            walk_init(walk, layout, members[i]);
            walk->cut_count--;
            walk_all(&sum, walk);
        }
        sum_up(sizes, mesh);
        for (uint32_t rank = 0; rank < mesh->world; rank++)
            sizes[rank] /= bits / 8;
        add_unit(census, mesh, layout->units[unit].mesh_dim, bits / 8, sizes, apart);
    }
}

bool ms_census_init(struct ms_census *census, const struct ms_layout *layout)
{
    const struct ms_mesh *mesh = &layout->plan->mesh;
    const size_t world = mesh->world;
    *census = (struct ms_census){.world = mesh->world,
                                 .bytes = ms_heap_zalloc(world * sizeof(uint64_t)),
                                 .padding = ms_heap_zalloc(world * sizeof(uint64_t))};
    uint64_t *sizes = ms_heap_zalloc(world * sizeof(*sizes));
    uint64_t *apart = ms_heap_zalloc(world * sizeof(*apart)); /* what is no difference */
    struct walk *walk = ms_heap_alloc(sizeof(*walk));
    size_t *members = NULL, *begins = NULL;
    bool is_good = false;
    if (census->bytes == NULL || census->padding == NULL || sizes == NULL || apart == NULL ||
        walk == NULL || !group_units(layout, &members, &begins))
        goto out;
    for (size_t i = 0; i < layout->count; i++) {
        const struct ms_entry *entry = layout->bound[i].entry;
        walk_init(walk, layout, i);
        if (entry != NULL && entry->ranges != NULL)
            add_ranges(apart, entry, mesh->world);
        else if (walk->cut_count == 0) /* elements may be smaller than a byte */
            census->bytes[0] += walk->tensor->bytes;
        else if (!is_fsdp1(entry))
            walk_all(census, walk);
    }
    for (size_t unit = 0; unit < layout->unit_count; unit++) {
        uint64_t elements;
        if (is_uncut(layout, members + begins[unit], begins[unit + 1] - begins[unit], &elements))
            add_uncut(census, layout, &layout->units[unit], elements, walk);
    }
    sum_up(census->bytes, mesh);
    sum_up(census->padding, mesh);
    add_units(census, layout, members, begins, sizes, apart, walk);
    for (size_t rank = 0; rank < world; rank++)
        census->bytes[rank] += apart[rank];
    is_good = true;
out:
    ms_heap_free(sizes);
    ms_heap_free(apart);
    ms_heap_free(walk);
    ms_heap_free(members);
    ms_heap_free(begins);
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
