/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reading state pages (format.h): of processes that run, and of those that are gone. A snapshot is a copy in
 * which every record is whole. Nothing in a file is trusted: whatever it holds, reading ends with a snapshot
 * or with a fault that names the file, the position and what was expected. The file is read and not mapped, so
 * that one which gets shorter is no signal.
 */
#ifndef METASHARD_RUNTIME_STATE_VIEW_H
#define METASHARD_RUNTIME_STATE_VIEW_H

#include <stdbool.h>
#include <stddef.h>

#include "runtime/document/fault.h"
#include "runtime/state/folder.h"
#include "runtime/state/format.h"

/*
 * All texts end with a zero and are UTF-8 without control characters. Numbers are as the file has them: sums
 * of a damaged file may be wrong, but an index is in range or 0.
 */
struct ms_snapshot {
    const char *path; /* as the caller gave it; its to keep */
    enum ms_life life;
    uint64_t
        taken_ns; /* after the start, by this machine's clock, while it lives; else when it last changed */
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
    struct ms_state_sample
        *samples; /* by time, each later than the one before; the last is `taken_ns` */
    size_t block_count;
    struct ms_state_block *blocks; /* allocations by size, each followed by its parts by address */
    size_t event_count;
    struct ms_state_event
        *events;          /* by number, which is sequence / 2 - 1; by time within a thread */
    uint64_t events_lost; /* that there were before these, or between them */

    size_t torn_records; /* that a process left half written when it was killed */
};

/* False: *fault says why. Afterwards ms_snapshot_cleanup. */
bool ms_snapshot_read(const char *path, struct ms_snapshot *snapshot_out, struct ms_fault *fault);
void ms_snapshot_cleanup(struct ms_snapshot *snapshot);

/* A figure by its name (ms_counter_names); 0 when the page has none of that name. */
uint64_t ms_snapshot_figure(const struct ms_snapshot *snapshot, const char *name);

/* Ends a text, and puts '?' for bytes that are no UTF-8, and for control characters. */
void ms_state_clean_text(char *text, size_t bytes);

/* Of an open file; `name` is for faults. For tests. */
bool ms_snapshot_read_file(int file, const char *name, struct ms_snapshot *snapshot_out,
                           struct ms_fault *fault);

#endif
