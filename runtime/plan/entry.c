/* SPDX-License-Identifier: Apache-2.0 */
/* The entries of a plan: the tensors that each selects, and its terms: placements or ranges. */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "runtime/plan/plan_internal.h"

/* --- patterns of names (docs/plan-format.md). Matching takes at most the product of both lengths
 * in steps, and does not recurse. Texts are valid UTF-8. */

/* Returns the character at *text, and moves *text behind it, but never past the zero. */
static uint32_t next_character(const char **text)
{
    const unsigned char first = (unsigned char)*(*text)++;
    if (first < 0xc0)
        return first;
    uint32_t character = first & (first < 0xe0 ? 0x1f : first < 0xf0 ? 0x0f : 0x07);
    while (((unsigned char)**text & 0xc0) == 0x80)
        character = character << 6 | ((unsigned char)*(*text)++ & 0x3f);
    return character;
}

/* Reads a member of a set, a character or a range, and moves *set behind the member. */
static void next_member(const char **set, uint32_t *low_out, uint32_t *high_out)
{
    *low_out = *high_out = next_character(set);
    if ((*set)[0] == '-' && (*set)[1] != ']' && (*set)[1] != '\0') {
        (*set)++;
        *high_out = next_character(set);
    }
}

static const char *behind_negation(const char *set, bool *is_negated_out)
{
    *is_negated_out = *set == '!' || *set == '^';
    return set + *is_negated_out;
}

/* *set is behind its '['; a ']' that comes first is a member. Returns NULL, or what is wrong. */
static const char *check_set(const char **set)
{
    bool is_negated;
    *set = behind_negation(*set, &is_negated);
    for (bool is_first = true; is_first || **set != ']'; is_first = false) {
        if (**set == '\0')
            return "expected a ']' after the '[' of the pattern";
        uint32_t low, high;
        next_member(set, &low, &high);
        if (low > high)
            return "expected a range in [] to end after its beginning";
    }
    (*set)++;
    return NULL;
}

/* Returns NULL, or what is wrong with the pattern. */
static const char *check(const char *pattern)
{
    const char *fault = NULL;
    while (*pattern != '\0' && fault == NULL) {
        const char character = *pattern++;
        if (character == '[')
            fault = check_set(&pattern);
        else if (character == '\\' && *pattern++ == '\0')
            return "expected a character after the '\\' at the end of the pattern";
    }
    return fault;
}

bool ms_entry_is_exact(const char *pattern)
{
    for (; *pattern != '\0'; pattern++) {
        if (*pattern == '*' || *pattern == '?' || *pattern == '[')
            return false;
        if (*pattern == '\\')
            pattern++;
    }
    return true;
}

/* Removes the escapes, in place. */
static void unescape(char *pattern)
{
    char *to = pattern;
    for (const char *from = pattern; *from != '\0'; from++) {
        if (*from == '\\')
            from++;
        *to++ = *from;
    }
    *to = '\0';
}

static bool match_set(const char **set, uint32_t character)
{
    bool is_negated, is_member = false;
    *set = behind_negation(*set, &is_negated);
    for (bool is_first = true; is_first || **set != ']'; is_first = false) {
        uint32_t low, high;
        next_member(set, &low, &high);
        is_member |= low <= character && character <= high;
    }
    (*set)++;
    return is_member != is_negated;
}

/* Matches a character with one element of the pattern, not '*', and moves *pattern behind it. */
static bool match_one(const char **pattern, uint32_t character)
{
    switch (**pattern) {
    case '?':
        (*pattern)++;
        return true;
    case '[':
        (*pattern)++;
        return match_set(pattern, character);
    case '\\':
        (*pattern)++;
        break;
    default:
        break;
    }
    return next_character(pattern) == character;
}

/* Retries only the last '*', which can match whatever an earlier '*' could. */
static bool match_pattern(const char *pattern, const char *text)
{
    const char *star_pattern = NULL, *star_text = NULL;
    while (*text != '\0') {
        if (*pattern == '*') {
            star_pattern = ++pattern;
            star_text = text;
            continue;
        }
        const uint32_t character = next_character(&text);
        if (*pattern != '\0' && match_one(&pattern, character))
            continue;
        if (star_pattern == NULL)
            return false;
        next_character(&star_text);
        pattern = star_pattern;
        text = star_text;
    }
    while (*pattern == '*')
        pattern++;
    return *pattern == '\0';
}

/* The keys of an entry. */
enum { NAME, SIZE, ORDER, DTYPE, SHAPE, PLACEMENTS, RANGES, ENTRY_KEYS };
static const char *const entry_keys[] = {"name",  "size",       "order",  "dtype",
                                         "shape", "placements", "ranges", NULL};

/* --- terms */

static bool parse_parts(const struct ms_fault_context *reading, const struct ms_place *place,
                        const char *value, struct ms_plan *plan, struct ms_cut *cut)
{
    const size_t count = ms_json_size(value);
    if (!ms_json_is_list(value) || count < 1 || count > MS_PARTS_MAX)
        return ms_fault_at(reading, place, "expected a list of 1 to 64 integers");
    uint64_t *parts = ms_arena_take(&plan->arena, count, sizeof(*parts));
    if (parts == NULL)
        return ms_fault_at(reading, place, "out of memory");
    struct ms_json_walk walk = {.in = value};
    for (size_t i = 0; ms_json_next(&walk); i++) {
        const struct ms_place at = {place, NULL, i};
        if (!ms_json_count(reading, &at, walk.value, 1, INT64_MAX, &parts[i]))
            return false;
        if (__builtin_add_overflow(cut->part_sum, parts[i], &cut->part_sum) ||
            cut->part_sum > INT64_MAX)
            return ms_fault_at(reading, &at, "expected a sum below 2^63");
    }
    cut->parts = parts;
    cut->part_count = (uint8_t)count;
    return true;
}

static bool parse_shard(const struct ms_fault_context *reading, const struct ms_place *place,
                        const char *value, struct ms_plan *plan, struct ms_cut *cut)
{
    static const char *const keys[] = {"shard", "interleave", NULL};
    const char *values[2];
    if (!ms_json_members(reading, place, value, keys, values, "shard and interleave"))
        return false;
    const struct ms_place at_dim = {place, "shard", 0}, at_parts = {place, "interleave", 0};
    uint64_t dim;
    if (!ms_json_count(reading, &at_dim, values[0], 0, MS_TENSOR_DIMS_MAX - 1, &dim))
        return false;
    cut->kind = MS_CUT_SHARD;
    cut->dim = (uint8_t)dim;
    return values[1] == NULL || parse_parts(reading, &at_parts, values[1], plan, cut);
}

static bool parse_flat(const struct ms_fault_context *reading, const struct ms_place *place,
                       const char *value, struct ms_plan *plan, struct ms_cut *cut)
{
    static const char *const keys[] = {"flat", "unit", NULL};
    const char *values[2];
    if (!ms_json_members(reading, place, value, keys, values, "flat and unit"))
        return false;
    const char *unit = values[1];
    const struct ms_place at_flat = {place, "flat", 0}, at_unit = {place, "unit", 0};
    const bool is_zero3 = ms_json_is_text(values[0], "zero3");
    if (!is_zero3 && !ms_json_is_text(values[0], "fsdp1"))
        return ms_fault_at(reading, &at_flat, "expected \"zero3\" or \"fsdp1\"");
    cut->kind = is_zero3 ? MS_CUT_ZERO3 : MS_CUT_FSDP1;
    if (is_zero3)
        return unit == NULL || ms_fault_at(reading, &at_unit, "expected no unit beside \"zero3\"");
    if (!ms_json_is_string(unit) || ms_json_is_text(unit, ""))
        return ms_fault_at(reading, &at_unit, "expected the name of a unit");
    cut->unit = ms_json_text(unit, &plan->arena);
    return cut->unit != NULL || ms_fault_at(reading, &at_unit, "out of memory");
}

/* Adds nothing for "replicate". */
static bool parse_cut(const struct ms_fault_context *reading, const struct ms_place *place,
                      const char *value, struct ms_plan *plan, struct ms_terms *terms,
                      unsigned mesh_dim)
{
    static const char *const keys[] = {"shard", "flat", NULL};
    const char *values[2] = {NULL, NULL};
    if (ms_json_is_text(value, "replicate"))
        return true;
    struct ms_cut *cut = &terms->cuts[terms->cut_count++];
    *cut = (struct ms_cut){.mesh_dim = (uint8_t)mesh_dim};
    if (ms_json_is_object(value) && !ms_json_members(reading, place, value, keys, values, NULL))
        return false;
    if (values[0] != NULL)
        return parse_shard(reading, place, value, plan, cut);
    if (values[1] != NULL)
        return parse_flat(reading, place, value, plan, cut);
    return ms_fault_at(reading, place,
                       "expected \"replicate\", {\"shard\": dimension} or {\"flat\": \"zero3\"}");
}

static bool parse_by_name(const struct ms_fault_context *reading, const struct ms_place *place,
                          const char *object, struct ms_plan *plan, struct ms_terms *terms)
{
    const struct ms_mesh *mesh = &plan->mesh;
    struct ms_json_walk walk = {.in = object};
    while (ms_json_next(&walk)) {
        unsigned dim = 0;
        while (dim < mesh->dims && !ms_json_is_text(walk.key, mesh->name[dim]))
            dim++;
        if (dim == mesh->dims)
            return ms_json_fault_at(reading, place, walk.key,
                                    "expected the name of a mesh dimension", "");
        const struct ms_place at = {place, mesh->name[dim], 0};
        if (!parse_cut(reading, &at, walk.value, plan, terms, dim))
            return false;
    }
    return true;
}

static bool parse_in_order(const struct ms_fault_context *reading, const struct ms_place *place,
                           const char *list, struct ms_plan *plan, struct ms_terms *terms)
{
    if (ms_json_size(list) > plan->mesh.dims)
        return ms_fault_at(reading, place, "expected at most %u placements, one per mesh dimension",
                           plan->mesh.dims);
    struct ms_json_walk walk = {.in = list};
    for (unsigned i = 0; ms_json_next(&walk); i++) {
        const struct ms_place at = {place, NULL, i};
        if (!parse_cut(reading, &at, walk.value, plan, terms, i))
            return false;
    }
    return true;
}

/* Moves the flat cut to the end. An interleave must be the first cut of its dimension. */
static bool order_cuts(const struct ms_fault_context *reading, const struct ms_place *place,
                       struct ms_terms *terms)
{
    unsigned flat = terms->cut_count;
    for (unsigned i = 0; i < terms->cut_count; i++) {
        const struct ms_cut *cut = &terms->cuts[i];
        if (cut->kind != MS_CUT_SHARD && flat != terms->cut_count)
            return ms_fault_at(reading, place, "expected at most one flat placement");
        if (cut->kind != MS_CUT_SHARD)
            flat = i;
        for (unsigned j = 0; j < i && cut->part_count > 0; j++) {
            if (terms->cuts[j].kind == MS_CUT_SHARD && terms->cuts[j].dim == cut->dim)
                return ms_fault_at(reading, place,
                                   "expected interleave to be the first that shards dimension %u",
                                   cut->dim);
        }
    }
    if (flat == terms->cut_count)
        return true;
    const struct ms_cut last = terms->cuts[flat];
    memmove(&terms->cuts[flat], &terms->cuts[flat + 1],
            (terms->cut_count - flat - 1) * sizeof(last));
    terms->cuts[terms->cut_count - 1] = last;
    return true;
}

static bool parse_placements(const struct ms_fault_context *reading, const struct ms_place *place,
                             const char *value, struct ms_plan *plan, struct ms_terms *terms)
{
    if (!ms_json_is_list(value) && !ms_json_is_object(value))
        return ms_fault_at(reading, place, "expected a list or an object of placements");
    terms->cuts = ms_arena_take(&plan->arena, plan->mesh.dims, sizeof(*terms->cuts));
    if (terms->cuts == NULL)
        return ms_fault_at(reading, place, "out of memory");
    return (ms_json_is_list(value) ? parse_in_order(reading, place, value, plan, terms)
                                   : parse_by_name(reading, place, value, plan, terms)) &&
           order_cuts(reading, place, terms);
}

static bool parse_range(const struct ms_fault_context *reading, const struct ms_place *place,
                        const char *pair, uint64_t least, struct ms_range *range)
{
    const struct ms_place at_begin = {place, NULL, 0}, at_end = {place, NULL, 1};
    struct ms_json_walk walk = {.in = pair};
    if (!ms_json_is_list(pair) || ms_json_size(pair) != 2)
        return ms_fault_at(reading, place, "expected [begin, end]");
    ms_json_next(&walk);
    if (!ms_json_count(reading, &at_begin, walk.value, least, INT64_MAX - 1, &range->begin))
        return false;
    ms_json_next(&walk);
    return ms_json_count(reading, &at_end, walk.value, range->begin + 1, INT64_MAX, &range->end);
}

/* Writes the merged ranges to *at, and moves *at behind them. */
static bool parse_rank_ranges(const struct ms_fault_context *reading, const struct ms_place *place,
                              const char *list, struct ms_range **at)
{
    struct ms_range *const first = *at;
    struct ms_json_walk walk = {.in = list};
    if (!ms_json_is_list(list))
        return ms_fault_at(reading, place, "expected a list of [begin, end]");
    for (size_t i = 0; ms_json_next(&walk); i++) {
        const struct ms_place here = {place, NULL, i};
        struct ms_range range;
        if (!parse_range(reading, &here, walk.value, *at > first ? (*at)[-1].end : 0, &range))
            return false;
        if (*at > first && (*at)[-1].end == range.begin)
            (*at)[-1].end = range.end;
        else
            *(*at)++ = range;
    }
    return true;
}

static bool parse_ranges(const struct ms_fault_context *reading, const struct ms_place *place,
                         const char *value, struct ms_plan *plan, struct ms_terms *terms)
{
    const size_t world = plan->mesh.world;
    struct ms_json_walk walk = {.in = value};
    size_t ranks = 0, count = 0; /* count: the ranges of all ranks */
    for (; ms_json_next(&walk); ranks++)
        count += ms_json_size(walk.value);
    if (!ms_json_is_list(value) || ranks != world)
        return ms_fault_at(reading, place, "expected a list with one element for each of %zu ranks",
                           world);
    terms->ranges = ms_arena_take(&plan->arena, world + 1, sizeof(struct ms_range *));
    struct ms_range *at = ms_arena_take(&plan->arena, count + 1, sizeof(*at));
    if (terms->ranges == NULL || at == NULL)
        return ms_fault_at(reading, place, "out of memory");
    walk = (struct ms_json_walk){.in = value};
    for (size_t i = 0; ms_json_next(&walk); i++) {
        const struct ms_place here = {place, NULL, i};
        terms->ranges[i] = at;
        if (!parse_rank_ranges(reading, &here, walk.value, &at))
            return false;
    }
    terms->ranges[world] = at;
    return true;
}

/* --- terms that are the same */

static uint64_t hash_number(uint64_t hash, uint64_t number)
{
    for (unsigned i = 0; i < 64; i += 8)
        hash = ms_hash_add(hash, (unsigned char)(number >> i));
    return hash;
}

static uint64_t hash_terms(const struct ms_terms *terms)
{
    uint64_t hash = ms_hash_set_begin();
    hash = hash_number(hash, terms->has_size ? terms->size : UINT64_MAX);
    hash = hash_number(hash, terms->has_order ? terms->order : UINT64_MAX);
    for (unsigned i = 0; i < terms->cut_count; i++) {
        const struct ms_cut *cut = &terms->cuts[i];
        hash = hash_number(hash, (uint64_t)(cut->kind << 16 | cut->mesh_dim << 8 | cut->dim));
        hash = hash_number(hash, cut->part_sum);
        for (const char *at = cut->unit; at != NULL && *at != '\0'; at++)
            hash = ms_hash_add(hash, (unsigned char)*at);
    }
    return ms_hash_end(hash);
}

static bool is_same_cut(const struct ms_cut *a, const struct ms_cut *b)
{
    return a->kind == b->kind && a->mesh_dim == b->mesh_dim && a->dim == b->dim &&
           a->part_count == b->part_count &&
           (a->part_count == 0 ||
            memcmp(a->parts, b->parts, a->part_count * sizeof(*a->parts)) == 0) &&
           (a->unit == NULL || strcmp(a->unit, b->unit) == 0);
}

/* Terms with ranges never count as the same: two tensors rarely have equal ranges. */
static bool are_same(const struct ms_terms *a, const struct ms_terms *b)
{
    if (a->has_size != b->has_size || (a->has_size && a->size != b->size) ||
        a->has_order != b->has_order || (a->has_order && a->order != b->order) ||
        a->cut_count != b->cut_count || a->ranges != NULL || b->ranges != NULL)
        return false;
    for (unsigned i = 0; i < a->cut_count; i++) {
        if (!is_same_cut(&a->cuts[i], &b->cuts[i]))
            return false;
    }
    return true;
}

struct wanted_terms {
    const struct ms_terms *all, *one;
};

static bool is_wanted(const void *context, uint32_t number)
{
    const struct wanted_terms *wanted = context;
    return are_same(&wanted->all[number], wanted->one);
}

/* Gives the entry its terms. If another entry has the same terms, shares those, and gives back the
 * memory taken for `terms` since `before`. */
static bool set_terms(struct ms_plan_parser *parser, const struct ms_terms *terms,
                      const struct ms_arena *before, struct ms_plan_entry *entry)
{
    struct ms_plan *plan = parser->plan;
    const struct wanted_terms wanted = {plan->terms.memory, terms};
    const uint64_t hash = hash_terms(terms);
    uint32_t number = ms_hash_set_find(&parser->known_terms, hash, is_wanted, &wanted);
    if (number != MS_NO_NUMBER) {
        ms_arena_return(&plan->arena, before);
    } else {
        number = plan->terms_count;
        if (!ms_pages_grow(&plan->terms, (number + 1) * sizeof(*terms)) ||
            (terms->ranges == NULL && !ms_hash_set_add(&parser->known_terms, hash, number)))
            return false;
        ((struct ms_terms *)plan->terms.memory)[plan->terms_count++] = *terms;
    }
    entry->terms = number & INT32_MAX;
    return true;
}

/* --- the whole entry */

static bool parse_name(const struct ms_plan_parser *parser, const struct ms_place *place,
                       const char *value, struct ms_plan_entry *entry)
{
    const struct ms_place at = {place, "name", 0};
    if (value == NULL)
        return true;
    if (!ms_json_is_string(value) || ms_json_is_text(value, ""))
        return ms_fault_at(parser->reading, &at, "expected a pattern of names");
    char *name = ms_json_text(value, &parser->plan->arena);
    if (name == NULL)
        return ms_fault_at(parser->reading, &at, "out of memory");
    const char *fault = check(name);
    if (fault != NULL)
        return ms_fault_at(parser->reading, &at, "%s", fault);
    entry->is_exact = ms_entry_is_exact(name);
    if (entry->is_exact)
        unescape(name);
    entry->name = name;
    return true;
}

static bool parse_number(const struct ms_plan_parser *parser, const struct ms_place *place,
                         const char *key, const char *value, bool *has_out, uint64_t *number_out)
{
    const struct ms_place at = {place, key, 0};
    *has_out = value != NULL;
    return value == NULL || ms_json_count(parser->reading, &at, value, 0, INT64_MAX, number_out);
}

static bool parse_selection(const struct ms_plan_parser *parser, const struct ms_place *place,
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

static bool parse_like(const struct ms_plan_parser *parser, const struct ms_place *place,
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
    if (!ms_tensor_parse(parser->reading, place, values[DTYPE], values[SHAPE], &like))
        return false;
    if (terms->has_size && terms->size != like.bytes)
        return ms_fault_at(parser->reading, &at, "expected the %llu bytes of dtype and shape",
                           (unsigned long long)like.bytes);
    entry->form = ms_forms_add(&parser->plan->forms, &like);
    return entry->form != MS_NO_NUMBER || ms_fault_at(parser->reading, place, "out of memory");
}

static bool parse_terms(const struct ms_plan_parser *parser, const struct ms_place *place,
                        const char *const *values, struct ms_terms *terms)
{
    const struct ms_place at_placements = {place, "placements", 0},
                          at_ranges = {place, "ranges", 0};
    if (values[PLACEMENTS] != NULL && values[RANGES] != NULL)
        return ms_fault_at(parser->reading, &at_ranges,
                           "expected placements or ranges, found both");
    return (values[PLACEMENTS] == NULL ||
            parse_placements(parser->reading, &at_placements, values[PLACEMENTS], parser->plan,
                             terms)) &&
           (values[RANGES] == NULL ||
            parse_ranges(parser->reading, &at_ranges, values[RANGES], parser->plan, terms));
}

static bool parse_entry(struct ms_plan_parser *parser, const struct ms_place *place,
                        const char *value, struct ms_plan_entry *entry)
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

/* --- all entries */

struct wanted_name {
    const struct ms_plan_entry *entries;
    const char *name;
};

static bool has_name(const void *context, uint32_t number)
{
    const struct wanted_name *wanted = context;
    return strcmp(wanted->entries[number].name, wanted->name) == 0;
}

static uint32_t find_exact(const struct ms_plan *plan, const char *name)
{
    const struct wanted_name wanted = {ms_plan_entries(plan), name};
    return ms_hash_set_find(&plan->exact, ms_hash_set_text(name), has_name, &wanted);
}

/* Indexes the entries for layouts. Two entries with the same exact name are a fault. */
static bool list_entries(const struct ms_plan_parser *parser)
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
        const uint32_t other = find_exact(plan, entry->name);
        if (other != MS_NO_NUMBER)
            return ms_fault_at(parser->reading, &at, "name %s is already that of tensors[%u]",
                               entry->name, other);
        ms_hash_set_add(&plan->exact, ms_hash_set_text(entry->name), i);
    }
    return true;
}

bool ms_entry_parse_all(struct ms_plan_parser *parser, const char *list)
{
    struct ms_plan *plan = parser->plan;
    const struct ms_place place = {NULL, "tensors", 0};
    struct ms_json_walk walk = {.in = list};
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

/* --- questions about entries */

struct ms_entry_says ms_entry_at(const struct ms_plan *plan, size_t index)
{
    const struct ms_plan_entry *one = &ms_plan_entries(plan)[index];
    struct ms_entry_says entry = {.name = one->name, .has_form = one->form != MS_NO_NUMBER};
    entry.declares = one->is_exact && entry.has_form;
    if (entry.has_form)
        ms_forms_get(&plan->forms, one->form, &entry.tensor);
    entry.tensor.name = one->name;
    return entry;
}

bool ms_entry_meets(const struct ms_plan *plan, size_t index, const struct ms_tensor *tensor,
                    size_t order)
{
    const struct ms_plan_entry *entry = &ms_plan_entries(plan)[index];
    const struct ms_terms *terms = ms_terms_of(plan, index);
    if ((terms->has_size && terms->size != tensor->bytes) ||
        (terms->has_order && terms->order != order))
        return false;
    if (entry->name == NULL)
        return true;
    return tensor->name != NULL && (entry->is_exact ? strcmp(entry->name, tensor->name) == 0
                                                    : match_pattern(entry->name, tensor->name));
}

uint32_t ms_entry_find(const struct ms_plan *plan, const struct ms_tensor *tensor, size_t order)
{
    const uint32_t *others = plan->others.memory;
    uint32_t best = tensor->name != NULL ? find_exact(plan, tensor->name) : MS_NO_NUMBER;
    if (best != MS_NO_NUMBER && !ms_entry_meets(plan, best, tensor, order))
        best = MS_NO_NUMBER;
    for (uint32_t i = 0; i < plan->other_count && others[i] < best; i++) {
        if (ms_entry_meets(plan, others[i], tensor, order))
            best = others[i];
    }
    return best;
}
