/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Receiving: a broadcast delivers a whole tensor to a rank that keeps a part of it. The granules
 * with that part get memory, and the sink lies under all others until the broadcast has run. Bytes
 * that went to the sink are *absent*: only other ranks have them, and reading them fails.
 *
 *     block     |   remote    |  local    |        remote         |
 *     granules  | sink | sink |  memory  |  memory  | sink | sink |
 *     lineage   |   absent    |      resident       |   absent    |
 *
 * If the program has put tensors one behind the other to receive them together, with a plan or
 * without, the memory is parked memory (parked.h), and the bytes that arrive there are *parked*.
 * The tensors, the flat parameter and the shard that PyTorch then makes one after the other are
 * copies by lineage, so all of them take that memory once. The same holds for bytes that the root
 * sends, which are copied back over the tensors, and for bytes that all ranks gather while a model
 * is loaded. Granules that have memory already, or that others share, are excepted.
 * placement_query.h finds the remote parts of a tensor that is received.
 */
#pragma once

#include "runtime/base/ranges.h"
#include "runtime/memory/space.h"

/* Parked memory, each piece with its place in the allocation: whole granules, ascending. */
struct ms_park {
    size_t count; /* 0: there is none */
    struct ms_range *ranges;
    struct ms_parked **parked; /* references */
};

/* One receive, or one send of the same kind, until NCCL has queued it. */
struct ms_receive {
    CUdeviceptr address; /* of the allocation; 0: the call is like any other write */
    uint64_t allocation_id;
    struct ms_sink_mapping *sink, *lent; /* NULL: nothing */
    struct ms_park park;
    CUcontext context;
};

/* The part of a gathered tensor that this rank sends: its extents before the call
 * (ms_lineage_copy), and where the first one begins in the tensor. */
struct ms_receive_own {
    struct ms_extent *extents; /* NULL: not known */
    size_t count;
    size_t begin;
};

/* How a call uses the bytes. */
struct ms_receive_role {
    bool sends;                       /* the call sends them to all ranks; else it receives them */
    bool gathers;                     /* from all ranks, and no kernel has used the bytes */
    const struct ms_receive_own *own; /* for a call that gathers and receives; else NULL */
    int ranks;                        /* so many ranks get all of them; unless it gathers */
};

/* Prepares a call that will overwrite [address, address + bytes), or send the bytes there. After a
 * send, an address of 0 in *receive_out means that the bytes are like any others that are read.
 * After a gather, it means that nobody has to wait for the bytes. */
CUresult ms_receive_prepare(CUdeviceptr address, size_t bytes, const struct ms_receive_role *role,
                            struct ms_receive *receive_out);

/* NCCL has queued the call on the stream. Waits until the call has run, for at most
 * METASHARD_RECEIVE_MS. */
void ms_receive_queued(struct ms_receive *receive, CUstream stream);
