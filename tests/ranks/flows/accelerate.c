/* SPDX-License-Identifier: Apache-2.0 */
/*
 * accelerate's fsdp2_load_full_state_dict: rank 0's whole tensor is broadcast, parameter by
 * parameter, and then distributed, which sends every rank its part once more.
 */
#include "tests/ranks/flows/scatter.h"

int main(int count, char **arguments)
{
    flow_open(count, arguments);
    for (size_t i = 0; i < flow.count; i++) {
        const struct parameter *parameter = &flow.parameters[i];
        const CUdeviceptr whole = flow_whole(parameter);
        flow_broadcast(whole, parameter->bytes, 0, flow.world, flow.stream);
        const struct region own = scatter_tensor(parameter, whole);
        flow_free(whole);
        flow_observe(parameter->name, &own);
    }
    return flow_close(flow.ranks);
}
