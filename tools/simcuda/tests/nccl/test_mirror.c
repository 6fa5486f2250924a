/* SPDX-License-Identifier: Apache-2.0 */
/* SIMNCCL_MIRROR: one rank of many, whose peers do what it does. */
#include "tools/simcuda/tests/nccl/ranks.h"

#include <stdlib.h>
#include <string.h>

enum { RANKS = 1000, OWN = 998 };

/* The id is of nobody. */
static ncclComm_t join(void)
{
    static const ncclUniqueId id;
    CUcontext context;
    ncclComm_t comm;
    setenv("SIMNCCL_MIRROR", "1", 1);
    CU(cuInit(0));
    CU(cuDevicePrimaryCtxRetain(&context, 0));
    CU(cuCtxSetCurrent(context));
    NCCL(ncclCommInitRank(&comm, RANKS, id, OWN));
    return comm;
}

static void expect(CUstream stream, CUdeviceptr address, int wanted)
{
    sync_stream(stream);
    device_expect(address, &wanted, sizeof(wanted));
}

MS_TEST(a_rank_of_many_stands_alone)
{
    const int filler = -1, seven = 7;
    int all[RANKS], rank = -1, count = -1;
    const ncclComm_t comm = join();
    const CUstream stream = rank_stream();
    const CUdeviceptr in = device_with(&seven, sizeof(seven)),
                      out = device_with(&filler, sizeof(filler));
    const CUdeviceptr wide = device_with(memset(all, 0, sizeof(all)), sizeof(all));
    NCCL(ncclCommUserRank(comm, &rank));
    NCCL(ncclCommCount(comm, &count));
    CHECK_EQ(rank, OWN);
    CHECK_EQ(count, RANKS);
    NCCL(ncclAllReduce((void *)in, (void *)out, 1, ncclInt32, ncclSum, comm, stream));
    expect(stream, out, 7 * RANKS);
    NCCL(ncclAllReduce((void *)in, (void *)out, 1, ncclInt32, ncclMax, comm, stream));
    expect(stream, out, 7);
    NCCL(ncclAllGather((void *)in, (void *)wide, 1, ncclInt32, comm, stream));
    expect(stream, wide, 7);
    expect(stream, wide + (RANKS - 1) * sizeof(int), 7);
    NCCL(ncclReduceScatter((void *)wide, (void *)out, 1, ncclInt32, ncclSum, comm, stream));
    expect(stream, out, 7 * RANKS);
    NCCL(ncclCommFinalize(comm));
    NCCL(ncclCommDestroy(comm));
}

/* As PyTorch gathers a list: the part of a peer is in place, and is as this rank's. */
MS_TEST(a_group_of_broadcasts)
{
    const int seven = 7, filler = -1;
    const ncclComm_t comm = join();
    const CUstream stream = rank_stream();
    const CUdeviceptr in = device_with(&seven, sizeof(seven)),
                      own = device_with(&filler, sizeof(filler)),
                      peer = device_with(&filler, sizeof(filler));
    NCCL(ncclGroupStart());
    NCCL(ncclBroadcast((void *)peer, (void *)peer, 1, ncclInt32, 3, comm, stream));
    NCCL(ncclBroadcast((void *)in, (void *)own, 1, ncclInt32, OWN, comm, stream));
    NCCL(ncclGroupEnd());
    expect(stream, own, 7);
    expect(stream, peer, 7);
    NCCL(ncclCommDestroy(comm));
}

/* Messages end, and what a peer sends is not known. */
MS_TEST(messages_and_splits)
{
    const int seven = 7;
    int rank = -1;
    const ncclComm_t comm = join();
    const CUstream stream = rank_stream();
    const CUdeviceptr out = device_with(&seven, sizeof(seven));
    ncclComm_t part;
    NCCL(ncclSend((void *)out, 1, ncclInt32, 3, comm, stream));
    NCCL(ncclRecv((void *)out, 1, ncclInt32, 3, comm, stream));
    expect(stream, out, 7);
    NCCL(ncclCommSplit(comm, 1, 0, &part, NULL));
    NCCL(ncclCommUserRank(part, &rank));
    CHECK_EQ(rank, OWN);
    NCCL(ncclBroadcast((void *)out, (void *)out, 1, ncclInt32, 0, part, stream));
    expect(stream, out, 7);
    NCCL(ncclCommDestroy(part));
    NCCL(ncclCommDestroy(comm));
}
