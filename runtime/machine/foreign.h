/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What of a tensor is other ranks', before any of it has come: so that a broadcast to it need not be kept whole (receive.h), and a copy
 * of it can be marked alike (copy.c): PyTorch concatenates tensors, broadcasts that, and copies the parts back.
 */
#ifndef METASHARD_RUNTIME_MACHINE_FOREIGN_H
#define METASHARD_RUNTIME_MACHINE_FOREIGN_H

#include "runtime/machine/ranges.h"
#include "runtime/machine/sequence.h"
#include "runtime/machine/space.h"

/*
 * Adds the parts of [begin, begin + bytes) of a claimed allocation that other ranks keep, to the byte and sorted: by its name if it
 * has one; else by what the plan says of its content (shard.h), by what was copied there from such bytes, and, if its content tells
 * nothing, by its size (sized.h). `sequence`: it is one of it; NULL: of none. Nothing with METASHARD_RECEIVE_PARTS=off.
 * False when memory is out.
 */
bool ms_list_foreign(struct ms_allocation *allocation, size_t begin, size_t bytes,
                     const struct ms_sequence *sequence, struct ms_ranges *foreign);

#endif
