/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/plan/make_rules.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/document/json.h"

/* The keys of a rule. */
enum { NAME, SIZE, ORDER, DTYPE, SHAPE, PLACEMENTS, RANGES, KEYS };
static const char *const keys[] = {"name",  "size",       "order",  "dtype",
                                   "shape", "placements", "ranges", NULL};

/* The rules as they are. Or those of an exact name do not declare its tensor: that would change the
 * tensors' order, on which others may depend. Or nothing but these declarations. */
enum part { ALL, DECISIONS, DECLARATIONS };

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

/* Sets where each of the entries is; false: out of memory. */
static bool list_entries(struct rules *rules, const char *list)
{
    if (!ms_pages_grow(&rules->entries, (rules->count + 1) * sizeof(const char *)))
        return false;
    const char **entries = rules->entries.memory;
    struct ms_json_walk walk = {.in = list};
    for (size_t i = 0; ms_json_next(&walk); i++)
        entries[i] = walk.value;
    return true;
}

static bool load_rules(struct rules *rules)
{
    struct ms_fault fault;
    const struct ms_fault_context reading = {rules->path, &fault};
    const char *root;
    size_t bytes;
    if (ms_json_read_file(rules->path, MS_JSON_MAX_BYTES, &rules->text, &bytes, &fault) &&
        ms_json_check(&reading, rules->text.memory, bytes, &root) &&
        (ms_json_is_list(root) || ms_fault_at(&reading, NULL, "expected a list of entries")) &&
        ((rules->count = ms_json_size(root)) <= MS_PLAN_MAX_ENTRIES ||
         ms_fault_at(&reading, NULL, "expected at most %d entries", MS_PLAN_MAX_ENTRIES)) &&
        (list_entries(rules, root) || ms_fault_at(&reading, NULL, "out of memory")))
        return true;
    fprintf(stderr, "%s\n", fault.text);
    return false;
}

/* `all` is the plan of all rules, which has their names. */
static bool is_exact(const struct ms_plan *all, size_t index)
{
    const char *name = ms_entry_at(all, index).name;
    return name != NULL && ms_entry_is_exact(name);
}

static void put_part(struct writer *entries, const char *rule, bool is_of_one, enum part part)
{
    struct ms_fault fault;
    const struct ms_fault_context reading = {"", &fault};
    const char *values[KEYS];
    const bool is_declaration = part == DECLARATIONS;
    ms_json_members(&reading, NULL, rule, keys, values, NULL);
    struct writer entry = json_begin(entries, NULL, '{', true);
    if (is_declaration && (!is_of_one || values[SHAPE] == NULL))
        put_string(&entry, "name", "*");
    else
        for (size_t i = 0; i < KEYS; i++) {
            const bool declares = i == DTYPE || i == SHAPE;
            if (values[i] != NULL &&
                (is_declaration ? declares || i == NAME : !declares || !is_of_one))
                put_json(&entry, keys[i], values[i]);
        }
    json_end(&entry, '}');
}

/* The text of a plan with this part of the rules; free(). NULL: out of memory. `all` as for
 * is_exact; NULL for the part ALL. */
static char *text_of(const struct rules *rules, const struct ms_mesh *mesh, enum part part,
                     const struct ms_plan *all)
{
    struct plan_writer writer;
    const char *const *entries = rules->entries.memory;
    if (!plan_writer_begin(&writer, mesh))
        return NULL;
    for (size_t i = 0; i < rules->count; i++) {
        if (part == ALL)
            put_json(&writer.entries, NULL, entries[i]);
        else
            put_part(&writer.entries, entries[i], is_exact(all, i), part);
    }
    return plan_writer_end(&writer);
}

static bool lay_out_part(const struct rules *rules, const struct ms_mesh *mesh, enum part part,
                         const struct ms_plan *all, const struct ms_checkpoint *checkpoint,
                         struct ms_plan **plan_out, struct ms_layout **layout_out)
{
    char *text = text_of(rules, mesh, part, all);
    const bool good = lay_out(text, rules->path, checkpoint, plan_out, layout_out);
    free(text);
    return good;
}

bool rules_init(struct rules *rules, const char *path, const struct ms_mesh *mesh,
                const struct ms_checkpoint *checkpoint)
{
    *rules = (struct rules){.path = path};
    if (path == NULL)
        return true;
    struct ms_plan *plan[2] = {0};
    struct ms_layout *layout = NULL;
    const bool good =
        load_rules(rules) && lay_out_part(rules, mesh, ALL, NULL, NULL, &plan[0], NULL) &&
        lay_out_part(rules, mesh, DECLARATIONS, plan[0], checkpoint, &plan[1], &layout) &&
        lay_out_part(rules, mesh, DECISIONS, plan[0], checkpoint, &rules->plan, &rules->layout);
    ms_layout_destroy(layout);
    ms_plan_destroy(plan[0]);
    ms_plan_destroy(plan[1]);
    return good;
}

void rules_cleanup(struct rules *rules)
{
    ms_layout_destroy(rules->layout);
    ms_plan_destroy(rules->plan);
    ms_pages_cleanup(&rules->entries);
    ms_pages_cleanup(&rules->text);
}

const char *rules_find(const struct rules *rules, size_t order)
{
    const size_t entry =
        rules->layout != NULL ? ms_layout_at(rules->layout, order).entry : SIZE_MAX;
    const char *const *entries = rules->entries.memory;
    return entry != SIZE_MAX ? entries[entry] : NULL;
}
