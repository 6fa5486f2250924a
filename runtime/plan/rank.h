/* SPDX-License-Identifier: Apache-2.0 */
/* Which rank of a plan this process is: the plan says so, or the environment of the launcher. */
#ifndef METASHARD_RUNTIME_PLAN_RANK_H
#define METASHARD_RUNTIME_PLAN_RANK_H

#include "runtime/plan/plan.h"

bool ms_rank_find(const struct ms_plan *plan, uint32_t *rank_out, struct ms_fault *fault);

#endif
