/* SPDX-License-Identifier: Apache-2.0 */
/* Copies between device addresses. A program's own slicing of a tensor is recorded as lineage. */
#pragma once

#include <stdbool.h>

#include "runtime/calls/movement.h"

/*
 * Copies one row; at least one side may be in an allocation. Returns true if the copy is answered:
 * recorded, done, or refused. Returns false if the driver has to copy: both sides are then in
 * memory. The caller keeps a bracket (ms_evict_hold) open from before this call until after the
 * driver's, so that the source is not evicted meanwhile.
 */
bool ms_copy_on_device(const struct ms_movement *movement, CUresult *result_out);
