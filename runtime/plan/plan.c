/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/plan/plan.h"

#include <stdlib.h>
#include <string.h>

#include "runtime/base/heap.h"
#include "runtime/checkpoint/tensor_json.h"
#include "runtime/plan/pattern.h"
#include "runtime/plan/plan_internal.h"

enum { PLAN_MAX_BYTES = 256 << 20 };

static bool parse_name(const struct ms_fault_context *reading, const struct ms_place *place,
                       json_t *value, struct ms_plan *plan, struct ms_plan_entry *entry)
{
    const struct ms_place at = {place, "name", 0};
    if (value == NULL)
        return true;
    if (json_string_length(value) == 0)
        return ms_fault_at(reading, &at, "expected a pattern of names");
    const char *fault = ms_pattern_check(json_string_value(value));
    if (fault != NULL)
        return ms_fault_at(reading, &at, "%s", fault);
    char *name = ms_arena_string(&plan->arena, json_string_value(value), json_string_length(value));
    if (name == NULL)
        return ms_fault_at(reading, &at, "out of memory");
    entry->is_exact = ms_pattern_is_exact(name);
    if (entry->is_exact)
        ms_pattern_unescape(name);
    entry->name = name;
    return true;
}

static bool parse_number(const struct ms_fault_context *reading, const struct ms_place *place,
                         json_t *object, const char *key, bool *has_out, uint64_t *number_out)
{
    json_t *value = json_object_get(object, key);
    const struct ms_place at = {place, key, 0};
    *has_out = value != NULL;
    return value == NULL || ms_json_count(reading, &at, value, 0, INT64_MAX, number_out);
}

static bool parse_selection(const struct ms_fault_context *reading, const struct ms_place *place,
                            json_t *object, struct ms_plan *plan, struct ms_plan_entry *entry)
{
    if (!parse_name(reading, place, json_object_get(object, "name"), plan, entry) ||
        !parse_number(reading, place, object, "size", &entry->has_size, &entry->size) ||
        !parse_number(reading, place, object, "order", &entry->has_order, &entry->order))
        return false;
    return entry->name != NULL || entry->has_size || entry->has_order ||
           ms_fault_at(reading, place, "expected name, size or order");
}

static bool parse_like(const struct ms_fault_context *reading, const struct ms_place *place,
                       json_t *object, struct ms_plan_entry *entry)
{
    const bool has_dtype = json_object_get(object, "dtype") != NULL;
    entry->has_shape = json_object_get(object, "shape") != NULL;
    if (has_dtype != entry->has_shape)
        return ms_fault_at(reading, place, "expected dtype and shape together");
    if (!has_dtype)
        return true;
    entry->like.name = entry->name;
    const struct ms_place at = {place, "size", 0};
    if (!ms_json_tensor(reading, place, object, &entry->like))
        return false;
    return !entry->has_size || entry->size == entry->like.bytes ||
           ms_fault_at(reading, &at, "expected the %llu bytes of dtype and shape",
                       (unsigned long long)entry->like.bytes);
}

static bool parse_entry(const struct ms_fault_context *reading, const struct ms_place *place,
                        json_t *object, struct ms_plan *plan, struct ms_plan_entry *entry)
{
    static const char *const keys[] = {"name",  "size",       "order",  "dtype",
                                       "shape", "placements", "ranges", NULL};
    if (!ms_json_keys(reading, place, object, keys,
                      "name, size, order, dtype, shape, placements or ranges") ||
        !parse_selection(reading, place, object, plan, entry) ||
        !parse_like(reading, place, object, entry))
        return false;
    json_t *placements = json_object_get(object, "placements");
    json_t *ranges = json_object_get(object, "ranges");
    const struct ms_place at_placements = {place, "placements", 0},
                          at_ranges = {place, "ranges", 0};
    if (placements != NULL && ranges != NULL)
        return ms_fault_at(reading, &at_ranges, "expected placements or ranges, found both");
    return (placements == NULL ||
            ms_placements_parse(reading, &at_placements, placements, plan, entry)) &&
           (ranges == NULL || ms_ranges_parse(reading, &at_ranges, ranges, plan, entry));
}

static int by_exact_name(const void *a, const void *b)
{
    const struct ms_plan_entry *left = *(const struct ms_plan_entry *const *)a;
    const struct ms_plan_entry *right = *(const struct ms_plan_entry *const *)b;
    const int order = strcmp(left->name, right->name);
    return order != 0 ? order : left < right ? -1 : left > right;
}

/* Lists the entries for layouts. No two have the same exact name. */
static bool list_entries(const struct ms_fault_context *reading, struct ms_plan *plan)
{
    const struct ms_place list = {NULL, "tensors", 0};
    const struct ms_plan_entry **exact = ms_arena_take(&plan->arena, plan->count, sizeof(*exact));
    const struct ms_plan_entry **others = ms_arena_take(&plan->arena, plan->count, sizeof(*others));
    if (exact == NULL || others == NULL)
        return ms_fault_at(reading, NULL, "out of memory");
    for (size_t i = 0; i < plan->count; i++) {
        if (plan->entries[i].is_exact)
            exact[plan->exact_count++] = &plan->entries[i];
        else
            others[plan->other_count++] = &plan->entries[i];
    }
    plan->exact = exact;
    plan->others = others;
    qsort(exact, plan->exact_count, sizeof(*exact), by_exact_name);
    for (size_t i = 1; i < plan->exact_count; i++) {
        const struct ms_place at = {&list, NULL, (size_t)(exact[i] - plan->entries)};
        if (strcmp(exact[i - 1]->name, exact[i]->name) == 0)
            return ms_fault_at(reading, &at, "name %s is already that of tensors[%zu]",
                               exact[i]->name, (size_t)(exact[i - 1] - plan->entries));
    }
    return true;
}

static bool parse_document(const struct ms_fault_context *reading, json_t *document,
                           struct ms_plan *plan)
{
    static const char *const keys[] = {"format",      "mesh",    "world_size", "rank",
                                       "coordinates", "tensors", NULL};
    const struct ms_place at_format = {NULL, "format", 0}, at_list = {NULL, "tensors", 0};
    if (!ms_json_keys(reading, NULL, document, keys,
                      "format, mesh, world_size, rank, coordinates and tensors"))
        return false;
    const char *format = json_string_value(json_object_get(document, "format"));
    if (format == NULL || strcmp(format, "metashard-plan/1") != 0)
        return ms_fault_at(reading, &at_format, "expected \"metashard-plan/1\"");
    if (!ms_mesh_parse(reading, document, plan))
        return false;
    json_t *list = json_object_get(document, "tensors");
    if (!json_is_array(list) || json_array_size(list) >= UINT32_MAX)
        return ms_fault_at(reading, &at_list, "expected a list of entries");
    plan->count = json_array_size(list);
    plan->entries = ms_arena_take(&plan->arena, plan->count, sizeof(*plan->entries));
    if (plan->entries == NULL)
        return ms_fault_at(reading, &at_list, "out of memory");
    for (size_t i = 0; i < plan->count; i++) {
        const struct ms_place at = {&at_list, NULL, i};
        if (!parse_entry(reading, &at, json_array_get(list, i), plan, &plan->entries[i]))
            return false;
    }
    return list_entries(reading, plan);
}

bool ms_plan_parse(const char *text, size_t bytes, const char *file, struct ms_plan **plan_out,
                   struct ms_fault *fault)
{
    const struct ms_fault_context reading = {file, fault};
    json_error_t error;
    if (bytes > PLAN_MAX_BYTES)
        return ms_fault_at(&reading, NULL, "expected at most %d bytes", PLAN_MAX_BYTES);
    json_t *document = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &error);
    if (document == NULL)
        return ms_fault_at_line(&reading, error.line, error.column, error.text);
    struct ms_plan *plan = ms_heap_zalloc(sizeof(*plan));
    const bool is_good = plan != NULL ? parse_document(&reading, document, plan)
                                      : ms_fault_at(&reading, NULL, "out of memory");
    json_decref(document);
    if (!is_good) {
        ms_plan_destroy(plan);
        return false;
    }
    *plan_out = plan;
    return true;
}

bool ms_plan_read(const char *path, struct ms_plan **plan_out, struct ms_fault *fault)
{
    char *text;
    size_t bytes;
    if (!ms_file_read(path, PLAN_MAX_BYTES, &text, &bytes, fault))
        return false;
    const bool is_good = ms_plan_parse(text, bytes, path, plan_out, fault);
    ms_heap_free(text);
    return is_good;
}

void ms_plan_destroy(struct ms_plan *plan)
{
    if (plan == NULL)
        return;
    ms_arena_cleanup(&plan->arena);
    ms_heap_free(plan);
}

bool ms_plan_resize(struct ms_plan *plan, unsigned mesh_dim, uint32_t size)
{
    for (size_t i = 0; i < plan->count; i++) {
        if (plan->entries[i].ranges != NULL)
            return false;
    }
    struct ms_mesh mesh = plan->mesh;
    mesh.size[mesh_dim] = size;
    if (!ms_mesh_number(&mesh))
        return false;
    plan->mesh = mesh;
    plan->has_rank = false;
    return true;
}

const struct ms_mesh *ms_plan_mesh(const struct ms_plan *plan)
{
    return &plan->mesh;
}

bool ms_plan_has_rank(const struct ms_plan *plan, uint32_t *rank_out)
{
    *rank_out = plan->rank;
    return plan->has_rank;
}

size_t ms_plan_count(const struct ms_plan *plan)
{
    return plan->count;
}

const char *ms_plan_entry_name(const struct ms_plan *plan, size_t entry)
{
    return plan->entries[entry].name;
}

const struct ms_tensor *ms_plan_entry_tensor(const struct ms_plan *plan, size_t entry)
{
    return plan->entries[entry].has_shape ? &plan->entries[entry].like : NULL;
}

bool ms_plan_entry_declares(const struct ms_plan *plan, size_t entry)
{
    return plan->entries[entry].is_exact && plan->entries[entry].has_shape;
}
