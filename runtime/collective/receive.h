/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Receiving: a broadcast delivers a whole tensor to a rank that keeps a part of it. The granules
 * with that part get memory, and the sink lies under all others until the broadcast has run. What
 * the sink received is *absent*: only other ranks have it, and reading it fails.
 *
 *     block     |   remote    |  local    |        remote         |
 *     granules  | sink | sink |  memory  |  memory  | sink | sink |
 *     lineage   |   absent    |      resident       |   absent    |
 *
 * If tensors were put one behind the other to be received together, the memory is parked memory
 * (parked.h), and what arrives there is *parked*: the tensors, the flat parameter and the shard
 * that PyTorch makes of it one after the other are copies by lineage, and take that memory once.
 * Granules that have memory already, or that others share, are excepted. placement_query.h finds
 * what is remote of a tensor that is received.
 */
#pragma once

#include "runtime/base/ranges.h"
#include "runtime/memory/space.h"

/* One receive, until it is queued. */
struct ms_receive {
    CUdeviceptr address; /* of the allocation; 0: it is like any other write */
    uint64_t allocation_id;
    struct ms_sink_mapping *sink, *lent; /* NULL: nothing */
    struct ms_parked *parked;            /* a reference, or NULL */
    CUcontext context;
};

/* The call will overwrite [address, address + bytes) with bytes that all of so many ranks get. */
CUresult ms_receive_prepare(CUdeviceptr address, size_t bytes, int ranks,
                            struct ms_receive *receive_out);

/* The receive is queued on stream. Waits until it has run, for at most METASHARD_RECEIVE_MS. */
void ms_receive_queued(const struct ms_receive *receive, CUstream stream);
