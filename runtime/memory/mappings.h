/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The mappings of the program in addresses that it has reserved itself (backing.h), of a claimed
 * allocation. The record, the content and the memory change together. If there is no host memory
 * for a record although the driver has done its part, the process ends.
 */
#pragma once

#include "runtime/memory/space.h"

/* Adds a mapping: a promised mapping, which nobody can use yet (false: it begins within a granule,
 * or out of memory); or a real mapping, which the driver has made, perhaps over a promised one. */
bool ms_mappings_add(struct ms_allocation *allocation, const struct ms_program_mapping *mapping);

/*
 * Makes a mapping real, all of which has memory, and returns its one handle. With a copy, first
 * joins the handles of the mapping into one by way of the copy (ms_backing_join): the device is
 * done with the bytes, and a context is current. The copy becomes the bytes' source if nothing else
 * is left of them. NULL: the memory lies in one handle already.
 */
CUresult ms_mappings_pin(struct ms_allocation *allocation, const struct ms_program_mapping *mapping,
                         struct ms_host_snapshot *copy, bool may_give_up,
                         CUmemGenericAllocationHandle *real_out);

/* Makes one real handle of memory under no mapping: of the pieces, which stay, with new memory
 * between them. The bytes go through `copy`, host memory of that size. */
CUresult ms_mappings_unite(CUdevice device, size_t bytes, const struct ms_pieces *pieces,
                           void *copy, CUmemGenericAllocationHandle *real_out);

/* From now on the program may use the mapping, or not. The pieces (may be NULL) are memory that the
 * program has kept by its handle: maps them, and ends them. A failure changes nothing. */
CUresult ms_mappings_set_access(struct ms_allocation *allocation,
                                const struct ms_program_mapping *mapping, bool is_accessible,
                                struct ms_pieces *pieces);

/* True if the mapping holds bytes that the program could read through another mapping. */
bool ms_mappings_is_alive(struct ms_allocation *allocation,
                          const struct ms_program_mapping *mapping);

/* Waits for sinks, takes the mapping's memory into *pieces_out (may be NULL), and unmaps it. A
 * failure leaves the mapping as it was. */
CUresult ms_mappings_remove(struct ms_allocation *allocation,
                            const struct ms_program_mapping *mapping, struct ms_pieces *pieces_out);
