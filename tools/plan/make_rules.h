/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The rules of metashard-plan make: entries that decide before the strategy. They are checked by
 * themselves and against the checkpoint, so that a fault names the rule. The function that finds a
 * fault reports it.
 */
#pragma once

#include <jansson.h>

#include "runtime/plan/plan.h"

/* The entries of --rules, which are a plan for the checkpoint. */
struct rules {
    const char *path; /* NULL if there are none */
    json_t *entries;
    struct ms_plan *plan;
    struct ms_layout *layout; /* tensors are in the order of the checkpoint */
};

/* path may be NULL. A rule may say what a tensor of its exact name is: checks that there is such a
 * tensor, of this dtype and shape. Call rules_cleanup() in any case, before the checkpoint is
 * closed. */
bool rules_init(struct rules *rules, const char *path, json_t *mesh,
                const struct ms_checkpoint *checkpoint);
void rules_cleanup(struct rules *rules);

/* The first rule that matches the `order`-th tensor of the checkpoint, borrowed, or NULL. */
json_t *rules_find(const struct rules *rules, size_t order);

/* A plan with these entries, as a new reference, or NULL if out of memory. */
json_t *plan_document(json_t *mesh, json_t *entries);

/* Checks that `text` is a valid plan, also for the checkpoint if there is one. `file` is for
 * faults. text is NULL if out of memory. */
bool plan_is_good(const char *text, const char *file, const struct ms_checkpoint *checkpoint);
