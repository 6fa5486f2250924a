/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Receiving: a broadcast brings a whole tensor to a rank that keeps a part of it. The granules with that part
 * get memory, and the sink lies under all others until the broadcast has run; then what it brought there
 * is *absent*: on other ranks only, and whoever reads it is refused.
 *
 *     block     |   remote    |   ours    |        remote         |
 *     granules  | sink | sink |  memory  |  memory  | sink | sink |
 *     lineage   |   absent    |      resident       |   absent    |
 *
 * Where tensors were put one behind the other to be received together, the memory is that of a parked memory (parked.h), and what it
 * brought there is *parked*: the tensors, the flat parameter and the shard that PyTorch makes of it one after the other are
 * copies by lineage, and take its memory once. But not granules that have memory already, or that others share.
 * What is remote of a tensor that is received is found in remote_parts.h.
 */
#ifndef METASHARD_RUNTIME_COLLECTIVE_RECEIVE_H
#define METASHARD_RUNTIME_COLLECTIVE_RECEIVE_H

#include "runtime/base/range_list.h"
#include "runtime/memory/allocations.h"

/* One receive, until it is queued. */
struct ms_receive {
    CUdeviceptr address; /* of the allocation; 0: it is like any other write */
    uint64_t allocation_id;
    struct ms_sink_mapping *sink, *lent; /* NULL: nothing */
    struct ms_parked *parked;            /* a reference; NULL: nothing is received there */
    CUcontext context;
};

/* The call will overwrite [address, address + bytes) with bytes that all of so many ranks get. */
CUresult ms_access_receive(CUdeviceptr address, size_t bytes, int ranks,
                           struct ms_receive *receive_out);

/* It is queued on stream. Waits until it has run, for METASHARD_RECEIVE_MS at most. */
void ms_receive_queued(const struct ms_receive *receive, CUstream stream);

#endif
