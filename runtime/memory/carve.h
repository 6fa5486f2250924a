/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The blocks of a claimed allocation that a caching allocator carves (space.h). The content of a
 * block that was returned is dead at once. Its memory is not, as queued work may still use it: it
 * is left over until it is given back (give_back.h).
 */
#pragma once

#include "runtime/memory/space.h"

/*
 * Makes [begin, end), which meets no block, a block. With the first one all else becomes dead.
 *
 *     MS_CARVED         it is one
 *     MS_CARVED_NOT     the allocation was used as a whole before, or there is no memory for the
 *                       record: it stays whole
 *     MS_CARVED_FAILED  there is no memory for the record: it is none, and its bytes are dead,
 *                       although the program will use them
 */
enum ms_carved { MS_CARVED, MS_CARVED_NOT, MS_CARVED_FAILED };
enum ms_carved ms_carve_take(struct ms_allocation *allocation, size_t begin, size_t end);

/* The block that begins there is none any more. False: there is no such block. */
bool ms_carve_return(struct ms_allocation *allocation, size_t begin, size_t *end_out);

/* [begin, end) is unmapped: what lies there is in no block, and not left over. Ends the process if
 * there is no memory for the record. */
void ms_carve_cut(struct ms_allocation *allocation, size_t begin, size_t end);

/* True if a block there would lie on whole granules that are left over: none of it could be
 * deferred. */
bool ms_carve_meets_leftover(const struct ms_allocation *allocation, size_t begin, size_t end);
