/* SPDX-License-Identifier: Apache-2.0 */
/* The first allocation of a device, when and where a self-check meets it. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tests/driver/differential/scenario.h"

/* Reads parts of blocks, so that they get memory in pieces, and then sets and copies over the
 * borders of these. */
static void pieces(void)
{
    enum { PITCH = 96 << 10, WIDTH = 64 << 10, ROWS = 80 };
    const CUdeviceptr block = load_file(16 * MIB), other = allocate(16 * MIB);
    unsigned char *host = malloc(6 * MIB);
    memset(host, 0x5a, 6 * MIB);
    OK(cuMemsetD8(other, 1, 16 * MIB));
    for (size_t at = 0; at < 16 * MIB; at += 2 * MIB) {
        print_bytes("a piece", block + at, 16);
        print_bytes("another piece", other + at, 16);
    }
    OK(cuMemsetD32(block + MIB, 0x01020304, 3 * MIB / 4));
    OK(cuMemsetD8(block + 13 * MIB - 1, 7, 3 * MIB));
    OK(cuMemcpyDtoD(other + 3 * MIB + 5, block + MIB + 1, 6 * MIB));
    OK(cuMemcpyHtoD(block + 5 * MIB + 9, host, 4 * MIB));
    const CUDA_MEMCPY2D rows = {.srcMemoryType = CU_MEMORYTYPE_DEVICE,
                                .srcDevice = block + 3000,
                                .srcPitch = PITCH,
                                .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                                .dstDevice = other + 7 * MIB + 77,
                                .dstPitch = WIDTH + 8,
                                .WidthInBytes = WIDTH,
                                .Height = ROWS};
    OK(cuMemcpy2D(&rows));
    OK(cuCtxSynchronize());
    print_bytes("the block", block, 16 * MIB);
    print_bytes("the other", other, 16 * MIB);
    OK(cuMemsetD8(block + MIB, 0x33, 9 * MIB)); /* all of it is in memory now */
    print_bytes("the block again", block, 16 * MIB);
    OK(cuMemFree(block));
    free(host);
}

/* A launch for whose replay the sink would be mapped. */
static void launches(void)
{
    const CUdeviceptr block = allocate(16 * MIB);
    uniform(block, 4 * MIB, 1);
    print_bytes("a part", block + 5 * MIB, MIB);
    fill(block + 6 * MIB, 0x3f800000, MIB / 2);
    print_bytes("all", block, 16 * MIB);
}

SCENARIO(everything)
{
    pieces();
    launches();
}

/* The first allocation comes during a capture, the second one after it. */
SCENARIO(in_capture)
{
    CUstream stream;
    CUgraph graph;
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    OK(cuThreadExchangeStreamCaptureMode(&mode));
    OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    const CUdeviceptr first = allocate(4 * MIB);
    OK(cuMemsetD8Async(first, 3, 4 * MIB, stream));
    OK(cuStreamEndCapture(stream, &graph));
    const CUdeviceptr second = allocate(4 * MIB);
    OK(cuMemsetD8(second, 4, 4 * MIB));
    print_bytes("after it", second, 4 * MIB);
}

static atomic_bool is_over;
static CUcontext context;

static void *capture(void *unused)
{
    CUstream stream;
    (void)unused;
    OK(cuCtxSetCurrent(context));
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    const CUdeviceptr small = allocate(4096);
    do {
        CUgraph graph;
        OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
        OK(cuMemsetD8Async(small, 3, 4096, stream));
        OK(cuStreamEndCapture(stream, &graph));
        OK(cuGraphDestroy(graph));
    } while (!atomic_load(&is_over));
    return NULL;
}

/* Another thread captures all the time, and none of its captures ends because of the check. While
 * one goes on, an allocation is the driver's: there are many, so that some come in between. */
SCENARIO(beside_captures)
{
    pthread_t thread;
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    OK(cuCtxGetCurrent(&context));
    OK(cuThreadExchangeStreamCaptureMode(&mode));
    pthread_create(&thread, NULL, capture, NULL);
    for (int i = 0; i < 300; i++) {
        const CUdeviceptr block = allocate(4 * MIB);
        OK(cuMemsetD8Async(block, 3, 4 * MIB, CU_STREAM_PER_THREAD));
    }
    atomic_store(&is_over, true);
    pthread_join(thread, NULL);
    puts("all captures ended well");
}

static void *allocate_one(void *unused)
{
    (void)unused;
    OK(cuCtxSetCurrent(context));
    return (void *)(uintptr_t)allocate(4 * MIB);
}

SCENARIO(threads)
{
    enum { THREADS = 8 };
    pthread_t all[THREADS];
    OK(cuCtxGetCurrent(&context));
    for (int i = 0; i < THREADS; i++)
        pthread_create(&all[i], NULL, allocate_one, NULL);
    for (int i = 0; i < THREADS; i++) {
        void *block;
        pthread_join(all[i], &block);
        OK(cuMemsetD8((CUdeviceptr)(uintptr_t)block, 1, 4 * MIB));
    }
    puts("all allocated");
}

SCENARIO(two_devices)
{
    CUcontext other;
    OK(cuDevicePrimaryCtxRetain(&other, 1));
    run_everything();
    OK(cuCtxSetCurrent(other));
    run_everything();
}

static void CUDA_CB wait_for_host(void *unused)
{
    (void)unused;
    while (!atomic_load(&is_over))
        nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
}

/* Work is queued that waits for what this thread does after its first allocation. */
SCENARIO(busy)
{
    CUstream stream;
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    OK(cuLaunchHostFunc(stream, wait_for_host, NULL));
    const CUdeviceptr block = allocate(4 * MIB);
    atomic_store(&is_over, true);
    OK(cuStreamSynchronize(stream));
    OK(cuMemsetD8(block, 1, 4 * MIB));
    print_bytes("the block", block, 4 * MIB);
}

/* The program's own handles, of which one is a granule. */
SCENARIO(mapped)
{
    const CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                      .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
    const CUmemAccessDesc access = {prop.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUmemGenericAllocationHandle handles[2];
    CUdeviceptr address;
    OK(cuMemAddressReserve(&address, 16 * MIB, 0, 0, 0));
    OK(cuMemCreate(&handles[0], 2 * MIB, &prop, 0));
    OK(cuMemCreate(&handles[1], 4 * MIB, &prop, 0));
    OK(cuMemMap(address, 2 * MIB, 0, handles[0], 0));
    OK(cuMemMap(address + 2 * MIB, 4 * MIB, 0, handles[1], 0));
    OK(cuMemSetAccess(address, 6 * MIB, &access, 1));
    OK(cuMemsetD8(address, 9, 6 * MIB));
    print_bytes("both", address, 6 * MIB);
}

SCENARIO(none)
{
}
