/* SPDX-License-Identifier: Apache-2.0 */
/* The tensors of a layout by size: what a rank keeps of any tensor of a given size. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "runtime/base/ranges.h"
#include "runtime/plan/placement.h"

/* Tensors that are concatenated, as FSDP1 does with those of a unit before it broadcasts them:
 * their sizes in bytes, and the index of one. Their order identifies those of equal size. */
struct ms_sequence {
    const size_t *bytes; /* the caller's */
    size_t count, at;
};

/* The layout must outlive it. Returns NULL if out of memory. Immutable. */
struct ms_layout_sizes *ms_layout_sizes_create(const struct ms_layout *layout);
void ms_layout_sizes_destroy(struct ms_layout_sizes *sizes); /* may be NULL */

bool ms_layout_sizes_has(const struct ms_layout_sizes *sizes, uint64_t bytes);

/* Returns, sorted, what the placement's rank keeps of all tensors of that size together: bytes that
 * it keeps of one are kept of each. Returns false if out of memory. */
bool ms_layout_sizes_local(const struct ms_layout_sizes *sizes,
                           const struct ms_placement *placement, uint64_t bytes,
                           struct ms_ranges *ours_out);

/* The same, but only of the tensors with the most neighbours of the sequence around them in their
 * unit, or, without a unit, in the list. */
bool ms_layout_sizes_local_in(const struct ms_layout_sizes *sizes,
                              const struct ms_placement *placement,
                              const struct ms_sequence *sequence, struct ms_ranges *ours_out);
