/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The rules of metashard-plan make: entries that decide before the strategy. They are checked by
 * themselves and for the checkpoint, so that a fault names the rule. Whoever finds a fault says it.
 */
#ifndef METASHARD_TOOLS_PLAN_MAKE_RULES_H
#define METASHARD_TOOLS_PLAN_MAKE_RULES_H

#include <jansson.h>

#include "runtime/plan/plan.h"

/* The entries of --rules, and which of them decides each tensor: they are a plan for the checkpoint. */
struct rules {
    const char *path; /* NULL: there are none */
    json_t *entries;
    json_t *exact; /* unescaped name to index in entries */
    bool *seen;    /* by index: the tensor of an exact name is there */
    struct ms_plan *plan;
    struct ms_layout *layout; /* tensors stand as in the checkpoint */
};

/* path: NULL for none. rules_cleanup() in any case, before the checkpoint is closed. */
bool rules_init(struct rules *rules, const char *path, json_t *mesh,
                const struct ms_checkpoint *checkpoint);
void rules_cleanup(struct rules *rules);

/* The first rule that matches the `order`-th tensor of the checkpoint. Borrowed; NULL: none does. */
json_t *rules_find(const struct rules *rules, size_t order);

/* A rule may say what a tensor of its very name is: dtype and shape are those of the tensor's entry,
 * and once each tensor has passed, there is none that was not seen. */
bool rules_check(struct rules *rules, const char *name, json_t *entry);
bool rules_check_seen(const struct rules *rules);

/* A plan with these entries; a new reference. NULL: memory is out. */
json_t *plan_document(json_t *mesh, json_t *entries);

/* `text` is a plan, and for the checkpoint if there is one. `file` is for faults; text NULL: memory is
 * out. */
bool plan_is_good(const char *text, const char *file, const struct ms_checkpoint *checkpoint);

#endif
