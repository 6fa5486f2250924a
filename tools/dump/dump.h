/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the files of metashard-dump. */
#pragma once

#include <stdbool.h>
#include <stdio.h>

#include "runtime/state/snapshot.h"
#include "tools/command_line.h"

enum { MAX_FILES = 4096 };

struct options {
    struct words words;
    const char *json, *events, *brief, *help, *version, *color, *width, *html, *trace, *job;
};

/* Snapshots of one or more processes. */
struct view {
    const struct ms_snapshot *processes;
    size_t count;
};

/* Opens the process ids and files of the command line, and sorts them by rank or leaves them in
 * order. Without any, the pages of the job of --job, or else of the newest page. Kernels have short
 * names, but with --json. Reports a failure and returns false. */
bool view_open(struct view *view, const struct options *options, bool is_by_rank);
void view_close(struct view *view);

/* All pages of the usual folders, or those of a job, the newest first. False if some cannot be
 * read, which was said; the others are there. */
bool view_find(struct view *view, const char *job);

/* Keeps the first of the sorted pages, with the others of its run, of the same job, or at least of
 * as many ranks; each rank once. */
void view_keep_newest(struct view *view);

/* The folders where pages are looked for, "A or B". The buffer is one for all. */
const char *folders_text(void);

/* Gives blocks without a name that of their tensor, if their checkpoint still exists and has one.
 * The name is right only if the file has not changed. Opens no file that another user's page
 * names. */
void name_blocks(struct ms_snapshot *snapshot);

/* Sums, and values derived from the figures. */
enum total {
    TOTAL_REQUESTED,
    TOTAL_LIVE_PEAK,
    TOTAL_LIVE,
    TOTAL_DEFERRED,
    TOTAL_BACKED,
    TOTAL_BACKED_PEAK,
    TOTAL_SAVED,   /* the peak that there would have been, less the peak that was */
    TOTAL_SKIPPED, /* written by the program, noted only, and never copied to the device */
    TOTAL_COPIED,
    TOTAL_TIME,
    TOTAL_COUNT
};
struct totals {
    uint64_t of[TOTAL_COUNT];
};
extern const struct total_name {
    const char *figure; /* in the JSON */
    const char *term, *meaning;
} total_names[TOTAL_COUNT];

/* Those of a line for each process, the most important first. */
enum { PROCESS_TOTALS = 7 };
extern const enum total process_totals[PROCESS_TOTALS];

struct totals totals_of(const struct ms_snapshot *snapshot);

/* "running", "ended", "killed" (without having ended by exit) or "unknown"; and the same before a
 * time: "running for". */
const char *life_name(const struct ms_snapshot *snapshot);
const char *life_words(const struct ms_snapshot *snapshot);

/* The outcome of a device's self-check, to stand behind its state. Empty if it says nothing. */
const char *check_outcome(const struct ms_state_device *device);

/* "deferred", "partly", "cached", "resident", or "dead". */
const char *block_state(const struct ms_state_block *block);

bool has_rank(const struct ms_snapshot *snapshot);

/* "process 4711, rank 3 of 8". The buffer is one for all. */
const char *process_name(const struct ms_snapshot *snapshot);

/* The rank as a text, or `unknown`. The buffer is one for all. */
const char *rank_text(const struct ms_snapshot *snapshot, const char *unknown);

int run_list(const struct options *options);
int run_show(const struct options *options);
int run_metrics(const struct options *options);
int run_diff(const struct options *options);

/* The saving of a run, in two or three lines. */
void show_brief(const struct view *view);
void show_missing(const struct view *view);
void show_bypassed(const struct view *view); /* MetaShard did not see all calls */

/* Writes the view as one JSON object (docs/state-schema.json). `most`: rows of each list of a
 * process; `most_merged`: of a list of all processes. The object counts the rows left out. */
void write_json(FILE *file, const struct view *view, size_t most, size_t most_merged);

/* The same of each process without what there are many of: blocks, tensors, events and the like. */
void write_list_json(FILE *file, const struct view *view);

/* True for "-"; false for NULL. */
bool is_standard(const char *path);

/* Each writes a file, or standard output for "-". Reports a failure and returns false. */
bool write_html(const char *path, const struct view *view);
bool write_trace(const char *path, const struct view *view);

/* Writes what `write` writes, in the same way; `write` returns false if out of memory. */
bool write_output(const char *path, const struct view *view,
                  bool (*write)(FILE *file, const struct view *view));
