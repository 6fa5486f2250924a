/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A loop over the parameters of a model that is on every rank's device, on a mesh of replicas and
 * shards: each is broadcast within every group of shards, as FSDP1 does, which gives the replicas
 * of rank 0's group the bytes of somebody who has none, and then from the first replica to the
 * others. Then each rank copies its rows and frees the whole, or, with --keep, reads its rows in
 * place. With one replica it is the loop of a user.
 */
#include "tests/ranks/flows/flow.h"

#include <stdlib.h>

int main(int count, char **arguments)
{
    ncclComm_t shards, replicas;
    flow_open(count, arguments);
    const int ways = flow.ranks / flow.replicas;
    const int index = flow.rank % ways, replica = flow.rank / ways;
    CUdeviceptr *wholes = calloc(flow.count, sizeof(*wholes));
    if (wholes == NULL)
        return 1;
    NCCL(ncclCommSplit(flow.world, replica, index, &shards, NULL));
    NCCL(ncclCommSplit(flow.world, index, replica, &replicas, NULL));
    for (size_t i = 0; i < flow.count; i++)
        wholes[i] = flow_whole(&flow.parameters[i]);
    for (size_t i = 0; i < flow.count; i++) {
        flow_broadcast(wholes[i], flow.parameters[i].bytes, 0, shards, flow.stream);
        flow_broadcast(wholes[i], flow.parameters[i].bytes, 0, replicas, flow.stream);
    }
    for (size_t i = 0; i < flow.count; i++) {
        flow_take_part(&flow.parameters[i], wholes[i], index, ways);
        if (!flow.keep)
            flow_free(wholes[i]);
    }
    free(wholes);
    CU(cuStreamSynchronize(flow.stream));
    NCCL(ncclCommDestroy(shards));
    NCCL(ncclCommDestroy(replicas));
    return flow_close(ways);
}
