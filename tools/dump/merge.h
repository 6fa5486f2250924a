/* SPDX-License-Identifier: Apache-2.0 */
/* The data of several processes merged into one list, or that of one process. */
#ifndef METASHARD_TOOLS_DUMP_MERGE_H
#define METASHARD_TOOLS_DUMP_MERGE_H

#include "tools/dump/dump.h"

/* One or more processes, by rank. Borrowed. */
struct group {
    const struct ms_snapshot *processes;
    size_t count;
};

/* When the first of them started, in Unix nanoseconds: the start of the group's clock. */
uint64_t group_start_ns(const struct group *group);

/* The difference between the times of one of them and the group's clock. */
uint64_t group_shift_ns(const struct group *group, const struct ms_snapshot *snapshot);

struct totals group_totals(const struct group *group);

/* Each returns NULL if out of memory. free(). */

/* Sums over causes of one kind, reason, call and text; by bytes, then by count, descending. */
struct ms_state_cause *group_causes(const struct group *group, size_t *count_out);

/* The sums over tensors of one name, the largest first. */
struct tensor_row *group_tensors(const struct group *group, size_t *count_out);

/* Their memory from `time_ns` to the next moment. An ended process counts with its last sample. */
struct moment {
    uint64_t time_ns, live_bytes, deferred_bytes, backed_bytes;
};

/* Leaves at most `most` (>= 2) moments: the last, and the greatest memory of each time span. */
struct moment *group_moments(const struct group *group, size_t most, size_t *count_out);

#endif
