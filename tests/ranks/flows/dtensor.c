/* SPDX-License-Identifier: Apache-2.0 */
/*
 * distribute_tensor of a model whose values rank 0 alone has on its device; the others have empty
 * tensors of the same shapes, which they cut as well and never send.
 */
#include "tests/ranks/flows/scatter.h"

int main(int count, char **arguments)
{
    flow_open(count, arguments);
    for (size_t i = 0; i < flow.count; i++) {
        const CUdeviceptr whole = flow_whole(&flow.parameters[i]);
        const struct region own = scatter_tensor(&flow.parameters[i], whole);
        flow_free(whole);
        flow_observe(flow.parameters[i].name, &own);
    }
    return flow_close(flow.ranks);
}
