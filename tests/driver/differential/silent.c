/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Scenarios (scenario.h) of programs that are wrong without the shim, and are not told so with it;
 * the table at the head of docs/limits.md has them. silent.py checks what is different, and that
 * nothing else is: no other memory is read or written, and where the difference ends.
 */
#include <cuda.h>
#include <dlfcn.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/driver/differential/scenario.h"

static CUdeviceptr beside; /* another allocation, of which every byte is known */

static CUdeviceptr make_set(unsigned char value)
{
    const CUdeviceptr block = allocate(4 * MIB);
    OK(cuMemsetD8(block, value, 4 * MIB));
    OK(cuStreamSynchronize(NULL));
    return block;
}

/* The first word that a kernel reads at an address, in a stream of its own; or the error. */
static void see_kernel(const char *what, CUdeviceptr address)
{
    static CUdeviceptr table, out;
    uint64_t count = 1;
    uint32_t word = 0;
    if (table == 0) {
        OK(cuMemAlloc(&table, 8));
        OK(cuMemAlloc(&out, 4));
    }
    OK(cuMemcpyHtoD(table, &address, 8));
    void *params[] = {&out, &table, &count};
    OK(cuLaunchKernel(function("gather32"), 1, 1, 1, 1, 1, 1, 0, NULL, params, NULL));
    const CUresult result = cuStreamSynchronize(NULL);
    if (result == CUDA_SUCCESS)
        OK(cuMemcpyDtoH(&word, out, 4));
    printf("%s: %d %08x\n", what, (int)result, word);
}

/* --- a kernel, and a graph that was made before, after a free that is delayed */

static CUgraphExec graph_that_sets(CUdeviceptr block)
{
    CUgraph graph;
    CUgraphNode node;
    CUgraphExec executable;
    CUcontext context;
    const CUDA_MEMSET_NODE_PARAMS set = {
        .dst = block, .value = 9, .elementSize = 1, .width = 4 * MIB, .height = 1};
    OK(cuCtxGetCurrent(&context));
    OK(cuGraphCreate(&graph, 0));
    OK(cuGraphAddMemsetNode(&node, graph, NULL, 0, &set, context));
    OK(cuGraphInstantiate(&executable, graph, 0));
    return executable;
}

static CUgraphExec sets;

/* An allocation that is made meanwhile lies elsewhere. */
static void use_freed(CUdeviceptr block)
{
    OK(cuMemFree(block));
    const CUdeviceptr later = allocate(4 * MIB);
    printf("elsewhere: %d\n", later + 4 * MIB <= block || later >= block + 4 * MIB);
    OK(cuMemsetD8(later, 5, 4 * MIB));
    see_kernel("a kernel", block + MIB);
    printf("a graph: %d", (int)cuGraphLaunch(sets, NULL));
    printf(" %d\n", (int)cuStreamSynchronize(NULL));
    print_bytes("allocated meanwhile", later, 4 * MIB);
    print_bytes("beside", beside, 4 * MIB);
    OK(cuMemFree(later));
}

SCENARIO(after_a_free)
{
    function("gather32");
    beside = make_set(3);
    const CUdeviceptr block = make_set(1);
    sets = graph_that_sets(block);
    beside_capture(use_freed, block);
    OK(cuMemFree(allocate(4 * MIB))); /* takes what was delayed along */
    see_kernel("a kernel when no stream is captured", block + MIB);
}

static sem_t go_on;

static void CUDA_CB wait_for_it(void *unused)
{
    (void)unused;
    sem_wait(&go_on);
}

/* Freed in the order of a stream that has not got there: the driver keeps the memory as well. */
SCENARIO(after_a_stream_free)
{
    CUstream own;
    CUdeviceptr pooled;
    function("gather32");
    sem_init(&go_on, 0, 0);
    beside = make_set(3);
    OK(cuStreamCreate(&own, CU_STREAM_NON_BLOCKING));
    OK(cuMemAllocAsync(&pooled, 4 * MIB, own));
    OK(cuMemsetD8Async(pooled, 1, 4 * MIB, own));
    OK(cuStreamSynchronize(own));
    print_bytes("pooled", pooled, 4 * MIB);
    OK(cuLaunchHostFunc(own, wait_for_it, NULL));
    OK(cuMemFreeAsync(pooled, own));
    see_kernel("a kernel", pooled + MIB);
    sem_post(&go_on);
    OK(cuStreamSynchronize(own));
    print_bytes("beside", beside, 4 * MIB);
}

/* The others' bytes, without all that. */
SCENARIO(others_alone)
{
    print_bytes("allocated meanwhile", make_set(5), 4 * MIB);
    print_bytes("beside", make_set(3), 4 * MIB);
}

/* --- an address that no call shows: it is written in three pieces */

static void hidden_address(size_t offset)
{
    CUdeviceptr table, out;
    uint64_t count = 1;
    uint32_t word = 0;
    unsigned char first;
    OK(cuMemAlloc(&table, 8));
    OK(cuMemAlloc(&out, 4));
    const CUdeviceptr block = make_set(3), place = block + offset;
    OK(cuMemcpyDtoH(&first, block, 1));
    OK(cuMemcpyHtoD(table, &place, 3));
    OK(cuMemcpyHtoD(table + 3, (const char *)&place + 3, 3));
    OK(cuMemcpyHtoD(table + 6, (const char *)&place + 6, 2));
    void *params[] = {&out, &table, &count};
    OK(cuLaunchKernel(function("gather32"), 1, 1, 1, 1, 1, 1, 0, NULL, params, NULL));
    const CUresult result = cuStreamSynchronize(NULL);
    printf("%d\n", (int)result);
    if (result != CUDA_SUCCESS)
        return;
    OK(cuMemcpyDtoH(&word, out, 4));
    printf("%08x\n", word);
    print_bytes("the block", block, 4 * MIB);
}

SCENARIO(hidden_beside_memory)
{
    hidden_address(MIB);
}

SCENARIO(hidden_elsewhere)
{
    hidden_address(3 * MIB);
}

/* --- a write by an address that no call shows: the program changes it where a tensor map has it */

static CUtensorMap map_of(CUdeviceptr address)
{
    CUtensorMap map;
    const cuuint64_t dims[] = {1024, 1024};
    const cuuint64_t pitch = 4096;
    const cuuint32_t box[] = {64, 1}, steps[] = {1, 1};
    OK(cuTensorMapEncodeTiled(&map, CU_TENSOR_MAP_DATA_TYPE_UINT32, 2, (void *)(uintptr_t)address,
                              dims, &pitch, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                              CU_TENSOR_MAP_SWIZZLE_NONE, CU_TENSOR_MAP_L2_PROMOTION_NONE,
                              CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE));
    return map;
}

/* Between the write and the next read of the block, MetaShard frees its memory. */
static void hidden_write(void (*meanwhile)(void))
{
    uint32_t value = 5;
    beside = allocate(4 * MIB);
    CUtensorMap map = map_of(beside);
    const CUdeviceptr block = make_set(3);
    map.opaque[0] ^= beside ^ block;
    print_bytes("before", block, 4 * MIB);
    void *params[] = {&map, &value};
    OK(cuLaunchKernel(function("add_map32"), 1, 1, 1, 1, 1, 1, 0, NULL, params, NULL));
    OK(cuStreamSynchronize(NULL));
    print_bytes("written", block, 4 * MIB);
    meanwhile();
    print_bytes("later", block, 4 * MIB);
}

static void use_all(void)
{
    const CUdeviceptr large = allocate(58 * MIB);
    OK(cuMemsetD8(large, 7, 58 * MIB));
    print_bytes("large", large, 58 * MIB);
}

static void suspend(void)
{
    int (*call)(const char *, char *, size_t) = dlsym(RTLD_DEFAULT, "metashard_suspend");
    printf("%d\n", call == NULL ? 0 : call(NULL, NULL, 0));
}

SCENARIO(hidden_write_and_no_memory)
{
    hidden_write(use_all);
}

SCENARIO(hidden_write_and_suspension)
{
    hidden_write(suspend);
}

/* --- a description whose size reaches over the end of its allocation */

SCENARIO(long_texture)
{
    CUdeviceptr out;
    CUtexObject object = 0;
    uint32_t word = 0;
    beside = make_set(3);
    const size_t bytes = 4 * MIB - 64;
    const CUdeviceptr block = allocate(bytes);
    OK(cuMemsetD8(block, 1, bytes));
    OK(cuMemAlloc(&out, 4));
    CUDA_RESOURCE_DESC resource = {.resType = CU_RESOURCE_TYPE_LINEAR};
    resource.res.linear.devPtr = block;
    resource.res.linear.format = CU_AD_FORMAT_UNSIGNED_INT32;
    resource.res.linear.numChannels = 1;
    resource.res.linear.sizeInBytes = bytes + 32;
    const CUDA_TEXTURE_DESC texture = {.addressMode = {CU_TR_ADDRESS_MODE_CLAMP}};
    OK(cuTexObjectCreate(&object, &resource, &texture, NULL));
    void *params[] = {&out, &object};
    OK(cuLaunchKernel(function("read_texture32"), 1, 1, 1, 1, 1, 1, 0, NULL, params, NULL));
    OK(cuStreamSynchronize(NULL));
    OK(cuMemcpyDtoH(&word, out, 4));
    printf("by the texture: %08x\n", word);
    print_bytes("the block", block, bytes);
    print_bytes("beside", beside, 4 * MIB);
}
