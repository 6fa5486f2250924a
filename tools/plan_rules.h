/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The rules of metashard-plan make: entries that decide before the strategy. They are checked by
 * themselves and for the checkpoint, so that a fault names the rule. Whoever finds a fault says it.
 */
#ifndef METASHARD_TOOLS_PLAN_RULES_H
#define METASHARD_TOOLS_PLAN_RULES_H

#include <jansson.h>

#include "runtime/plan/plan.h"

/* The entries of --rules. Those of an exact name are found by it, the others are tried one by one. */
struct rules {
    const char *path; /* NULL: there are none */
    json_t *entries;
    json_t *exact; /* unescaped name to index in entries */
    size_t *others;
    size_t other_count;
    bool *seen; /* by index: the tensor of an exact name is there */
};

/* path: NULL for none. rules_cleanup() in any case. */
bool rules_init(struct rules *rules, const char *path, json_t *mesh,
                const struct ms_checkpoint *checkpoint);
void rules_cleanup(struct rules *rules);

/* The first rule that matches the tensor, the `order`-th of the plan, as the plan's reader finds it.
 * Borrowed; NULL: none does. */
json_t *rules_find(const struct rules *rules, const struct ms_tensor *tensor, size_t order);

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
