/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Invariants: what is true of lineage, backing and blocks whenever nobody has a claim. A function
 * gives false for the first rule that is broken, and says which.
 *
 * A build with -Ddebug_checks=true checks an allocation at the end of each claim. In other builds
 * nothing of this is in the shim.
 */
#pragma once

#include "runtime/memory/space.h"

struct ms_violation {
    const char *rule;
    uint64_t begin, end;              /* of the extent, chunk or block, in the allocation */
    const struct ms_content *content; /* of the extent; NULL: it is none */
};

/* Extents are sorted and whole, neighbours differ, states are legal, and the sums are right. */
bool ms_lineage_is_valid(const struct ms_lineage *lineage, struct ms_violation *violation);

/* Chunks are granules, sorted; nothing is both backed and under the sink, or under the sink
 * twice. */
bool ms_backing_is_valid(const struct ms_backing *backing, struct ms_violation *violation);

/*
 * Both; what is present is backed; what extents refer to has their bytes. Blocks are sorted, and
 * nothing in them is dead. Nothing else is deferred, unless the program strays. The caller has
 * claimed the allocation.
 */
bool ms_allocation_is_valid(const struct ms_allocation *allocation, struct ms_violation *violation);

/*
 * Ends the process when the claimed allocation is not valid. A check is linear in extents, chunks
 * and blocks. A claim pays for 512 of them on average, so an allocation with more is checked only
 * when enough claims of the thread have ended.
 */
void ms_check_allocation(const struct ms_allocation *allocation);
