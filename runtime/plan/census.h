/* SPDX-License-Identifier: Apache-2.0 */
/* The bytes that each rank keeps. A model repeats its layers, so tensors that are alike are cut
 * once for each rank. */
#pragma once

#include "runtime/plan/plan.h"

struct ms_census {
    uint32_t world;
    uint64_t *bytes;   /* by rank */
    uint64_t *padding; /* by rank: what flat shards add to that */
};

/* Returns false if out of memory. */
bool ms_census_init(struct ms_census *census, const struct ms_layout *layout);
void ms_census_cleanup(struct ms_census *census);
