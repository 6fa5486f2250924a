/* SPDX-License-Identifier: Apache-2.0 */
/* The memory of a rank that uses its part inside the whole tensor, instead of copying it out. */
#pragma once

#include "runtime/plan/plan.h"

/* Memory comes in granules of so many bytes, on all devices that are known. */
enum { IN_PLACE_GRANULE = 2 << 20 };

struct in_place_needs {
    uint64_t bytes;  /* of granules that hold something of the rank's; not more than the tensors */
    uint64_t most;   /* of one tensor */
    size_t columns;  /* tensors of which the rank keeps a part that lies in all granules */
    size_t a_column; /* one of them */
};

/* Each tensor is taken to begin with a granule. */

/* The memory that one tensor needs; at most its bytes. */
struct ms_placement;
uint64_t in_place_bytes(const struct ms_placement *placement, size_t tensor, uint64_t bytes);

/* The bytes of all tensors that a rank has a part of, for the rank with the most: kernels bring
 * these into memory where no plan is enforced. Returns false if out of memory. */
bool in_place_whole_bytes(const struct ms_layout *layout, uint32_t world, uint64_t *bytes_out);

/* The memory that all tensors need. Returns false if out of memory. */
bool in_place_measure(const struct ms_layout *layout, uint32_t rank,
                      struct in_place_needs *found_out);

/* The same for the rank that needs most. In a very large world this function and
 * in_place_whole_bytes look at some ranks only. */
bool in_place_measure_most(const struct ms_layout *layout, uint32_t world,
                           struct in_place_needs *found_out);
