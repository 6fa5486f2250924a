/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The rules of metashard-plan make: entries that decide before the strategy. They are checked by
 * themselves and against the checkpoint, so that a fault names the rule. The function that finds a
 * fault reports it.
 */
#pragma once

#include "runtime/plan/plan.h"
#include "tools/plan/plan_writer.h"

/* The entries of --rules, which are a plan for the checkpoint. */
struct rules {
    const char *path; /* NULL if there are none */
    struct ms_pages text;
    struct ms_pages entries; /* their places in the text */
    size_t count;
    struct ms_plan *plan;
    struct ms_layout *layout; /* tensors are in the order of the checkpoint */
};

/* path may be NULL. A rule may say what a tensor of its exact name is: checks that there is such a
 * tensor, of this dtype and shape. Call rules_cleanup() in any case, before the checkpoint is
 * closed. */
bool rules_init(struct rules *rules, const char *path, const struct ms_mesh *mesh,
                const struct ms_checkpoint *checkpoint);
void rules_cleanup(struct rules *rules);

/* The first rule that matches the `order`-th tensor of the checkpoint, or NULL. */
const char *rules_find(const struct rules *rules, size_t order);

/* Checks that `text` is a valid plan, also for the checkpoint if there is one. `file` is for
 * faults. text is NULL if out of memory. */
bool plan_is_good(const char *text, const char *file, const struct ms_checkpoint *checkpoint);
