/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of metashard-dump share. */
#ifndef METASHARD_TOOLS_DUMP_DUMP_H
#define METASHARD_TOOLS_DUMP_DUMP_H

#include <stdbool.h>
#include <stdio.h>

#include "runtime/state/view.h"

/* Exit statuses: GOOD; BAD: a page that is not there, not valid, or of another version, or output that cannot be
 * written; USAGE. */
enum { GOOD, BAD, USAGE };

enum { MAX_FILES = 4096 };

/* NULL: not given; any text for those without an argument. */
struct options {
    const char *command;
    const char **files;
    size_t file_count;
    const char *json, *events, *help, *color, *width, *html, *trace;
};

/* Snapshots of one or more processes, by rank and then as they were given. */
struct view {
    const struct ms_snapshot *processes;
    size_t count;
};

/* Opens what the command line names: process ids and files. False: it was said why. */
bool view_open(struct view *view, const struct options *options);

/* The same in the order that it was named. */
bool view_open_in_order(struct view *view, const struct options *options);
void view_close(struct view *view);

/* Blocks without a name get that of their tensor, where the checkpoint that they are from is there and tells it.
 * Such a name is only as good as the file is what it was. */
void name_blocks(struct ms_snapshot *snapshot);

/* Sums, and what follows from the figures. */
struct totals {
    uint64_t requested, live, live_peak, deferred, backed, backed_peak, h2d;
    uint64_t saved;   /* the peak that there would have been, less the peak that was */
    uint64_t skipped; /* written by the program, noted only, and never copied to the device */
    uint64_t materialise_ns;
};
struct totals totals_of(const struct ms_snapshot *snapshot);

/* "running", "ended", "killed" (gone without having ended) or "unknown". */
const char *life_name(const struct ms_snapshot *snapshot);

/* The same before a time: "running for". */
const char *life_words(const struct ms_snapshot *snapshot);

/* "deferred", "partly", "cached", "resident", or "dead". */
const char *block_state(const struct ms_state_block *block);

bool has_rank(const struct ms_snapshot *snapshot);

/* The rank as a text, or `unknown`. The buffer is one for all. */
const char *rank_text(const struct ms_snapshot *snapshot, const char *unknown);

int run_list(const struct options *options);
int run_show(const struct options *options);
int run_diff(const struct options *options);

/* All of the view as one JSON object (docs/state-schema.json). */
void write_json(FILE *file, const struct view *view);

#endif
