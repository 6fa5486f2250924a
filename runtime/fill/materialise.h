/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Materialising: backing granules and replaying the lineage into them. The caller holds the claim
 * on the allocation. On failure nothing that was deferred is lost: the lineage is as before.
 */
#pragma once

#include "runtime/memory/space.h"

/* Each row of needs.def says what holds for its need. */
enum ms_need {
#define MS_NEED(name, becomes, elsewhere, remote, absent, extents, original, why) MS_NEED_##name,
#include "runtime/fill/needs.def"
#undef MS_NEED
    MS_NEED_COUNT
};

struct ms_need_row {
    enum {
        MS_BECOMES_CACHED,
        MS_BECOMES_RESIDENT,
        MS_BECOMES_OVERWRITTEN,
        MS_BECOMES_PINNED
    } becomes;
    enum ms_need elsewhere;
    enum { MS_REMOTE_COUNTED, MS_REMOTE_ALLOWED, MS_REMOTE_LEFT, MS_REMOTE_FAULTS } remote;
    enum { MS_ABSENT_REFUSED, MS_ABSENT_LEFT } absent;
    enum { MS_EXTENTS_ALL, MS_EXTENTS_LIVE, MS_EXTENTS_LAUNCHED } extents;
    enum { MS_ORIGINAL_LEFT, MS_ORIGINAL_AGAIN, MS_ORIGINAL_AT_ONCE } original;
    enum ms_reason why;
};
extern const struct ms_need_row ms_needs[MS_NEED_COUNT];

/* Brings [begin, end) into memory as the row of the need says. Waits for the device. */
CUresult ms_materialise(struct ms_allocation *allocation, size_t begin, size_t end,
                        enum ms_need need);

/* The same for many ranges, and then what is missing in any granule of the allocation that has
 * memory. */
CUresult ms_materialise_ranges(struct ms_allocation *allocation, const struct ms_range *ranges,
                               size_t count, enum ms_need need);

/*
 * Fills what is missing in those granules of [begin, end), whole ones, that have memory: a kernel
 * that comes there unseen finds the right bytes. Not, with a plan, what this rank does not keep;
 * nor what recorded launches made, and what cannot be read any more. ms_materialise does it, but
 * not for collectives that send.
 */
void ms_materialise_granules(struct ms_allocation *allocation, size_t begin, size_t end);

/* The same after a write of [begin, end): what it has recorded is played at once, and what stands
 * beside it before the next launch, since the next write may overwrite that. */
void ms_materialise_granules_later(struct ms_allocation *allocation, size_t begin, size_t end);

/* Before work that may read anything that has memory: fills what was left for it. No claim is
 * held. */
void ms_materialise_unfilled(void);

/* MS_NEED_OVERWRITE for a copy or set that the driver does: its granules are filled later. */
CUresult ms_materialise_for_copy(struct ms_allocation *allocation, size_t begin, size_t end);

/* The same bytes are in memory at another address, of the same context: copies them from there to
 * [begin, end), which is cached then. */
CUresult ms_materialise_copied(struct ms_allocation *allocation, size_t begin, size_t end,
                               CUdeviceptr from);
