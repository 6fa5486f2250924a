/* SPDX-License-Identifier: Apache-2.0 */
/* What several processes have in common, as one list; of one process, its own. */
#ifndef METASHARD_TOOLS_DUMP_MERGE_H
#define METASHARD_TOOLS_DUMP_MERGE_H

#include "tools/dump/dump.h"

/* One or more processes, by rank. Borrowed. */
struct group {
    const struct ms_snapshot *processes;
    size_t count;
};

/* When the first of them started: their times are put on one clock with it. Unix nanoseconds. */
uint64_t group_start_ns(const struct group *group);

/* What is to be added to the times of one of them, so that they count from there. */
uint64_t group_shift_ns(const struct group *group, const struct ms_snapshot *snapshot);

struct totals group_totals(const struct group *group);

/* Each: NULL when memory is out. free(). */

/* Causes of the same kind, reason, call and text added up; the most bytes first, then the most often. */
struct ms_state_cause *group_causes(const struct group *group, size_t *count_out);

/* Tensors of one name added up, the largest first. */
struct tensor_row *group_tensors(const struct group *group, size_t *count_out);

/* Their memory from `time_ns` on, until the next one. A process counts with its last sample to the end. */
struct moment {
    uint64_t time_ns, live_bytes, deferred_bytes, backed_bytes;
};

/* At most `most` (2 or more) are left: the one with the most memory of each span of time, and the last. */
struct moment *group_moments(const struct group *group, size_t most, size_t *count_out);

#endif
