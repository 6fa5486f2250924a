/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The other process of peer.h. One letter a command on standard input: r records the event behind a
 * gate and writes its handle to standard output, g opens the gate. With an argument it is that of
 * sim_peer_add. It ends when its input does.
 */
#include "tools/simcuda/driver/simcuda.h"
#include "tools/simcuda/tests/peer.h"

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

static void add(CUdeviceptr at, size_t bytes, struct sim_peer_shared *answer)
{
    uint32_t *words = malloc(bytes);
    must(words != NULL ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY);
    must(cuMemcpyDtoH(words, at, bytes));
    for (size_t i = 0; i < bytes / sizeof(words[0]); i++)
        answer->sum += words[i]++;
    must(cuMemcpyHtoD(at, words, bytes));
    free(words);
}

static int share(void)
{
    CUipcMemHandle handle;
    size_t bytes;
    while (read(STDIN_FILENO, &handle, sizeof(handle)) == sizeof(handle) &&
           read(STDIN_FILENO, &bytes, sizeof(bytes)) == sizeof(bytes)) {
        struct sim_peer_shared answer = {CUDA_SUCCESS, 0};
        CUdeviceptr at;
        answer.result = cuIpcOpenMemHandle(&at, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
        if (answer.result == CUDA_SUCCESS) {
            add(at, bytes, &answer);
            must(cuIpcCloseMemHandle(at));
        }
        if (write(STDOUT_FILENO, &answer, sizeof(answer)) != sizeof(answer))
            return 3;
    }
    return 0;
}

int main(int count, char **arguments)
{
    CUcontext context;
    CUstream stream;
    CUevent event;
    CUipcEventHandle handle;
    char letter;
    (void)arguments;
    must(cuInit(0));
    must(cuDevicePrimaryCtxRetain(&context, 0));
    must(cuCtxSetCurrent(context));
    if (count > 1)
        return share();
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
