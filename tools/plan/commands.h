/* SPDX-License-Identifier: Apache-2.0 */
/* The commands of metashard-plan (docs/plan-format.md): each returns the program's exit status. */
#pragma once

#include "runtime/plan/plan.h"
#include "tools/command_line.h"

struct options {
    struct words words;
    const char *strategy, *mesh, *rules, *world, *output; /* make; some of the others too */
    const char *json;                                     /* any text; not make, send */
    const char *rank;                                     /* explain */
    const char *ranks;                                    /* check; any text */
    const char *quiet;                                    /* check, fit, send; any text */
    const char *memory;                                   /* fit */
    const char *to, *timeout;                             /* send */
    const char *help, *version;
};

/* Reads a whole number, at most `most`, such as "12". */
bool read_count(const char *text, uint64_t most, uint64_t *count_out);

/* The text of a good plan for a checkpoint, which is opened too; free() and ms_checkpoint_close().
 * NULL: *status_out, and it was said why. */
char *plan_text(const struct options *options, const char *path,
                struct ms_checkpoint **checkpoint_out, int *status_out);

int run_make(const struct options *options);
int run_estimate(const struct options *options);
int run_check(const struct options *options);
int run_explain(const struct options *options);
int run_fit(const struct options *options);
int run_send(const struct options *options);
