/* SPDX-License-Identifier: Apache-2.0 */
/* Which rank of a plan this process is: the plan says so, or the environment of the launcher. */
#ifndef METASHARD_RUNTIME_PLAN_RANK_H
#define METASHARD_RUNTIME_PLAN_RANK_H

#include "runtime/plan/plan.h"

/* The plan says it, or a launcher's variable is set: then ms_rank_find is the one to ask. */
bool ms_rank_is_given(const struct ms_plan *plan);

bool ms_rank_find(const struct ms_plan *plan, uint32_t *rank_out, struct ms_fault *fault);

#endif
