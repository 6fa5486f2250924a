/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What all ranks keep, in bytes. A cut gives runs of neighbouring ranks the same, so a tensor costs a
 * few boxes of the mesh, however many ranks there are; sums over ranks are made once, at the end.
 */
#ifndef METASHARD_RUNTIME_PLAN_CENSUS_H
#define METASHARD_RUNTIME_PLAN_CENSUS_H

#include "runtime/plan/plan.h"

struct ms_census {
    uint32_t world;
    uint64_t *bytes;   /* by rank */
    uint64_t *padding; /* by rank: what flat shards add to it */
};

/* False when memory is out. */
bool ms_census_init(struct ms_census *census, const struct ms_layout *layout);
void ms_census_cleanup(struct ms_census *census);

#endif
