/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads state pages (format.h), of running and of ended processes. A snapshot is a copy in which
 * every record is whole. Nothing in a file is trusted: whatever it holds, reading ends with a
 * snapshot, or with a fault that names the file, the position and what was expected. The file is
 * read, not mapped, so that a file that gets shorter raises no signal.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "runtime/document/fault.h"
#include "runtime/state/format.h"
#include "runtime/state/process.h"

/* All texts end with a zero and are printable (base/utf8.h). Numbers are as the file has
 * them: sums of a damaged file may be wrong, but an index is in range or 0. */
struct ms_snapshot {
    const char *path; /* the caller's string */
    bool is_own;      /* the file is this user's: the paths in it are, too */
    enum ms_life life;
    /* since the start: now, while the process lives; otherwise the time of the last change */
    uint64_t taken_ns;
    struct ms_state_process process;
    struct ms_state_plan plan; /* generation 0: none */

    size_t option_count;
    struct ms_state_option *options;
    size_t figure_count;
    struct ms_state_figure_name *figure_names;
    uint64_t *figures;
    size_t device_count; /* up to the last that has a name */
    struct ms_state_device *devices;
    size_t file_count;
    struct ms_state_file *files;

    size_t cause_count;
    struct ms_state_cause *causes; /* the most bytes first, then the most often */
    size_t sample_count;
    struct ms_state_sample *samples; /* by time, strictly; the last is at `taken_ns` */
    size_t block_count;
    struct ms_state_block *blocks; /* allocations by size, each followed by its parts by address;
                                      sequences mean nothing */
    size_t event_count;
    struct ms_state_event *events; /* by number, sequence / 2 - 1; by time within a thread */
    uint64_t events_lost;          /* before these, or between them */

    size_t torn_records; /* left half written when the process was killed */
};

/* Returns false with the reason in the fault. Call ms_snapshot_cleanup afterwards. */
bool ms_snapshot_read(const char *path, struct ms_snapshot *snapshot_out, struct ms_fault *fault);
void ms_snapshot_cleanup(struct ms_snapshot *snapshot);

/* A figure by its name (ms_counter_names), or 0 if the page has none of that name. */
uint64_t ms_snapshot_figure(const struct ms_snapshot *snapshot, const char *name);

/* Ends a text, and makes it printable (base/utf8.h). */
void ms_state_clean_text(char *text, size_t bytes);

/* Reads an open file; `name` is for faults. For tests. */
bool ms_snapshot_read_file(int file, const char *name, struct ms_snapshot *snapshot_out,
                           struct ms_fault *fault);
