/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/plan/plan.h"

#include <string.h>

#include "runtime/base/heap.h"
#include "runtime/checkpoint/tensor_json.h"
#include "runtime/plan/pattern.h"
#include "runtime/plan/plan_internal.h"

/* The keys of an entry. */
enum { NAME, SIZE, ORDER, DTYPE, SHAPE, PLACEMENTS, RANGES, ENTRY_KEYS };
static const char *const entry_keys[] = {"name",  "size",       "order",  "dtype",
                                         "shape", "placements", "ranges", NULL};

/* A plan while it is read. */
struct parser {
    const struct ms_fault_context *reading;
    struct ms_plan *plan;
    struct ms_hash_set known_terms;
};

static bool parse_name(const struct parser *parser, const struct ms_place *place, const char *value,
                       struct ms_plan_entry *entry)
{
    const struct ms_place at = {place, "name", 0};
    if (value == NULL)
        return true;
    if (!ms_json_is_string(value) || ms_json_is_text(value, ""))
        return ms_fault_at(parser->reading, &at, "expected a pattern of names");
    char *name = ms_arena_text(&parser->plan->arena, ms_json_text_bytes(value) + 1);
    if (name == NULL)
        return ms_fault_at(parser->reading, &at, "out of memory");
    ms_json_text(value, name);
    const char *fault = ms_pattern_check(name);
    if (fault != NULL)
        return ms_fault_at(parser->reading, &at, "%s", fault);
    entry->is_exact = ms_pattern_is_exact(name);
    if (entry->is_exact)
        ms_pattern_unescape(name);
    entry->name = name;
    return true;
}

static bool parse_number(const struct parser *parser, const struct ms_place *place, const char *key,
                         const char *value, bool *has_out, uint64_t *number_out)
{
    const struct ms_place at = {place, key, 0};
    *has_out = value != NULL;
    return value == NULL || ms_json_count(parser->reading, &at, value, 0, INT64_MAX, number_out);
}

static bool parse_selection(const struct parser *parser, const struct ms_place *place,
                            const char *const *values, struct ms_plan_entry *entry,
                            struct ms_terms *terms)
{
    if (!parse_name(parser, place, values[NAME], entry) ||
        !parse_number(parser, place, "size", values[SIZE], &terms->has_size, &terms->size) ||
        !parse_number(parser, place, "order", values[ORDER], &terms->has_order, &terms->order))
        return false;
    return entry->name != NULL || terms->has_size || terms->has_order ||
           ms_fault_at(parser->reading, place, "expected name, size or order");
}

static bool parse_like(const struct parser *parser, const struct ms_place *place,
                       const char *const *values, struct ms_plan_entry *entry,
                       const struct ms_terms *terms)
{
    struct ms_tensor like = {0};
    const struct ms_place at = {place, "size", 0};
    entry->form = MS_NO_NUMBER;
    if ((values[DTYPE] != NULL) != (values[SHAPE] != NULL))
        return ms_fault_at(parser->reading, place, "expected dtype and shape together");
    if (values[DTYPE] == NULL)
        return true;
    if (!ms_json_tensor(parser->reading, place, values[DTYPE], values[SHAPE], &like))
        return false;
    if (terms->has_size && terms->size != like.bytes)
        return ms_fault_at(parser->reading, &at, "expected the %llu bytes of dtype and shape",
                           (unsigned long long)like.bytes);
    entry->form = ms_forms_add(&parser->plan->forms, &like);
    return entry->form != MS_NO_NUMBER || ms_fault_at(parser->reading, place, "out of memory");
}

static bool parse_terms(const struct parser *parser, const struct ms_place *place,
                        const char *const *values, struct ms_terms *terms)
{
    const struct ms_place at_placements = {place, "placements", 0},
                          at_ranges = {place, "ranges", 0};
    if (values[PLACEMENTS] != NULL && values[RANGES] != NULL)
        return ms_fault_at(parser->reading, &at_ranges,
                           "expected placements or ranges, found both");
    return (values[PLACEMENTS] == NULL ||
            ms_placements_parse(parser->reading, &at_placements, values[PLACEMENTS], parser->plan,
                                terms)) &&
           (values[RANGES] == NULL ||
            ms_ranges_parse(parser->reading, &at_ranges, values[RANGES], parser->plan, terms));
}

struct wanted_terms {
    const struct ms_terms *all, *one;
};

static bool is_wanted(const void *context, uint32_t number)
{
    const struct wanted_terms *wanted = context;
    return ms_terms_are_same(&wanted->all[number], wanted->one);
}

static bool add_terms(struct parser *parser, const struct ms_terms *terms, uint64_t hash)
{
    struct ms_plan *plan = parser->plan;
    if (!ms_pages_grow(&plan->terms, (plan->terms_count + 1) * sizeof(*terms)) ||
        (terms->ranges == NULL && !ms_hash_set_add(&parser->known_terms, hash, plan->terms_count)))
        return false;
    ((struct ms_terms *)plan->terms.memory)[plan->terms_count++] = *terms;
    return true;
}

/* Gives the entry its terms. If another one has the same, theirs; what was taken for these since
 * `before` is given back. */
static bool set_terms(struct parser *parser, const struct ms_terms *terms,
                      const struct ms_arena *before, struct ms_plan_entry *entry)
{
    const struct wanted_terms wanted = {parser->plan->terms.memory, terms};
    const uint64_t hash = ms_terms_hash(terms);
    const uint32_t found = terms->ranges == NULL
                               ? ms_hash_set_find(&parser->known_terms, hash, is_wanted, &wanted)
                               : MS_NO_NUMBER;
    if (found != MS_NO_NUMBER)
        ms_arena_return(&parser->plan->arena, before);
    else if (!add_terms(parser, terms, hash))
        return false;
    entry->terms = (found != MS_NO_NUMBER ? found : parser->plan->terms_count - 1) & INT32_MAX;
    return true;
}

static bool parse_entry(struct parser *parser, const struct ms_place *place, const char *value,
                        struct ms_plan_entry *entry)
{
    const char *values[ENTRY_KEYS];
    struct ms_terms terms = {0};
    if (!ms_json_members(parser->reading, place, value, entry_keys, values,
                         "name, size, order, dtype, shape, placements or ranges") ||
        !parse_selection(parser, place, values, entry, &terms) ||
        !parse_like(parser, place, values, entry, &terms))
        return false;
    const struct ms_arena before = parser->plan->arena;
    return parse_terms(parser, place, values, &terms) &&
           (set_terms(parser, &terms, &before, entry) ||
            ms_fault_at(parser->reading, place, "out of memory"));
}

struct wanted_name {
    const struct ms_plan_entry *entries;
    const char *name;
};

static bool has_name(const void *context, uint32_t number)
{
    const struct wanted_name *wanted = context;
    return strcmp(wanted->entries[number].name, wanted->name) == 0;
}

uint32_t ms_plan_find_exact(const struct ms_plan *plan, const char *name)
{
    const struct wanted_name wanted = {ms_plan_entries(plan), name};
    return ms_hash_set_find(&plan->exact, ms_hash_text(name), has_name, &wanted);
}

/* Lists the entries for layouts. No two have the same exact name. */
static bool list_entries(const struct parser *parser)
{
    struct ms_plan *plan = parser->plan;
    const struct ms_place list = {NULL, "tensors", 0};
    uint32_t exact = 0;
    for (uint32_t i = 0; i < plan->count; i++)
        exact += ms_plan_entries(plan)[i].is_exact;
    if (!ms_hash_set_reserve(&plan->exact, exact) ||
        !ms_pages_grow(&plan->others, (plan->count - exact) * sizeof(uint32_t)))
        return ms_fault_at(parser->reading, NULL, "out of memory");
    for (uint32_t i = 0; i < plan->count; i++) {
        const struct ms_plan_entry *entry = &ms_plan_entries(plan)[i];
        const struct ms_place at = {&list, NULL, i};
        if (!entry->is_exact) {
            ((uint32_t *)plan->others.memory)[plan->other_count++] = i;
            continue;
        }
        const uint32_t other = ms_plan_find_exact(plan, entry->name);
        if (other != MS_NO_NUMBER)
            return ms_fault_at(parser->reading, &at, "name %s is already that of tensors[%u]",
                               entry->name, other);
        ms_hash_set_add(&plan->exact, ms_hash_text(entry->name), i);
    }
    return true;
}

static bool parse_entries(struct parser *parser, const char *list)
{
    struct ms_plan *plan = parser->plan;
    const struct ms_place place = {NULL, "tensors", 0};
    struct ms_json_walk walk = ms_json_walk(list);
    if (!ms_json_is_list(list))
        return ms_fault_at(parser->reading, &place, "expected a list of entries");
    while (ms_json_next(&walk)) {
        const struct ms_place at = {&place, NULL, plan->count};
        if (plan->count == MS_PLAN_MAX_ENTRIES)
            return ms_fault_at(parser->reading, &place, "expected at most %d entries",
                               MS_PLAN_MAX_ENTRIES);
        if (!ms_pages_grow(&plan->entries, (plan->count + 1) * sizeof(struct ms_plan_entry)))
            return ms_fault_at(parser->reading, &place, "out of memory");
        if (!parse_entry(parser, &at, walk.value, &ms_plan_entries(plan)[plan->count]))
            return false;
        plan->count++;
    }
    return list_entries(parser);
}

static bool parse_document(struct parser *parser, const char *document)
{
    enum { FORMAT, MESH, WORLD_SIZE, RANK, COORDINATES, TENSORS, KEYS };
    static const char *const keys[] = {"format",      "mesh",    "world_size", "rank",
                                       "coordinates", "tensors", NULL};
    const struct ms_place at_format = {NULL, "format", 0};
    const char *values[KEYS];
    if (!ms_json_members(parser->reading, NULL, document, keys, values,
                         "format, mesh, world_size, rank, coordinates and tensors"))
        return false;
    if (!ms_json_is_text(values[FORMAT], "metashard-plan/1"))
        return ms_fault_at(parser->reading, &at_format, "expected \"metashard-plan/1\"");
    const struct ms_mesh_values mesh = {values[MESH], values[WORLD_SIZE], values[RANK],
                                        values[COORDINATES]};
    return ms_mesh_parse(parser->reading, &mesh, parser->plan) &&
           parse_entries(parser, values[TENSORS]);
}

bool ms_plan_parse(const char *text, size_t bytes, const char *file, struct ms_plan **plan_out,
                   struct ms_fault *fault)
{
    const struct ms_fault_context reading = {file, fault};
    const char *document;
    if (!ms_json_check(&reading, text, bytes, &document))
        return false;
    struct parser parser = {.reading = &reading, .plan = ms_heap_zalloc(sizeof(*parser.plan))};
    const bool is_good = parser.plan != NULL ? parse_document(&parser, document)
                                             : ms_fault_at(&reading, NULL, "out of memory");
    ms_hash_set_cleanup(&parser.known_terms);
    if (!is_good) {
        ms_plan_destroy(parser.plan);
        return false;
    }
    ms_forms_end(&parser.plan->forms);
    *plan_out = parser.plan;
    return true;
}

bool ms_plan_read(const char *path, struct ms_plan **plan_out, struct ms_fault *fault)
{
    struct ms_pages text;
    size_t bytes;
    if (!ms_file_read(path, MS_JSON_MAX_BYTES, &text, &bytes, fault))
        return false;
    const bool is_good = ms_plan_parse(text.memory, bytes, path, plan_out, fault);
    ms_pages_cleanup(&text);
    return is_good;
}

void ms_plan_destroy(struct ms_plan *plan)
{
    if (plan == NULL)
        return;
    ms_arena_cleanup(&plan->arena);
    ms_pages_cleanup(&plan->entries);
    ms_pages_cleanup(&plan->terms);
    ms_forms_cleanup(&plan->forms);
    ms_hash_set_cleanup(&plan->exact);
    ms_pages_cleanup(&plan->others);
    ms_heap_free(plan);
}

bool ms_plan_resize(struct ms_plan *plan, unsigned mesh_dim, uint32_t size)
{
    for (uint32_t i = 0; i < plan->terms_count; i++) {
        if (((const struct ms_terms *)plan->terms.memory)[i].ranges != NULL)
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
    return ms_plan_entries(plan)[entry].name;
}

bool ms_plan_entry_tensor(const struct ms_plan *plan, size_t entry, struct ms_tensor *tensor_out)
{
    const struct ms_plan_entry *one = &ms_plan_entries(plan)[entry];
    if (one->form == MS_NO_NUMBER)
        return false;
    *tensor_out = (struct ms_tensor){.name = one->name};
    ms_forms_get(&plan->forms, one->form, tensor_out);
    return true;
}

bool ms_plan_entry_declares(const struct ms_plan *plan, size_t entry)
{
    const struct ms_plan_entry *one = &ms_plan_entries(plan)[entry];
    return one->is_exact && one->form != MS_NO_NUMBER;
}
