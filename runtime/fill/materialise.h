/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Materialising: backing granules and replaying the lineage into them. The caller holds the claim
 * on the allocation. On failure nothing that was deferred is lost: the lineage is as before.
 */
#pragma once

#include "runtime/memory/space.h"
#include "runtime/state/state.h"

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

/* ms_materialise for many ranges; then fills missing bytes in all granules of the allocation that
 * have memory. */
CUresult ms_materialise_ranges(struct ms_allocation *allocation, const struct ms_range *ranges,
                               size_t count, enum ms_need need);

/*
 * Fills the missing bytes in all granules around [begin, end) that have memory, so that a kernel
 * which comes there unseen finds the right bytes. Leaves out results of recorded launches, bytes
 * that cannot be read any more and, with a plan, bytes that this rank does not keep. ms_materialise
 * calls it, except for collectives that send.
 */
void ms_materialise_granules(struct ms_allocation *allocation, size_t begin, size_t end);

/* ms_materialise_granules after a write of [begin, end): fills this range at once, and the bytes
 * beside it before the next launch, since the next write may overwrite those. */
void ms_materialise_granules_later(struct ms_allocation *allocation, size_t begin, size_t end);

/* Fills the bytes that ms_materialise_granules_later has left, before work that may read any
 * memory. The caller holds no claim. */
void ms_materialise_unfilled(void);

/* MS_NEED_OVERWRITE for a copy or set that the driver does: fills its granules later. */
CUresult ms_materialise_for_copy(struct ms_allocation *allocation, size_t begin, size_t end);

/* The allocation at an address: `own`, which the caller has claimed, or another, which MS_CLAIMED
 * *claimed_out lets go. NULL: there is none, or somebody works on it already. */
static inline struct ms_allocation *ms_materialise_beside(struct ms_allocation *own,
                                                          CUdeviceptr address,
                                                          struct ms_allocation **claimed_out)
{
    const bool is_own = address - own->address < own->bytes;
    *claimed_out = is_own ? NULL : ms_space_try_claim(address);
    return is_own ? own : *claimed_out;
}

/* True if enough of the device's memory is left then for the other bytes that a call needs. */
static inline bool ms_materialise_has_room(size_t bytes)
{
    enum { LEAST_PART = 8 };
    size_t free, total;
    return ms_driver.mem_get_info(&free, &total) == CUDA_SUCCESS && bytes < free &&
           free - bytes >= total / LEAST_PART;
}

/* Copies [begin, end) from the address `from`, of the same context, where the same bytes are in
 * memory. The range is cached then. */
CUresult ms_materialise_copied(struct ms_allocation *allocation, size_t begin, size_t end,
                               CUdeviceptr from);
