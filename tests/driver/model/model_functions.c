/* SPDX-License-Identifier: Apache-2.0 */
/* Host functions in streams, by the function that older programs get, and by newer ones. */
#include "tests/driver/model/model.h"

#include <string.h>
#include <unistd.h>

enum { NEW_ABIS = 13010, LATEST = 13040, GATE_TIMES = 50000, GATE_US = 100 };

/* What 13.1 made of cuLaunchHostFunc. */
typedef CUresult new_function(CUstream stream, CUhostFn function, void *data, unsigned mode);
static new_function *newest; /* NULL: the driver is older */

void model_functions_init(void)
{
    void *found = NULL;
    int version;
    OK(cuDriverGetVersion(&version));
    if (version < NEW_ABIS || model_is_left_out("host functions of a newer ABI"))
        return;
    OK(cuGetProcAddress("cuLaunchHostFunc", &found, version < LATEST ? version : LATEST,
                        CU_GET_PROC_ADDRESS_LEGACY_STREAM, NULL));
    newest = (new_function *)found;
}

void model_launch_host_function(CUstream stream, CUhostFn function, void *data)
{
    if (newest != NULL && model_one_in(2))
        OK(newest(stream, function, data, (unsigned)model_below(2)));
    else
        OK(cuLaunchHostFunc(stream, function, data));
}

static void CUDA_CB pass(void *argument)
{
    struct model_gate *gate = argument;
    for (int i = 0; i < GATE_TIMES && !atomic_load(&gate->is_open); i++)
        usleep(GATE_US);
    atomic_store(&gate->was_late, !atomic_load(&gate->is_open));
}

void model_queue_gate(struct model_gate *gate, CUstream stream)
{
    model_launch_host_function(stream, pass, gate);
}

void model_open_gate(struct model_gate *gate)
{
    atomic_store(&gate->is_open, true);
}
