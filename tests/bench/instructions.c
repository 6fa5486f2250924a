/* SPDX-License-Identifier: Apache-2.0 */
/*
 * instructions KERNELS BLOCKS [resident | pointers]: calls that touch none of BLOCKS deferred
 * blocks, for instructions.py, which counts the shim's instructions in `measured` under callgrind.
 * One line for each kind of call: its name, and how often it was made inside `measured`; or, after
 * a minus, why it was not. With "resident" the blocks have been materialised before.
 */
#include <cuda.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define ROUNDS 16
#define BLOCK_BYTES ((size_t)128 << 10)
#define PARAMETER_BYTES_MAX 4096

static void must(CUresult result)
{
    if (result == CUDA_SUCCESS)
        return;
    fprintf(stderr, "instructions: CUDA error %d\n", (int)result);
    exit(1);
}

static CUdeviceptr small; /* below METASHARD_MIN_BYTES: the driver's own */
static char host[64];
static union {
    CUdeviceptr words[PARAMETER_BYTES_MAX / sizeof(CUdeviceptr)];
    char bytes[PARAMETER_BYTES_MAX];
} parameters; /* every word the address of `small` */
static CUfunction kernel;

static CUresult launch(void)
{
    void *places[] = {&parameters};
    return cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, NULL, places, NULL);
}

static CUresult launch_ex(void)
{
    const CUlaunchConfig config = {.gridDimX = 1,
                                   .gridDimY = 1,
                                   .gridDimZ = 1,
                                   .blockDimX = 1,
                                   .blockDimY = 1,
                                   .blockDimZ = 1};
    void *places[] = {&parameters};
    return cuLaunchKernelEx(&config, kernel, places, NULL);
}

static CUresult copy_from_host(void)
{
    return cuMemcpyHtoDAsync(small, host, sizeof(host), NULL);
}

static CUresult copy_on_device(void)
{
    return cuMemcpyDtoDAsync(small, small + 4096, sizeof(host), NULL);
}

static CUresult set(void)
{
    return cuMemsetD8Async(small, 1, sizeof(host), NULL);
}

/* callgrind collects only while this runs, and writes a part when it returns. */
__attribute__((noinline)) static void measured(CUresult (*call)(void))
{
    for (int i = 0; i < ROUNDS; i++)
        must(call());
}

/* On the simulated driver device memory can be read at its address, once it is there. */
static bool is_backed(CUdeviceptr address)
{
    static int ends[2];
    char byte;
    if (ends[1] == 0 && pipe(ends) != 0)
        abort();
    return write(ends[1], (const void *)(uintptr_t)address, 1) == 1 && read(ends[0], &byte, 1) == 1;
}

static CUdeviceptr *blocks;
static long block_count;
static bool resident;

static void materialise(CUdeviceptr address)
{
    static char bytes[BLOCK_BYTES];
    must(cuMemcpyDtoH(bytes, address, sizeof(bytes)));
}

static CUresult copy_into_block(void)
{
    return cuMemcpyHtoDAsync(blocks[block_count / 2] + 64, host, sizeof(host), NULL);
}

/* Every kind of call finds the blocks in the same state, whatever the one before it did: a call
 * materialises all of them or none. */
static void renew_blocks(void)
{
    const bool unchanged = block_count > 0 && blocks[0] != 0 && !is_backed(blocks[0]);
    for (long i = 0; i < block_count && !unchanged; i++) {
        if (blocks[i] != 0 && (resident || !is_backed(blocks[i])))
            continue;
        if (blocks[i] != 0)
            must(cuMemFree(blocks[i]));
        must(cuMemAlloc(&blocks[i], BLOCK_BYTES));
        if (resident)
            materialise(blocks[i]);
    }
}

/* The first call is not steady state: the shim does some work once in a process or kernel. */
static void report(const char *name, CUresult (*call)(void))
{
    renew_blocks();
    const CUresult first = call();
    if (first != CUDA_SUCCESS) {
        printf("%s\t-fails with %d\n", name, (int)first);
    } else if (!resident && block_count > 0 && is_backed(blocks[0])) {
        printf("%s\t-materialises\n", name);
    } else {
        must(call());
        must(cuCtxSynchronize());
        measured(call);
        printf("%s\t%d\n", name, ROUNDS);
    }
    must(cuCtxSynchronize());
}

static void report_launches(CUmodule module, const char *name, CUresult (*call)(void))
{
    static const int sizes[] = {16, 64, 256, 1024, 4096};
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        char text[64];
        snprintf(text, sizeof(text), "takes_%d", sizes[i]);
        must(cuModuleGetFunction(&kernel, module, text));
        snprintf(text, sizeof(text), "%s, %d bytes", name, sizes[i]);
        report(text, call);
    }
}

/* The parameters point to blocks that have memory, while one is deferred that they do not reach.
 * Rows by the steps from one pointer to the next: the same block, the next one, far ones. */
static void report_pointers(CUmodule module)
{
    enum { WORDS = PARAMETER_BYTES_MAX / sizeof(CUdeviceptr) };
    static const long steps[] = {0, 1, 7, 397};
    CUdeviceptr deferred;
    resident = true;
    renew_blocks();
    must(cuMemAlloc(&deferred, BLOCK_BYTES));
    must(cuModuleGetFunction(&kernel, module, "takes_4096"));
    for (size_t i = 0; i < sizeof(steps) / sizeof(steps[0]); i++) {
        char text[64];
        for (long word = 0; word < WORDS; word++)
            parameters.words[word] = blocks[word * steps[i] % block_count] + (CUdeviceptr)word * 8;
        must(launch());
        must(cuCtxSynchronize());
        if (is_backed(deferred))
            exit(1);
        measured(launch);
        snprintf(text, sizeof(text), "cuLaunchKernel, %d pointers in steps of %ld", (int)WORDS,
                 steps[i]);
        printf("%s\t%d\n", text, ROUNDS);
    }
}

int main(int argc, char **argv)
{
    if (argc < 3)
        return 2;
    CUcontext context;
    CUmodule module;
    const bool points = argc > 3 && strcmp(argv[3], "pointers") == 0;
    block_count = atol(argv[2]);
    resident = argc > 3 && strcmp(argv[3], "resident") == 0;
    blocks = calloc((size_t)block_count + 1, sizeof(*blocks));
    must(cuInit(0));
    must(cuDevicePrimaryCtxRetain(&context, 0));
    must(cuCtxSetCurrent(context));
    must(cuModuleLoad(&module, argv[1]));
    must(cuMemAlloc(&small, 65536));
    memset(host, 0x5a, sizeof(host)); /* under valgrind zeroes could be a part of an address */
    for (size_t i = 0; i < PARAMETER_BYTES_MAX / sizeof(CUdeviceptr); i++)
        parameters.words[i] = small;
    if (points) {
        report_pointers(module);
        return 0;
    }
    report("cuMemcpyHtoDAsync_v2", copy_from_host);
    report("cuMemcpyDtoDAsync_v2", copy_on_device);
    report("cuMemsetD8Async", set);
    if (resident)
        report("cuMemcpyHtoDAsync_v2, into a block", copy_into_block);
    report_launches(module, "cuLaunchKernel", launch);
    report_launches(module, "cuLaunchKernelEx", launch_ex);
    return 0;
}
