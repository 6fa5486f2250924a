/* SPDX-License-Identifier: Apache-2.0 */
/* What the process leaves at exit: a summary line at log level info, and the dump. */
#ifndef METASHARD_RUNTIME_START_EXIT_REPORT_H
#define METASHARD_RUNTIME_START_EXIT_REPORT_H

#include "runtime/config/config.h"

/*
 * The dump is one JSON object, "format": "metashard-dump/1". All sizes are in bytes. Members: pid,
 * version, the counters of counters.def by name, backed_bytes and backed_bytes_peak (physical
 * memory behind deferred allocations, now and at most), snapshot_bytes, settle_cause (why
 * everything was materialised last), deferred_bytes (live bytes that are not in device memory), and
 * blocks: a list of live allocations, each with id, address, device, bytes, backed_bytes and
 * lineage, a list of [begin, end, kind, detail]. A kind that begins with "cached" is in device
 * memory and could be replayed again; one that begins with "away" is remote. The dump waits for
 * allocations that another thread works on, one second in all. One that is still busy has "busy":
 * true and an empty lineage, counts in busy_blocks, and neither in backed_bytes nor in
 * deferred_bytes.
 *
 * With an active plan there is "plan": file, mode, rank, world_size, plans (how many have arrived),
 * tensors (of the plan, found in device memory), planned_bytes (of these) and owned_bytes (of this
 * rank), remote_reads and remote_read_bytes (reads of remote bytes), unmatched and ambiguous (names
 * of entries, or "tensors[INDEX]"), and remote_readers: the calls that read remote bytes, each with
 * tensor, count, bytes.
 */
void ms_report(const struct ms_config *config);

#endif
