/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Invariants: rules that lineage, backing and blocks keep whenever nobody has a claim. Each
 * function returns false for the first broken rule, and *violation names the rule.
 *
 * A build with -Ddebug_checks=true checks an allocation at the end of each claim. Other builds of
 * the shim leave this code out.
 */
#pragma once

#include "runtime/memory/space.h"

struct ms_violation {
    const char *rule;
    uint64_t begin, end;              /* of the extent, chunk or block, in the allocation */
    const struct ms_content *content; /* of the extent; NULL: a chunk or block breaks the rule */
};

/* Extents are sorted and whole, neighbours differ, states are legal, and the sums are right. */
bool ms_lineage_is_valid(const struct ms_lineage *lineage, struct ms_violation *violation);

/* Chunks are granules, sorted; no granule is both backed and mapped to the sink, or mapped to the
 * sink twice. */
bool ms_backing_is_valid(const struct ms_backing *backing, struct ms_violation *violation);

/*
 * The rules of lineage and backing; present bytes are backed; the objects that extents refer to
 * have their bytes; blocks are sorted, and hold no dead byte; only bytes of blocks are deferred,
 * unless the program strays. The caller has claimed the allocation.
 */
bool ms_allocation_is_valid(const struct ms_allocation *allocation, struct ms_violation *violation);

/*
 * Ends the process when the claimed allocation is not valid. A check is linear in extents, chunks
 * and blocks. Each claim that ends pays for 512 of them, so an allocation with more is checked only
 * when enough claims of the thread have ended.
 */
void ms_check_allocation(const struct ms_allocation *allocation);
