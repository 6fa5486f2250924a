/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Materialising: backing granules and replaying the lineage into them. The caller holds the claim
 * on the allocation. On failure nothing that was deferred is lost: the lineage is as before.
 */
#ifndef METASHARD_RUNTIME_FILL_MATERIALISE_H
#define METASHARD_RUNTIME_FILL_MATERIALISE_H

#include "runtime/memory/allocations.h"

enum ms_access {
    /* the bytes are only read: they are cached and keep their lineage if it can be replayed */
    MS_READ,
    MS_WRITE /* the bytes may be written: they become resident */
};

/*
 * Makes [begin, end) present, with the bytes that the program wrote. Waits for the device. Remote
 * bytes are counted as remote reads, or refused (active_plan.h).
 */
CUresult ms_materialise(struct ms_allocation *allocation, size_t begin, size_t end,
                        enum ms_access access);

/* The same for bytes that are sent to other ranks: remote ones are neither counted nor refused. */
CUresult ms_materialise_sent(struct ms_allocation *allocation, size_t begin, size_t end,
                             enum ms_access access);

/* The same for bytes that a kernel may reach. In enforce mode remote bytes stay deferred, but no
 * granule is left half right: a kernel that reads them meets an address without memory. */
CUresult ms_materialise_reached(struct ms_allocation *allocation, size_t begin, size_t end,
                                enum ms_access access);

/* The same without dead and remote bytes. */
CUresult ms_materialise_kept(struct ms_allocation *allocation, size_t begin, size_t end,
                             enum ms_access access);

/* As ms_materialise_reached without dead bytes. */
CUresult ms_materialise_live(struct ms_allocation *allocation, size_t begin, size_t end,
                             enum ms_access access);

/* Makes all launched bytes of the allocation resident. */
CUresult ms_materialise_launched(struct ms_allocation *allocation);

/* As ms_materialise, for a range that the program is about to overwrite. Replays nothing, except
 * during a capture, where the write runs later. */
CUresult ms_back_for_overwrite(struct ms_allocation *allocation, size_t begin, size_t end);

#endif
