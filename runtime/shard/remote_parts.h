/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What of a tensor is other ranks', before any of it has come: so that a broadcast to it need not be kept whole (receive.h), and a copy
 * of it can be marked alike (calls/copy.c): PyTorch concatenates tensors, broadcasts that, and copies the parts back.
 */
#ifndef METASHARD_RUNTIME_SHARD_REMOTE_PARTS_H
#define METASHARD_RUNTIME_SHARD_REMOTE_PARTS_H

#include "runtime/base/range_list.h"
#include "runtime/memory/allocations.h"
#include "runtime/plan/tensor_run.h"

/*
 * Adds the parts of [begin, begin + bytes) of a claimed allocation that other ranks keep, to the byte and sorted: by its name if it
 * has one; else by what the plan says of its content (active_plan.h), by what was copied there from such bytes, and, if its content tells
 * nothing, by its size (tensors_by_size.h). `sequence`: it is one of it; NULL: of none. Nothing with METASHARD_RECEIVE_PARTS=off.
 * False when memory is out.
 */
bool ms_list_remote_parts(struct ms_allocation *allocation, size_t begin, size_t bytes,
                          const struct ms_sequence *sequence, struct ms_ranges *remote_parts);

#endif
