/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Materialising: backing granules and replaying the lineage into them. The caller holds the claim on
 * the allocation. On failure nothing that was deferred is lost: the lineage is as before.
 */
#ifndef METASHARD_RUNTIME_FILL_MATERIALISE_H
#define METASHARD_RUNTIME_FILL_MATERIALISE_H

#include "runtime/memory/allocations.h"

enum ms_access {
    MS_READ, /* the bytes will only be read: what can be replayed again is cached and keeps its lineage */
    MS_WRITE /* they may be written: resident */
};

/*
 * Afterwards [begin, end) is present, and holds what the program wrote. Waits for the device. What a plan
 * gives to other ranks is counted as read outside of it, or refused (active_plan.h).
 */
CUresult ms_materialise(struct ms_allocation *allocation, size_t begin, size_t end,
                        enum ms_access access);

/* The same for what is read to be sent to other ranks, which may be theirs. */
CUresult ms_materialise_sent(struct ms_allocation *allocation, size_t begin, size_t end,
                             enum ms_access access);

/* The same for what a kernel may reach there. In enforce mode what is remote stays so, but no granule is left
 * of which only a part is right: a kernel that goes where it must not meets addresses without memory. */
CUresult ms_materialise_reached(struct ms_allocation *allocation, size_t begin, size_t end,
                                enum ms_access access);

/* The same without what is dead and what is remote. */
CUresult ms_materialise_kept(struct ms_allocation *allocation, size_t begin, size_t end,
                             enum ms_access access);

/* As ms_materialise_reached without what is dead. */
CUresult ms_materialise_live(struct ms_allocation *allocation, size_t begin, size_t end,
                             enum ms_access access);

/* Everything of the allocation that a recorded launch made becomes resident. */
CUresult ms_materialise_launched(struct ms_allocation *allocation);

/* As ms_materialise, for a range that the program is about to overwrite whole: nothing is replayed, unless a
 * capture is under way, which puts the write off. */
CUresult ms_back_for_overwrite(struct ms_allocation *allocation, size_t begin, size_t end);

#endif
