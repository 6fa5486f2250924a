/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The plan's decision on an allocation's bytes, and the program's reads of remote ones. Functions
 * that take an allocation require its claim.
 *
 * It also finds the remote parts of a tensor before any of it has arrived, so that a broadcast to
 * it need not be kept whole (receive.h), and a copy of it can be marked alike (calls/copy.c):
 * PyTorch concatenates tensors, broadcasts the result, and copies the parts back.
 */
#pragma once

#include "runtime/base/ranges.h"
#include "runtime/document/fault.h"
#include "runtime/memory/space.h"

/* Asks the plan about the unknown bytes in [begin, end) of the allocation: they become local or
 * remote, or stay unknown. Whole extents are asked about. What cannot be asked stays unknown. */
void ms_placement_query(struct ms_allocation *allocation, size_t begin, size_t end);

/* The program reads remote bytes in [begin, end): counts them, or returns an error for the call. */
CUresult ms_placement_query_read_remote(const struct ms_allocation *allocation, size_t begin,
                                        size_t end);

/* Finds the name of the tensor at the beginning of [begin, end) of the allocation, if a plan made
 * it known; cut to `bytes`. Returns false if there is none. */
bool ms_placement_query_name(const struct ms_allocation *allocation, size_t begin, size_t end,
                             char *name_out, size_t bytes);

/* Removes all names from the range, and forgets what they decided. */
bool ms_placement_query_unname(CUdeviceptr address, size_t bytes, struct ms_fault *fault);

/* Tensors that are concatenated, as FSDP1 does with those of a unit before it broadcasts them:
 * their sizes in bytes, and the index of one. Their order identifies those of equal size. */
struct ms_sequence {
    const size_t *bytes; /* the caller's */
    size_t count, at;
};

/*
 * Adds the parts of [begin, begin + bytes) of a claimed allocation that other ranks keep, sorted
 * and exact to the byte. It knows them from the tensor's name; else from what the plan says of its
 * content (shard.h) and what was copied there from remote bytes; or, if its content says
 * nothing, from its size. `sequence` is the one that the tensor is in, or NULL.
 * Adds nothing with METASHARD_RECEIVE_PARTS=off. Returns false if out of memory.
 */
bool ms_placement_query_list_remote(struct ms_allocation *allocation, size_t begin, size_t bytes,
                                    const struct ms_sequence *sequence,
                                    struct ms_ranges *remote_parts);
