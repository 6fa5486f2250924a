/* SPDX-License-Identifier: Apache-2.0 */
/* What a rank needs that uses its part where the whole tensor lies, instead of copying it out. */
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

/* What one tensor needs; at most its bytes. */
struct ms_placement;
uint64_t in_place_bytes(const struct ms_placement *placement, size_t tensor, uint64_t bytes);

/* Of the tensors that a rank has something of, for the rank with the most: what kernels bring into
 * memory where no plan is enforced. Returns false if out of memory. */
bool in_place_whole_bytes(const struct ms_layout *layout, uint32_t world, uint64_t *bytes_out);

/* What all need. Returns false if out of memory. */
bool in_place_measure(const struct ms_layout *layout, uint32_t rank,
                      struct in_place_needs *found_out);

/* The same of the rank that needs most. Of a very large world this one and the one above look at
 * some ranks. */
bool in_place_measure_most(const struct ms_layout *layout, uint32_t world,
                           struct in_place_needs *found_out);
