/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stack KERNELS FILE: how much of its stack a thread needs for calls of every kind that come to the
 * runtime: the stack is painted before, and what is left of the paint is counted. Prints the bytes.
 * FILE has 16 MiB.
 */
#include <cuda.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define MIB ((size_t)1 << 20)

enum { STACK_BYTES = 1 << 20, PAINT = 0xa7 };

static CUcontext context;
static CUfunction fill, uniform;
static const unsigned char *mapped;

static void must(CUresult result, int line)
{
    if (result == CUDA_SUCCESS)
        return;
    fprintf(stderr, "stack: line %d: CUDA error %d\n", line, (int)result);
    _exit(1);
}
#define OK(call) must(call, __LINE__)

static CUdeviceptr allocate(size_t bytes)
{
    CUdeviceptr address;
    OK(cuMemAlloc(&address, bytes));
    return address;
}

static void launch_uniform(CUdeviceptr address)
{
    uint64_t count = 4 * MIB, seed = 3, offset = 5;
    void *params[] = {&address, &count, &seed, &offset};
    OK(cuLaunchKernel(uniform, 16, 1, 1, 64, 1, 1, 0, NULL, params, NULL));
}

static void launch_unknown(CUdeviceptr address)
{
    uint64_t count = 1024;
    uint32_t value = 1;
    void *params[] = {&address, &value, &count};
    OK(cuLaunchKernel(fill, 16, 1, 1, 64, 1, 1, 0, NULL, params, NULL));
}

static void copy_rows(CUdeviceptr to, CUdeviceptr from)
{
    const CUDA_MEMCPY2D rows = {.srcMemoryType = CU_MEMORYTYPE_DEVICE,
                                .srcDevice = from,
                                .srcPitch = 4096,
                                .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                                .dstDevice = to,
                                .dstPitch = 1024,
                                .WidthInBytes = 1024,
                                .Height = 2048};
    OK(cuMemcpy2D(&rows));
}

/* Bytes of a file, of the heap, a fill, many launches on each other; copied, read, used by a
 * kernel, and too much for the device. */
static void work(unsigned char *host)
{
    CUdeviceptr file = allocate(16 * MIB), heap = allocate(4 * MIB), steps = allocate(16 * MIB);
    CUdeviceptr copy = allocate(16 * MIB), rows = allocate(4 * MIB), large = allocate(128 * MIB);
    OK(cuMemcpyHtoD(file, mapped, 16 * MIB));
    OK(cuMemcpyHtoD(heap, host, 4 * MIB));
    for (int i = 0; i < 16; i++) /* as many as are recorded on each other */
        launch_uniform(steps);
    OK(cuMemcpyDtoD(copy, steps, 16 * MIB));
    copy_rows(rows, file);
    OK(cuMemcpyDtoH(host, copy + MIB, MIB));
    OK(cuMemcpyDtoH(host, rows, 2 * MIB));
    OK(cuMemcpyDtoH(host, file, 16 * MIB));
    launch_unknown(heap);
    OK(cuMemsetD32(large, 7, 32 * MIB));
    OK(cuMemcpyDtoH(host, large, 128 * MIB));
    OK(cuMemcpyDtoH(host, file, 16 * MIB));
    for (size_t i = 0; i < 6; i++)
        OK(cuMemFree((CUdeviceptr[]){file, heap, steps, copy, rows, large}[i]));
}

static void *run(void *host)
{
    OK(cuCtxSetCurrent(context));
    work(host);
    return NULL;
}

static size_t measure(void *host)
{
    pthread_attr_t attributes;
    pthread_t thread;
    unsigned char *stack =
        mmap(NULL, STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (stack == MAP_FAILED)
        abort();
    memset(stack, PAINT, STACK_BYTES);
    pthread_attr_init(&attributes);
    if (pthread_attr_setstack(&attributes, stack, STACK_BYTES) != 0 ||
        pthread_create(&thread, &attributes, run, host) != 0 || pthread_join(thread, NULL) != 0)
        abort();
    size_t left = 0;
    while (left < STACK_BYTES && stack[left] == PAINT)
        left++;
    return STACK_BYTES - left;
}

int main(int argc, char **argv)
{
    CUmodule module;
    const int file = argc == 3 ? open(argv[2], O_RDONLY) : -1;
    mapped = mmap(NULL, 16 * MIB, PROT_READ, MAP_PRIVATE, file, 0);
    if (mapped == MAP_FAILED)
        return 2;
    OK(cuInit(0));
    OK(cuDevicePrimaryCtxRetain(&context, 0));
    OK(cuCtxSetCurrent(context));
    OK(cuModuleLoad(&module, argv[1]));
    OK(cuModuleGetFunction(&fill, module, "fill32"));
    OK(cuModuleGetFunction(&uniform, module, "uniform32"));
    printf("%zu\n", measure(malloc(128 * MIB)));
    return 0;
}
