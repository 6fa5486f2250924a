/* SPDX-License-Identifier: Apache-2.0 */
/* The tensors of a layout by their size: what a rank keeps of any of them that has so many bytes. */
#ifndef METASHARD_RUNTIME_PLAN_LAYOUT_SIZES_H
#define METASHARD_RUNTIME_PLAN_LAYOUT_SIZES_H

#include <stdbool.h>
#include <stdint.h>

#include "runtime/base/range_list.h"
#include "runtime/plan/placement.h"
#include "runtime/plan/tensor_run.h"

/* The layout must outlive it. NULL when memory is out. Immutable. */
struct ms_layout_sizes *ms_layout_sizes_create(const struct ms_layout *layout);
void ms_layout_sizes_destroy(struct ms_layout_sizes *sizes); /* may be NULL */

bool ms_layout_sizes_has(const struct ms_layout_sizes *sizes, uint64_t bytes);

/* What the placement's rank keeps of one tensor of that size, is kept of all: sorted. False when memory is out. */
bool ms_layout_sizes_local(const struct ms_layout_sizes *sizes,
                           const struct ms_placement *placement, uint64_t bytes,
                           struct ms_ranges *ours_out);

/* The same, of those tensors only that have the most of the sequence's others around them in their own unit, or, of no unit,
 * in the list. */
bool ms_layout_sizes_local_in(const struct ms_layout_sizes *sizes,
                              const struct ms_placement *placement,
                              const struct ms_sequence *sequence, struct ms_ranges *ours_out);

#endif
