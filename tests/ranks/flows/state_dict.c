/* SPDX-License-Identifier: Apache-2.0 */
/*
 * set_model_state_dict(full_state_dict, broadcast_from_rank0):
 * torch/distributed/_state_dict_utils.py, _broadcast_tensors and _distribute_tensors, key by key.
 * Rank 0 copies the whole tensor to its device, the others make an empty one; it is broadcast, and
 * each rank copies its part into the parameter that it has. With --keep the whole tensors become
 * the parameters, as without sharding, and each rank reads its part in place.
 */
#include "tests/ranks/flows/flow.h"

#include <stdlib.h>

/* The local parts of the sharded model, which is there before its values. */
static struct region *make_locals(void)
{
    struct region *locals = calloc(flow.count, sizeof(*locals));
    for (size_t i = 0; i < flow.count && locals != NULL && !flow.keep; i++) {
        const struct region part = flow_part(&flow.parameters[i], 0, flow.rank, flow.ranks);
        locals[i] = (struct region){flow_allocate(flow_region_bytes(&part)), part.rows,
                                    part.row_bytes, part.row_bytes};
    }
    return locals;
}

static void load_key(const struct parameter *parameter, const struct region *local)
{
    const CUdeviceptr whole = flow_whole(parameter);
    flow_broadcast(whole, parameter->bytes, 0, flow.world, flow.stream);
    const struct region part = flow_part(parameter, whole, flow.rank, flow.ranks);
    if (flow.keep) {
        flow_observe(parameter->name, &part);
        return;
    }
    flow_copy_region(local, &part);
    flow_free(whole);
    flow_observe(parameter->name, local);
}

int main(int count, char **arguments)
{
    flow_open(count, arguments);
    struct region *locals = make_locals();
    if (locals == NULL)
        return 1;
    for (size_t i = 0; i < flow.count; i++)
        load_key(&flow.parameters[i], &locals[i]);
    free(locals);
    return flow_close(flow.ranks);
}
