/* SPDX-License-Identifier: Apache-2.0 */
/*
 * job: one rank of a job, which knows nothing of MetaShard. It allocates 8 MiB, sets them to a byte
 * of its rank, reads one back, and prints its process id, its rank and that byte, on one line.
 */
#include <cuda.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define MIB ((size_t)1 << 20)

static void must(CUresult result)
{
    if (result == CUDA_SUCCESS)
        return;
    fprintf(stderr, "job: CUDA error %d\n", (int)result);
    exit(1);
}

/* As such programs do: torchrun's name, else that of Open MPI, else that of Slurm. */
static int rank_of_job(void)
{
    static const char *const names[] = {"RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID"};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        const char *text = getenv(names[i]);
        if (text != NULL)
            return atoi(text);
    }
    return -1;
}

int main(void)
{
    CUcontext context;
    CUdeviceptr memory;
    unsigned char byte;
    const int rank = rank_of_job();
    must(cuInit(0));
    must(cuDevicePrimaryCtxRetain(&context, 0));
    must(cuCtxSetCurrent(context));
    must(cuMemAlloc(&memory, 8 * MIB));
    must(cuMemsetD8(memory, (unsigned char)(rank + 1), 8 * MIB));
    must(cuMemcpyDtoH(&byte, memory + 5 * MIB, 1));
    printf("process %d rank %d byte %d\n", (int)getpid(), rank, byte);
    return 0;
}
