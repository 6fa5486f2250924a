/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the program maps in the addresses of a claimed allocation that it has reserved itself
 * (backing.h). The record, the content and the memory change together. Where a record cannot be
 * made although the driver has done its part, the process ends.
 */
#pragma once

#include "runtime/memory/space.h"

/* True if a mapping meets [begin, end). */
bool ms_mappings_meet(const struct ms_allocation *allocation, size_t begin, size_t end);

/* Adds a mapping: a promised one, which nobody can use yet (false: its place or its record cannot
 * be); or a real one, which the driver has made, perhaps where a promised one is. */
bool ms_mappings_add(struct ms_allocation *allocation, const struct ms_program_mapping *mapping);

/* Makes the memory of a mapping, which lies in one handle, real, and names it. */
CUresult ms_mappings_pin(struct ms_allocation *allocation, const struct ms_program_mapping *mapping,
                         CUmemGenericAllocationHandle *real_out);

/*
 * Makes one handle of those of the mapping: ms_backing_join, by way of the copy. Bytes of which
 * only that is left have it as their source. The device is done with them, and a context is
 * current.
 */
CUresult ms_mappings_join(struct ms_allocation *allocation,
                          const struct ms_program_mapping *mapping, struct ms_source *copy,
                          bool may_give_up);

/* From now on the program may use the mapping, or not. The pieces (may be NULL) are what it has
 * kept by its handle: they are mapped, and ended. A failure changes nothing. */
CUresult ms_mappings_set_access(struct ms_allocation *allocation,
                                const struct ms_program_mapping *mapping, bool is_accessible,
                                struct ms_pieces *pieces);

/* True if something stands there that the program could read through another mapping. */
bool ms_mappings_is_alive(struct ms_allocation *allocation,
                          const struct ms_program_mapping *mapping);

/* Waits for sinks, takes its memory into pieces, unless that is NULL, and unmaps it. A failure
 * leaves it mapped. */
CUresult ms_mappings_remove(struct ms_allocation *allocation,
                            const struct ms_program_mapping *mapping, struct ms_pieces *pieces_out);
