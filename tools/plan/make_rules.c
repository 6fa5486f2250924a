/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/plan/make_rules.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/heap.h"
#include "runtime/document/json.h"
#include "runtime/plan/pattern.h"

enum { RULES_MAX_BYTES = 256 << 20 };

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
    char *text = NULL;
    size_t bytes;
    json_t *entries = NULL;
    if (ms_file_read(path, RULES_MAX_BYTES, &text, &bytes, &fault)) {
        entries = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &error);
        if (entries == NULL)
            ms_fault_at_line(&reading, error.line, error.column, error.text);
        else if (!json_is_array(entries))
            ms_fault_at(&reading, NULL, "expected a list of entries");
    }
    ms_heap_free(text);
    if (json_is_array(entries))
        return entries;
    fprintf(stderr, "%s\n", fault.text);
    json_decref(entries);
    return NULL;
}

/* The entries are valid, so each name is unique. */
static bool index_rules(struct rules *rules)
{
    const size_t count = json_array_size(rules->entries);
    rules->exact = json_object();
    rules->seen = calloc(count + 1, sizeof(*rules->seen));
    if (rules->exact == NULL || rules->seen == NULL)
        return false;
    for (size_t i = 0; i < count; i++) {
        const char *pattern =
            json_string_value(json_object_get(json_array_get(rules->entries, i), "name"));
        if (pattern == NULL || !ms_pattern_is_exact(pattern))
            continue;
        char *name = strdup(pattern);
        if (name == NULL)
            return false;
        ms_pattern_unescape(name);
        const int error = json_object_set_new(rules->exact, name, json_integer((json_int_t)i));
        free(name);
        if (error != 0)
            return false;
    }
    return true;
}

/* A declaration among the rules would change the tensors' order, on which others may depend. */
static json_t *without_declarations(const struct rules *rules)
{
    json_t *copy = json_deep_copy(rules->entries), *index;
    const char *name;
    json_object_foreach(rules->exact, name, index)
    {
        json_t *rule = json_array_get(copy, (size_t)json_integer_value(index));
        json_object_del(rule, "dtype");
        json_object_del(rule, "shape");
    }
    return copy;
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
    char *text = text_of(mesh, rules->entries);
    bool good = plan_is_good(text, path, NULL);
    free(text);
    if (!good)
        return false;
    json_t *placing = index_rules(rules) ? without_declarations(rules) : NULL;
    text = placing != NULL ? text_of(mesh, placing) : NULL;
    good = lay_out(text, path, checkpoint, &rules->plan, &rules->layout);
    free(text);
    json_decref(placing);
    return good;
}

void rules_cleanup(struct rules *rules)
{
    json_decref(rules->entries);
    json_decref(rules->exact);
    free(rules->seen);
    ms_layout_destroy(rules->layout);
    ms_plan_destroy(rules->plan);
}

json_t *rules_find(const struct rules *rules, size_t order)
{
    const size_t entry = rules->layout != NULL ? ms_layout_entry(rules->layout, order) : SIZE_MAX;
    return entry != SIZE_MAX ? json_array_get(rules->entries, entry) : NULL;
}

/* Reports a fault in the rule with this index; returns false. */
static bool say(const struct rules *rules, size_t index, const char *name, const char *what)
{
    struct ms_fault fault;
    const struct ms_fault_context reading = {rules->path, &fault};
    const struct ms_place list = {NULL, "tensors", 0}, at = {&list, NULL, index};
    ms_fault_at(&reading, &at, "tensor %s %s", name, what);
    fprintf(stderr, "%s\n", fault.text);
    return false;
}

bool rules_check(struct rules *rules, const char *name, json_t *entry)
{
    json_t *index = json_object_get(rules->exact, name);
    if (index == NULL)
        return true;
    const size_t i = (size_t)json_integer_value(index);
    json_t *rule = json_array_get(rules->entries, i);
    json_t *dtype = json_object_get(rule, "dtype"), *shape = json_object_get(rule, "shape");
    rules->seen[i] = true;
    return dtype == NULL ||
           (json_equal(dtype, json_object_get(entry, "dtype")) &&
            json_equal(shape, json_object_get(entry, "shape"))) ||
           say(rules, i, name, "has another dtype or shape in the checkpoint");
}

bool rules_check_seen(const struct rules *rules)
{
    const char *name;
    json_t *index;
    json_object_foreach(rules->exact, name, index)
    {
        const size_t i = (size_t)json_integer_value(index);
        if (!rules->seen[i] && json_object_get(json_array_get(rules->entries, i), "shape") != NULL)
            return say(rules, i, name, "is not in the checkpoint");
    }
    return true;
}
