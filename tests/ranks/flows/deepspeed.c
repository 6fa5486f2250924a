/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DeepSpeed's zero.Init (deepspeed/runtime/zero/partition_parameters.py): a module's constructor
 * makes and initialises each parameter whole, on every rank; it is broadcast in place, and
 * partitioned: this rank's part of the flattened parameter is copied to an allocation of its own,
 * padded at the end, and the whole is freed. The padding is not written. With --keep, this rank
 * reads its part in place.
 */
#include "tests/ranks/flows/flow.h"

enum { ELEMENT = sizeof(float) };

static void partition(const struct parameter *parameter, CUdeviceptr whole)
{
    const uint64_t numel = parameter->bytes / ELEMENT;
    const struct range own = flow_chunk(numel, flow.rank, flow.ranks);
    const size_t bytes = (own.end - own.begin) * ELEMENT;
    if (flow.keep) {
        flow_observe_bytes(parameter->name, whole + own.begin * ELEMENT, bytes);
        return;
    }
    const CUdeviceptr mine = flow_allocate(flow_chunk_length(numel, flow.ranks) * ELEMENT);
    flow_copy(mine, whole + own.begin * ELEMENT, bytes);
    flow_free(whole);
    flow_observe_bytes(parameter->name, mine, bytes);
}

int main(int count, char **arguments)
{
    flow_open(count, arguments);
    for (size_t i = 0; i < flow.count; i++) {
        const struct parameter *parameter = &flow.parameters[i];
        const CUdeviceptr whole = flow_initialised(parameter);
        flow_broadcast(whole, parameter->bytes, 0, flow.world, flow.stream);
        partition(parameter, whole);
    }
    return flow_close(flow.ranks);
}
