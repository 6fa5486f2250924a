/* SPDX-License-Identifier: Apache-2.0 */
/* Copies between device addresses. A program's own slicing of a tensor is recorded as lineage. */
#pragma once

#include <stdbool.h>

#include "runtime/calls/movement.h"

/*
 * One row, of which at least one side may be in an allocation. Returns true if it is answered:
 * recorded, done, or refused. Returns false if the driver has to copy: both sides are in memory,
 * and what it reads must not be evicted meanwhile, for which the caller keeps a bracket
 * (ms_evict_hold) open.
 */
bool ms_copy_on_device(const struct ms_movement *movement, CUresult *result_out);
