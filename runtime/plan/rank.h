/* SPDX-License-Identifier: Apache-2.0 */
/* This process's rank in a plan: from the plan, or from the launcher's environment. */
#ifndef METASHARD_RUNTIME_PLAN_RANK_H
#define METASHARD_RUNTIME_PLAN_RANK_H

#include "runtime/plan/plan.h"

/* True if the plan has the rank, or a launcher's variable is set: then call ms_rank_find. */
bool ms_rank_is_given(const struct ms_plan *plan);

bool ms_rank_find(const struct ms_plan *plan, uint32_t *rank_out, struct ms_fault *fault);

#endif
