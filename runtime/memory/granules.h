/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The memory of a claimed allocation: which of its granules have some, and orders that give them
 * memory or take it (backing.h). Offsets are in the allocation.
 */
#pragma once

#include "runtime/base/ranges.h"
#include "runtime/memory/space.h"

/* Gives memory to all granules that have a byte of [begin, end), after waiting for sinks there.
 * Running out of memory is logged, and leaves what was given before. */
CUresult ms_granules_cover(struct ms_allocation *allocation, size_t begin, size_t end);

/* Unmaps every handle that lies whole in [begin, end), but for those that others may use, and
 * returns how many bytes that freed. Nothing there is present, and the device is done with it. */
size_t ms_granules_uncover(struct ms_allocation *allocation, size_t begin, size_t end);

/* Cuts *range to the first part of it that has memory, of one handle. False if there is none. */
bool ms_granules_next(const struct ms_allocation *allocation, struct ms_range *range);

/* True if one handle is the memory of all of the range. */
bool ms_granules_are_one(const struct ms_allocation *allocation, size_t begin, size_t end);

/* Gives the device access to its memory, or takes it; that of the granules that have none yet is by
 * ms_backing_set_peer. */
CUresult ms_granules_set_peer(struct ms_allocation *allocation, CUdevice peer, bool enabled);

/* Bytes that have memory. */
size_t ms_granules_backed_bytes(const struct ms_allocation *allocation);

/* All granules that have a byte of [begin, end), cut to the allocation. */
static inline struct ms_range ms_granules_around(const struct ms_allocation *allocation,
                                                 size_t begin, size_t end)
{
    const size_t granule = allocation->granule;
    const size_t last = (end + granule - 1) / granule * granule;
    return (struct ms_range){begin / granule * granule,
                             last < allocation->bytes ? last : allocation->bytes};
}

/* Maps the sink to what has no memory of all granules of [begin, end), for one kernel; and unmaps
 * it. The device must be done with it then. */
CUresult ms_granules_sink(struct ms_allocation *allocation, size_t begin, size_t end);
void ms_granules_unsink(struct ms_allocation *allocation, size_t begin, size_t end);

/*
 * For work that is queued later: maps memory that is lent, or the sink (NULL), to the ranges, which
 * are granules without memory. Then tell the event that follows the work, when it is queued; or
 * NULL when it was not queued after all.
 */
CUresult ms_granules_lend(struct ms_allocation *allocation, const struct ms_ranges *ranges,
                          const struct ms_backing *lender, struct ms_sink_mapping **lent_out);
void ms_granules_lent(struct ms_allocation *allocation, const struct ms_sink_mapping *lent,
                      CUevent event);

/* Unmaps what was mapped for queued work that has a byte of [begin, end), after waiting for it. */
CUresult ms_granules_wait(struct ms_allocation *allocation, size_t begin, size_t end);
