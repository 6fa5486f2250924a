/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/plan/make_rules.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/document/json.h"
#include "runtime/plan/plan.h"

/* What jansson makes of a text takes up to 48 times its bytes. */
enum { RULES_MAX_BYTES = 8 << 20 };

json_t *plan_document(json_t *mesh, json_t *entries)
{
    return json_pack("{s:s,s:O,s:O}", "format", "metashard-plan/1", "mesh", mesh, "tensors",
                     entries);
}

/* Reports what is wrong; the caller destroys the plan anyway. text is NULL if out of memory. */
static bool lay_out(const char *text, const char *file, const struct ms_checkpoint *checkpoint,
                    struct ms_plan **plan_out, struct ms_layout **layout_out)
{
    struct ms_fault fault;
    if (text == NULL)
        fputs("metashard-plan: out of memory\n", stderr);
    else if (!ms_plan_parse(text, strlen(text), file, plan_out, &fault))
        fprintf(stderr, "%s\n", fault.text);
    else if (checkpoint == NULL || ms_layout_create(*plan_out, checkpoint, layout_out, &fault))
        return true;
    else
        fprintf(stderr, "%s: %s\n", file, fault.text);
    return false;
}

bool plan_is_good(const char *text, const char *file, const struct ms_checkpoint *checkpoint)
{
    struct ms_plan *plan = NULL;
    struct ms_layout *layout = NULL;
    const bool good = lay_out(text, file, checkpoint, &plan, &layout);
    ms_layout_destroy(layout);
    ms_plan_destroy(plan);
    return good;
}

static char *text_of(json_t *mesh, json_t *entries)
{
    json_t *plan = plan_document(mesh, entries);
    char *text = plan != NULL ? json_dumps(plan, JSON_COMPACT) : NULL;
    json_decref(plan);
    return text;
}

static json_t *load_rules(const char *path)
{
    struct ms_fault fault;
    const struct ms_fault_context reading = {path, &fault};
    json_error_t error;
    struct ms_pages text = {0};
    size_t bytes;
    json_t *entries = NULL;
    if (ms_json_read_file(path, RULES_MAX_BYTES, &text, &bytes, &fault)) {
        entries = json_loadb(text.memory, bytes, JSON_REJECT_DUPLICATES, &error);
        if (entries == NULL)
            ms_fault_at_line(&reading, error.line, error.column, error.text);
        else if (!json_is_array(entries))
            ms_fault_at(&reading, NULL, "expected a list of entries");
    }
    ms_pages_cleanup(&text);
    if (json_is_array(entries))
        return entries;
    fprintf(stderr, "%s\n", fault.text);
    json_decref(entries);
    return NULL;
}

/*
 * A copy of the rules, in which those of an exact name do not declare its tensor. That would change
 * the tensors' order, on which others may depend. Or a copy with nothing but these declarations.
 */
static json_t *copy_rules(json_t *entries, bool has_declarations)
{
    json_t *copy = json_deep_copy(entries);
    for (size_t i = 0; i < json_array_size(copy); i++) {
        json_t *rule = json_array_get(copy, i), *shape = json_object_get(rule, "shape");
        const char *name = json_string_value(json_object_get(rule, "name"));
        const bool is_exact = name != NULL && ms_entry_is_exact(name);
        if (is_exact && !has_declarations) {
            json_object_del(rule, "dtype");
            json_object_del(rule, "shape");
        } else if (has_declarations) {
            json_t *bare = is_exact && shape != NULL
                               ? json_pack("{s:O,s:O,s:O}", "name", json_object_get(rule, "name"),
                                           "dtype", json_object_get(rule, "dtype"), "shape", shape)
                               : json_pack("{s:s}", "name", "*");
            json_array_set_new(copy, i, bare);
        }
    }
    return copy;
}

/* Lays out the rules, or a copy of them that is given back. */
static bool lay_out_rules(const struct rules *rules, json_t *mesh, json_t *copy,
                          const struct ms_checkpoint *checkpoint, struct ms_plan **plan_out,
                          struct ms_layout **layout_out)
{
    char *text = copy != NULL ? text_of(mesh, copy) : NULL;
    const bool good = lay_out(text, rules->path, checkpoint, plan_out, layout_out);
    free(text);
    json_decref(copy);
    return good;
}

bool rules_init(struct rules *rules, const char *path, json_t *mesh,
                const struct ms_checkpoint *checkpoint)
{
    *rules = (struct rules){.path = path};
    if (path == NULL)
        return true;
    rules->entries = load_rules(path);
    if (rules->entries == NULL)
        return false;
    struct ms_plan *plan[2] = {0};
    struct ms_layout *layout = NULL;
    const bool good =
        lay_out_rules(rules, mesh, json_incref(rules->entries), NULL, &plan[0], NULL) &&
        lay_out_rules(rules, mesh, copy_rules(rules->entries, true), checkpoint, &plan[1],
                      &layout) &&
        lay_out_rules(rules, mesh, copy_rules(rules->entries, false), checkpoint, &rules->plan,
                      &rules->layout);
    ms_layout_destroy(layout);
    ms_plan_destroy(plan[0]);
    ms_plan_destroy(plan[1]);
    return good;
}

void rules_cleanup(struct rules *rules)
{
    json_decref(rules->entries);
    ms_layout_destroy(rules->layout);
    ms_plan_destroy(rules->plan);
}

json_t *rules_find(const struct rules *rules, size_t order)
{
    const size_t entry =
        rules->layout != NULL ? ms_layout_at(rules->layout, order).entry : SIZE_MAX;
    return entry != SIZE_MAX ? json_array_get(rules->entries, entry) : NULL;
}
