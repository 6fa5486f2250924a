/* SPDX-License-Identifier: Apache-2.0 */
/*
 * reduce_kernel<..., ReduceOp<bool, or_kernel_cuda>> (Reduce.cuh), for the one reduction that
 * initialisation needs: any() of all elements of a dense tensor. Of ReduceOp's members only these are read.
 */
#include "tests/sim/torch/host.h"

enum { NUM_INPUTS = 8, NUM_OUTPUTS = 12, SOURCE = 976, DESTINATION = 984 };

static void run(const struct simcuda_launch *launch, void **args)
{
    const unsigned char *op = args[0];
    uint32_t inputs, outputs;
    memcpy(&inputs, op + NUM_INPUTS, sizeof(inputs));
    memcpy(&outputs, op + NUM_OUTPUTS, sizeof(outputs));
    const unsigned char *in = launch->touch(launch, host_word(op, SOURCE), inputs);
    unsigned char *out =
        in == NULL || outputs != 1 ? NULL : launch->touch(launch, host_word(op, DESTINATION), 1);
    if (out == NULL)
        return;
    unsigned char any = 0;
    for (size_t i = 0; i < inputs; i++)
        any |= in[i] != 0;
    *out = any;
}

simcuda_kernel *host_find_reduce(const char *name)
{
    return strstr(name, "13reduce_kernelI") != NULL && strstr(name, "8ReduceOpIb") != NULL &&
                   strstr(name, "14or_kernel_cuda") != NULL
               ? run
               : NULL;
}
