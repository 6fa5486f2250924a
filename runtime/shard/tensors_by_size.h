/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tensors that are known only by their size: what a rank keeps of any tensor of so many bytes that
 * the plan declares, or that an entry without a name and an order selects. Programs that get their
 * tensors from another rank have no file that would identify them.
 */
#pragma once

#include <stdbool.h>

#include "runtime/base/range_list.h"
#include "runtime/plan/tensor_run.h"

/*
 * Appends, in ascending order, the bytes that are remote for the tensor in the sequence's turn,
 * which is known by its size. If the plan has several tensors of that size, only bytes that are
 * remote in all of them that it can be. Returns false if the active plan has none of that size, or
 * out of memory.
 */
bool ms_sized_remote_parts(const struct ms_sequence *sequence, struct ms_ranges *remote);
