/* SPDX-License-Identifier: Apache-2.0 */
/*
 * settled KERNELS WAY: what a program that computes does again and again, for settled.py, which
 * counts the shim's instructions in `measured` under callgrind. One line for each call: its name,
 * and how often it was made inside `measured`. Ways:
 *
 *     settled     the shim has settled, and a caching allocator hands out blocks and takes them back
 *     used        the same, but the program has used all it has, so there was nothing to settle
 *     allocating  the program allocates and frees
 *     beside      the same, and there is an allocation that it has not used
 *     names N     the program names tensors, when it has named N
 */
#include <cuda.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "shim/metashard.h"
#include "tests/driver/differential/c10.h"

enum { BLOCKS = 16, STEPS = 200, ALLOCATED = 4 << 20 };
#define BLOCK_BYTES ((size_t)512 << 10)
#define NAME "_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE"

static void must(CUresult result)
{
    if (result == CUDA_SUCCESS)
        return;
    fprintf(stderr, "settled: CUDA error %d\n", (int)result);
    exit(1);
}

static CUfunction kernel;
static CUdeviceptr whole;
static CUdeviceptr allocated[BLOCKS];

static void launch(CUdeviceptr address)
{
    CUdeviceptr words[2] = {address, address};
    void *places[] = {words};
    must(cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, NULL, places, NULL));
}

static void report(int i, int64_t bytes)
{
    REPORT((void *)(uintptr_t)(whole + (size_t)i * BLOCK_BYTES), bytes, 1, 2,
           (struct c10_device){1, 0});
}

static void take(int i)
{
    report(i, (int64_t)BLOCK_BYTES);
}

static void give(int i)
{
    report(i, -(int64_t)BLOCK_BYTES);
}

static void allocate(int i)
{
    must(cuMemAlloc(&allocated[i], ALLOCATED));
}

static void release(int i)
{
    must(cuMemFree(allocated[i]));
}

/* callgrind collects only while this runs, and writes a part when it returns. */
__attribute__((noinline)) static void measured(void (*call)(int i))
{
    for (int i = 0; i < BLOCKS; i++)
        call(i);
}

static void report_calls(const char *name, void (*call)(int i))
{
    measured(call);
    printf("%s\t%d\n", name, BLOCKS);
}

static void each(void (*call)(int i))
{
    for (int i = 0; i < BLOCKS; i++)
        call(i);
}

static void use_block(int i)
{
    launch(whole + (size_t)i * BLOCK_BYTES);
}

static void use_allocated(int i)
{
    launch(allocated[i]);
}

/* Launches until the shim must have settled. */
static void move_on(void)
{
    for (int i = 0; i < STEPS; i++) {
        launch(0);
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
}

static void blocks(bool settles)
{
    CUdeviceptr other;
    must(cuMemAlloc(&whole, BLOCKS * BLOCK_BYTES));
    each(take);
    if (settles) {
        must(cuMemAlloc(&other, ALLOCATED));
        move_on();
    }
    each(use_block);
    for (int step = 0; step < STEPS; step++) {
        each(give);
        each(take);
        each(use_block);
    }
    must(cuCtxSynchronize());
    report_calls(NAME ", taken back", give);
    report_calls(NAME ", handed out", take);
}

static void allocations(void)
{
    for (int step = 0; step < STEPS; step++) {
        each(allocate);
        each(use_allocated);
        each(release);
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    report_calls("cuMemAlloc_v2", allocate);
    each(use_allocated);
    report_calls("cuMemFree_v2", release);
}

static void allocations_beside(void)
{
    must(cuMemAlloc(&whole, 2 * ALLOCATED));
    allocations();
}

enum { NAMED_BYTES = 512 };
static long named;

static void name_next(int i)
{
    char text[32];
    const uint64_t bytes = NAMED_BYTES;
    snprintf(text, sizeof(text), "tensor.%ld", named + i);
    if (metashard_name(whole + (CUdeviceptr)(named + i) * NAMED_BYTES, NAMED_BYTES, text, "U8",
                       &bytes, 1) != 0)
        exit(1);
}

/* In an order that is none of their addresses. */
static void names(long before)
{
    must(cuMemAlloc(&whole, (size_t)(before + BLOCKS) * NAMED_BYTES + BLOCK_BYTES));
    for (long i = 0; i < before; i++) {
        named = i * 7919 % before;
        name_next(0);
    }
    named = before;
    report_calls("metashard_name", name_next);
    named = before / 2;
    report_calls("metashard_name, anew", name_next);
}

int main(int argc, char **argv)
{
    CUcontext context;
    CUmodule module;
    if (argc < 3)
        return 2;
    must(cuInit(0));
    must(cuDevicePrimaryCtxRetain(&context, 0));
    must(cuCtxSetCurrent(context));
    must(cuModuleLoad(&module, argv[1]));
    must(cuModuleGetFunction(&kernel, module, "takes_16"));
    if (strcmp(argv[2], "allocating") == 0)
        allocations();
    else if (strcmp(argv[2], "beside") == 0)
        allocations_beside();
    else if (strcmp(argv[2], "names") == 0)
        names(argc > 3 ? atol(argv[3]) : 0);
    else
        blocks(strcmp(argv[2], "settled") == 0);
    return 0;
}
