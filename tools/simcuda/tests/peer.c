/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The other process of peer.h. One letter a command on standard input: r records the event behind a
 * gate and writes its handle to standard output, g opens the gate. It ends when its input does.
 */
#include "tools/simcuda/driver/simcuda.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <unistd.h>

static atomic_bool is_open;

static void CUDA_CB wait_at_gate(void *unused)
{
    (void)unused;
    while (!atomic_load(&is_open))
        usleep(20);
}

static void must(CUresult result)
{
    if (result != CUDA_SUCCESS)
        exit(3);
}

int main(void)
{
    CUcontext context;
    CUstream stream;
    CUevent event;
    CUipcEventHandle handle;
    char letter;
    must(cuInit(0));
    must(cuDevicePrimaryCtxRetain(&context, 0));
    must(cuCtxSetCurrent(context));
    must(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    must(cuEventCreate(&event, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING));
    must(cuIpcGetEventHandle(&handle, event));
    while (read(STDIN_FILENO, &letter, 1) == 1) {
        atomic_store(&is_open, true);
        if (letter != 'r')
            continue;
        must(cuStreamSynchronize(stream));
        atomic_store(&is_open, false);
        must(cuLaunchHostFunc(stream, wait_at_gate, NULL));
        must(cuEventRecord(event, stream));
        if (write(STDOUT_FILENO, &handle, sizeof(handle)) != sizeof(handle))
            return 3;
    }
    atomic_store(&is_open, true);
    return 0;
}
