/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The first allocation of a process, which makes the self-check or reads what another one found.
 * Prints its microseconds.
 */
#include <cuda.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static void must(CUresult result)
{
    if (result != CUDA_SUCCESS)
        exit(1);
}

/* callgrind counts this function. */
__attribute__((noinline)) void measured(CUdeviceptr *address);
__attribute__((noinline)) void measured(CUdeviceptr *address)
{
    must(cuMemAlloc(address, (size_t)4 << 20));
}

int main(void)
{
    CUcontext context;
    CUdeviceptr address;
    struct timespec begin, end;
    must(cuInit(0));
    must(cuDevicePrimaryCtxRetain(&context, 0));
    must(cuCtxSetCurrent(context));
    clock_gettime(CLOCK_MONOTONIC, &begin);
    measured(&address);
    clock_gettime(CLOCK_MONOTONIC, &end);
    printf("%.1f\n",
           (double)(end.tv_sec - begin.tv_sec) * 1e6 + (double)(end.tv_nsec - begin.tv_nsec) / 1e3);
    return 0;
}
