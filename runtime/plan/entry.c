/* SPDX-License-Identifier: Apache-2.0 */
/* Placements and explicit ranges of an entry. */
#include "runtime/plan/plan_internal.h"

#include <string.h>

static bool parse_parts(const struct ms_fault_context *reading, const struct ms_place *place,
                        json_t *value, struct ms_plan *plan, struct ms_cut *cut)
{
    const size_t count = json_array_size(value);
    if (count < 1 || count > MS_PARTS_MAX)
        return ms_fault_at(reading, place, "expected a list of 1 to 64 integers");
    uint64_t *parts = ms_arena_take(&plan->arena, count, sizeof(*parts));
    if (parts == NULL)
        return ms_fault_at(reading, place, "out of memory");
    for (size_t i = 0; i < count; i++) {
        const struct ms_place at = {place, NULL, i};
        if (!ms_json_count(reading, &at, json_array_get(value, i), 1, INT64_MAX, &parts[i]))
            return false;
        if (__builtin_add_overflow(cut->part_sum, parts[i], &cut->part_sum) ||
            cut->part_sum > INT64_MAX)
            return ms_fault_at(reading, &at, "expected a sum below 2^63");
    }
    cut->parts = parts;
    cut->part_count = (unsigned)count;
    return true;
}

static bool parse_shard(const struct ms_fault_context *reading, const struct ms_place *place,
                        json_t *value, struct ms_plan *plan, struct ms_cut *cut)
{
    static const char *const keys[] = {"shard", "interleave", NULL};
    if (!ms_json_keys(reading, place, value, keys, "shard and interleave"))
        return false;
    json_t *parts = json_object_get(value, "interleave");
    const struct ms_place at_dim = {place, "shard", 0}, at_parts = {place, "interleave", 0};
    uint64_t dim;
    if (!ms_json_count(reading, &at_dim, json_object_get(value, "shard"), 0, MS_TENSOR_DIMS_MAX - 1,
                       &dim))
        return false;
    cut->kind = MS_CUT_SHARD;
    cut->dim = (unsigned)dim;
    return parts == NULL || parse_parts(reading, &at_parts, parts, plan, cut);
}

static bool parse_flat(const struct ms_fault_context *reading, const struct ms_place *place,
                       json_t *value, struct ms_plan *plan, struct ms_cut *cut)
{
    static const char *const keys[] = {"flat", "unit", NULL};
    if (!ms_json_keys(reading, place, value, keys, "flat and unit"))
        return false;
    const char *flat = json_string_value(json_object_get(value, "flat"));
    json_t *unit = json_object_get(value, "unit");
    const struct ms_place at_flat = {place, "flat", 0}, at_unit = {place, "unit", 0};
    if (flat == NULL || (strcmp(flat, "zero3") != 0 && strcmp(flat, "fsdp1") != 0))
        return ms_fault_at(reading, &at_flat, "expected \"zero3\" or \"fsdp1\"");
    cut->kind = strcmp(flat, "zero3") == 0 ? MS_CUT_ZERO3 : MS_CUT_FSDP1;
    if (cut->kind == MS_CUT_ZERO3)
        return unit == NULL || ms_fault_at(reading, &at_unit, "expected no unit beside \"zero3\"");
    if (json_string_length(unit) == 0)
        return ms_fault_at(reading, &at_unit, "expected the name of a unit");
    cut->unit = ms_arena_string(&plan->arena, json_string_value(unit), json_string_length(unit));
    return cut->unit != NULL || ms_fault_at(reading, &at_unit, "out of memory");
}

/* Adds nothing for "replicate". */
static bool parse_cut(const struct ms_fault_context *reading, const struct ms_place *place,
                      json_t *value, struct ms_plan *plan, struct ms_plan_entry *entry,
                      unsigned mesh_dim)
{
    const char *word = json_string_value(value);
    if (word != NULL && strcmp(word, "replicate") == 0)
        return true;
    struct ms_cut *cut = &entry->cuts[entry->cut_count++];
    *cut = (struct ms_cut){.mesh_dim = mesh_dim};
    if (json_object_get(value, "shard") != NULL)
        return parse_shard(reading, place, value, plan, cut);
    if (json_object_get(value, "flat") != NULL)
        return parse_flat(reading, place, value, plan, cut);
    return ms_fault_at(reading, place,
                       "expected \"replicate\", {\"shard\": dimension} or {\"flat\": \"zero3\"}");
}

static bool find_mesh_dim(const struct ms_mesh *mesh, const char *name, unsigned *dim_out)
{
    for (unsigned i = 0; i < mesh->dims; i++) {
        if (strcmp(mesh->name[i], name) == 0) {
            *dim_out = i;
            return true;
        }
    }
    return false;
}

static bool parse_by_name(const struct ms_fault_context *reading, const struct ms_place *place,
                          json_t *object, struct ms_plan *plan, struct ms_plan_entry *entry)
{
    const char *key;
    json_t *value;
    json_object_foreach(object, key, value)
    {
        const struct ms_place at = {place, key, 0};
        unsigned dim;
        if (!find_mesh_dim(&plan->mesh, key, &dim))
            return ms_fault_at(reading, &at, "expected the name of a mesh dimension");
        if (!parse_cut(reading, &at, value, plan, entry, dim))
            return false;
    }
    return true;
}

static bool parse_in_order(const struct ms_fault_context *reading, const struct ms_place *place,
                           json_t *list, struct ms_plan *plan, struct ms_plan_entry *entry)
{
    if (json_array_size(list) > plan->mesh.dims)
        return ms_fault_at(reading, place, "expected at most %u placements, one per mesh dimension",
                           plan->mesh.dims);
    for (unsigned i = 0; i < json_array_size(list); i++) {
        const struct ms_place at = {place, NULL, i};
        if (!parse_cut(reading, &at, json_array_get(list, i), plan, entry, i))
            return false;
    }
    return true;
}

/* Moves the flat cut to the end. An interleave must be the first cut of its dimension. */
static bool order_cuts(const struct ms_fault_context *reading, const struct ms_place *place,
                       struct ms_plan_entry *entry)
{
    unsigned flat = entry->cut_count;
    for (unsigned i = 0; i < entry->cut_count; i++) {
        const struct ms_cut *cut = &entry->cuts[i];
        if (cut->kind != MS_CUT_SHARD && flat != entry->cut_count)
            return ms_fault_at(reading, place, "expected at most one flat placement");
        if (cut->kind != MS_CUT_SHARD)
            flat = i;
        for (unsigned j = 0; j < i && cut->part_count > 0; j++) {
            if (entry->cuts[j].kind == MS_CUT_SHARD && entry->cuts[j].dim == cut->dim)
                return ms_fault_at(reading, place,
                                   "expected interleave to be the first that shards dimension %u",
                                   cut->dim);
        }
    }
    if (flat == entry->cut_count)
        return true;
    const struct ms_cut last = entry->cuts[flat];
    memmove(&entry->cuts[flat], &entry->cuts[flat + 1],
            (entry->cut_count - flat - 1) * sizeof(last));
    entry->cuts[entry->cut_count - 1] = last;
    return true;
}

bool ms_placements_parse(const struct ms_fault_context *reading, const struct ms_place *place,
                         json_t *value, struct ms_plan *plan, struct ms_plan_entry *entry)
{
    if (!json_is_array(value) && !json_is_object(value))
        return ms_fault_at(reading, place, "expected a list or an object of placements");
    entry->cuts = ms_arena_take(&plan->arena, plan->mesh.dims, sizeof(*entry->cuts));
    if (entry->cuts == NULL)
        return ms_fault_at(reading, place, "out of memory");
    return (json_is_array(value) ? parse_in_order(reading, place, value, plan, entry)
                                 : parse_by_name(reading, place, value, plan, entry)) &&
           order_cuts(reading, place, entry);
}

/* Writes the merged ranges to *at, and moves it behind them. */
static bool parse_rank_ranges(const struct ms_fault_context *reading, const struct ms_place *place,
                              json_t *list, struct ms_range **at)
{
    struct ms_range *const first = *at;
    if (!json_is_array(list))
        return ms_fault_at(reading, place, "expected a list of [begin, end]");
    for (size_t i = 0; i < json_array_size(list); i++) {
        json_t *pair = json_array_get(list, i);
        const struct ms_place here = {place, NULL, i};
        const struct ms_place at_begin = {&here, NULL, 0}, at_end = {&here, NULL, 1};
        struct ms_range range;
        if (json_array_size(pair) != 2)
            return ms_fault_at(reading, &here, "expected [begin, end]");
        if (!ms_json_count(reading, &at_begin, json_array_get(pair, 0),
                           *at > first ? (*at)[-1].end : 0, INT64_MAX - 1, &range.begin) ||
            !ms_json_count(reading, &at_end, json_array_get(pair, 1), range.begin + 1, INT64_MAX,
                           &range.end))
            return false;
        if (*at > first && (*at)[-1].end == range.begin)
            (*at)[-1].end = range.end;
        else
            *(*at)++ = range;
    }
    return true;
}

bool ms_ranges_parse(const struct ms_fault_context *reading, const struct ms_place *place,
                     json_t *value, struct ms_plan *plan, struct ms_plan_entry *entry)
{
    const size_t world = plan->mesh.world;
    if (!json_is_array(value) || json_array_size(value) != world)
        return ms_fault_at(reading, place, "expected a list with one element for each of %zu ranks",
                           world);
    size_t count = 0;
    for (size_t i = 0; i < world; i++)
        count += json_array_size(json_array_get(value, i));
    entry->ranges = ms_arena_take(&plan->arena, world + 1, sizeof(struct ms_range *));
    struct ms_range *at = ms_arena_take(&plan->arena, count + 1, sizeof(*at));
    if (entry->ranges == NULL || at == NULL)
        return ms_fault_at(reading, place, "out of memory");
    for (size_t i = 0; i < world; i++) {
        const struct ms_place here = {place, NULL, i};
        entry->ranges[i] = at;
        if (!parse_rank_ranges(reading, &here, json_array_get(value, i), &at))
            return false;
    }
    entry->ranges[world] = at;
    return true;
}
