/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A program of the CUDA runtime. On the simulated driver the runtime finds all its functions and
 * then refuses to start; the program prints what it was told, and goes on asking.
 */
#include <cuda_runtime_api.h>
#include <stdio.h>

static void show(const char *call, cudaError_t error)
{
    printf("%s: %s\n", call, cudaGetErrorName(error));
}

int main(void)
{
    int version = 0;
    int count = -1;
    void *memory = NULL;
    cudaStream_t stream;
    struct cudaDeviceProp properties;

    show("cudaDriverGetVersion", cudaDriverGetVersion(&version));
    printf("version %d\n", version);
    show("cudaGetDeviceCount", cudaGetDeviceCount(&count));
    printf("count %d\n", count);
    show("cudaGetDeviceProperties", cudaGetDeviceProperties(&properties, 0));
    show("cudaMalloc", cudaMalloc(&memory, 16 << 20));
    show("cudaStreamCreate", cudaStreamCreate(&stream));
    show("cudaGetLastError", cudaGetLastError());
    return 0;
}
