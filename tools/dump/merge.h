/* SPDX-License-Identifier: Apache-2.0 */
/* The data of several processes merged into one list, or that of one process. */
#pragma once

#include "tools/dump/dump.h"

/* When the first of them started: their times are put on one clock with it. Unix nanoseconds. */
uint64_t view_start_ns(const struct view *view);

/* The nanoseconds to add to the times of one process, so that they count from view_start_ns(). */
uint64_t view_shift_ns(const struct view *view, const struct ms_snapshot *snapshot);

/* The largest of each kind: processes that did not live together had no sum at any time. */
struct totals view_largest(const struct view *view);

/* The process of which the figure is largest. */
const struct ms_snapshot *view_worst(const struct view *view, const char *figure);

/* The runs that the processes are of, by the names of their jobs. 0: no process has one. */
size_t view_runs(const struct view *view);

/* The ranks of their job that have no page among them, as "1, 3 and 2 more". Empty if there are
 * none, or if that is not known. The buffer is one for all. */
const char *view_missing_ranks(const struct view *view);

/* Each returns NULL if out of memory. free(). */

/* Causes of the same kind, reason, call and text added up; the most bytes first, then the most
 * often. Processes wait at the same time, so the time is that of the one that waited longest. First
 * and last are on the view's clock. A chapter leaves out the other sums and causes. */
enum chapter { WHOLE_RUN, LOADING, WORK };
struct ms_state_cause *view_causes(const struct view *view, enum chapter chapter,
                                   size_t *count_out);

/* Blocks of one name, as one tensor, the largest first. With several processes, each figure is the
 * most that one process has. */
struct tensor_row {
    const char *name; /* of a block of a snapshot */
    uint64_t bytes, deferred_bytes, present_bytes, file_bytes;
    size_t blocks;
};
struct tensor_row *view_tensors(const struct view *view, size_t *count_out);

/* The memory of a process from `time_ns` to the next moment. */
struct moment {
    uint64_t time_ns, live_bytes, deferred_bytes, backed_bytes, h2d_bytes;
};

/* At most `most` (2 or more) are left: the one with the most memory of each span of time, and the
 * last. */
struct moment *moments_of(const struct ms_snapshot *snapshot, size_t most, size_t *count_out);
