/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Asks the plan which of an allocation's bytes this rank keeps, and handles reads of remote bytes.
 * Functions that take an allocation require its claim.
 *
 * Also finds the remote parts of a tensor before its bytes arrive, so that a broadcast need not be
 * kept whole (receive.h), and copies of the tensor can be marked alike (calls/copy.c): PyTorch
 * concatenates tensors, broadcasts the result, and copies the parts back.
 */
#pragma once

#include "runtime/base/ranges.h"
#include "runtime/document/fault.h"
#include "runtime/memory/space.h"

/* Asks the plan about the unknown bytes in [begin, end) of the allocation, in whole extents: they
 * become local or remote, or stay unknown. */
void ms_placement_query(struct ms_allocation *allocation, size_t begin, size_t end);

/* The program reads [begin, end): counts remote bytes, an error in enforce mode. */
CUresult ms_placement_query_read_remote(const struct ms_allocation *allocation, size_t begin,
                                        size_t end);

/* Finds the name, cut to `bytes`, of the tensor at the beginning of [begin, end) of the allocation.
 * Returns false if no plan is active or no tensor is known there. */
bool ms_placement_query_name(const struct ms_allocation *allocation, size_t begin, size_t end,
                             char *name_out, size_t bytes);

/* Removes all names from the range, and forgets the locality, except of received remote bytes. */
bool ms_placement_query_unname(CUdeviceptr address, size_t bytes, struct ms_fault *fault);

/* A tensor in a sequence of concatenated tensors, as FSDP1 concatenates a unit before it broadcasts
 * it: all sizes in bytes, and the tensor's index. The order tells tensors of equal size apart. */
struct ms_sequence {
    const size_t *bytes; /* the caller's */
    size_t count, at;
};

/*
 * Adds the parts of [begin, begin + bytes) of a claimed allocation that other ranks keep, sorted
 * and exact to the byte. The tensor's name decides; else its content does, by the plan (shard.h)
 * and by copies from remote bytes; else, if the content says nothing, its size. `sequence`: the
 * sequence that the tensor is in, or NULL. Adds nothing with METASHARD_RECEIVE_PARTS=off. Returns
 * false if out of memory.
 */
bool ms_placement_query_list_remote(struct ms_allocation *allocation, size_t begin, size_t bytes,
                                    const struct ms_sequence *sequence,
                                    struct ms_ranges *remote_parts);
