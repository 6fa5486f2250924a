/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tensors that are known by their size alone: what a rank keeps of any tensor of so many bytes that the
 * plan declares, or that an entry without a name and an order selects. Programs that get their tensors from another rank have no file that would tell more.
 */
#ifndef METASHARD_RUNTIME_SHARD_TENSORS_BY_SIZE_H
#define METASHARD_RUNTIME_SHARD_TENSORS_BY_SIZE_H

#include <stdbool.h>

#include "runtime/base/range_list.h"
#include "runtime/plan/tensor_run.h"

/*
 * Appends what this rank keeps of no tensor of the size of the sequence's, where several tensors of that size stand differently in
 * the plan of none that stands like it; ascending. False: the plan in force knows none of that size, or memory is out.
 */
bool ms_sized_remote_parts(const struct ms_sequence *sequence, struct ms_ranges *remote);

#endif
