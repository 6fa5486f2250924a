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
 * If tensors were put one behind the other to be received together, with a plan or without, the
 * memory is parked memory (parked.h), and what arrives there is *parked*: the tensors, the flat
 * parameter and the shard that PyTorch makes of it one after the other are copies by lineage, and
 * take that memory once. So it is with what the root sends, which is copied back over the tensors,
 * and with what all ranks gather while a model is loaded.
 * Granules that have memory already, or that others share, are excepted. placement_query.h finds
 * what is remote of a tensor that is received.
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

/* One receive, or what a root sends in the same way, until it is queued. */
struct ms_receive {
    CUdeviceptr address; /* of the allocation; 0: it is like any other write */
    uint64_t allocation_id;
    struct ms_sink_mapping *sink, *lent; /* NULL: nothing */
    struct ms_park park;
    CUcontext context;
};

/* What this rank sends of what all ranks gather, as it was when it was prepared, and where it comes
 * to stand in that. */
struct ms_receive_own {
    struct ms_lineage lineage; /* with offsets from 0 */
    size_t begin;
};

/* What a call does with the bytes. */
struct ms_receive_role {
    bool sends;                       /* them to all ranks; else it receives them */
    bool gathers;                     /* they come from all ranks, and no kernel has used them */
    const struct ms_receive_own *own; /* of what it gathers and receives; else NULL */
    int ranks;                        /* so many get all of them; unless it gathers */
};

/*
 * The call will overwrite [address, address + bytes), or send what stands there. An address of 0
 * then means, of what is sent: like any other read; of what is gathered: nobody has to wait for it.
 */
CUresult ms_receive_prepare(CUdeviceptr address, size_t bytes, const struct ms_receive_role *role,
                            struct ms_receive *receive_out);

/* It is queued on stream. Waits until it has run, for at most METASHARD_RECEIVE_MS. */
void ms_receive_queued(struct ms_receive *receive, CUstream stream);
