/* SPDX-License-Identifier: Apache-2.0 */
/* Calls that end a window of deferral, and calls for which memory runs out. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "tests/driver/differential/scenario.h"

/* Work that has nothing to do with deferred memory, for longer than windows.py makes a window. */
static void work(void)
{
    const CUdeviceptr small = allocate(4096);
    for (int i = 0; i < 150; i++) {
        fill(small, (uint32_t)i, 1024);
        nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
    }
    OK(cuCtxSynchronize());
    OK(cuMemFree(small));
}

SCENARIO(overwrite_after)
{
    const CUdeviceptr block = load_file(8 * MIB);
    work();
    overwrite_file(8 * MIB);
    print_bytes("after settling", block, 8 * MIB);
}

SCENARIO(overwrite_before)
{
    const CUdeviceptr block = load_file(8 * MIB);
    overwrite_file_unseen(8 * MIB);
    print_bytes("before settling", block, 8 * MIB);
    CUdeviceptr other = allocate(4 * MIB);
    OK(cuMemsetD8(other, 7, 4 * MIB));
    print_bytes("another", other, 4 * MIB);
}

/* Bytes that a capture or a graph will use are materialised in time. */
SCENARIO(overwrite_captured)
{
    CUstream stream;
    CUgraph graph;
    const CUdeviceptr block = load_file(8 * MIB);
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    OK(cuStreamEndCapture(stream, &graph));
    overwrite_file(8 * MIB);
    print_bytes("after a capture", block, 8 * MIB);
}

/* Bytes that were read stay as they were read. */
SCENARIO(overwrite_read)
{
    const CUdeviceptr block = load_file(8 * MIB);
    print_bytes("read", block, 8 * MIB);
    overwrite_file(8 * MIB);
    print_bytes("read again", block, 8 * MIB);
    work();
    print_bytes("settled", block, 8 * MIB);
}

/* One block is lost; the other is not, and nobody is told twice. */
SCENARIO(overwrite_one)
{
    const CUdeviceptr lost = load_file(8 * MIB);
    const CUdeviceptr kept = allocate(8 * MIB);
    uniform(kept, 2 * MIB, 3);
    overwrite_file_unseen(8 * MIB);
    work();
    work();
    print_bytes("lost", lost, 8 * MIB);
    print_bytes("kept", kept, 8 * MIB);
}

/* A few launches in a long time are no sign that the program has moved on. */
SCENARIO(slow_work)
{
    const CUdeviceptr block = load_file(8 * MIB);
    const CUdeviceptr small = allocate(4096);
    for (int i = 0; i < 10; i++) {
        fill(small, (uint32_t)i, 1024);
        nanosleep(&(struct timespec){.tv_nsec = 30000000}, NULL);
    }
    print_bytes("loaded", block, 8 * MIB);
}

SCENARIO(second_window)
{
    run_overwrite_after();
    const CUdeviceptr second = allocate(16 * MIB);
    uniform(second, 4 * MIB, 3);
    print_bytes("a part of the second model", second + MIB, MIB);
    OK(cuMemFree(second));
}

/* Recorded launches must outlive their code. */
SCENARIO(unload)
{
    const CUdeviceptr block = allocate(8 * MIB);
    uniform(block, 2 * MIB, 1);
    unload_kernels();
    print_bytes("after the code went", block, 8 * MIB);
}

/* Reads of more than the device has; what was read before can be played again. */
SCENARIO(pressure)
{
    CUdeviceptr blocks[4];
    for (unsigned i = 0; i < 4; i++) {
        blocks[i] = allocate(24 * MIB);
        uniform(blocks[i], 6 * MIB, i);
        OK(cuMemsetD32(blocks[i] + 4 * MIB, 0x01020304 * i, MIB));
    }
    for (unsigned i = 0; i < 8; i++)
        print_bytes("read under pressure", blocks[i % 4], 24 * MIB);
    for (unsigned i = 0; i < 4; i++)
        OK(cuMemFree(blocks[i]));
}

/* The program's own requests find room as well. */
SCENARIO(pressure_for_others)
{
    CUdeviceptr read = allocate(40 * MIB);
    CUdeviceptr pooled;
    OK(cuMemsetD8(read, 0x11, 40 * MIB));
    print_bytes("read", read, 40 * MIB);
    OK(cuMemAllocAsync(&pooled, 40 * MIB, NULL));
    OK(cuMemsetD8(pooled, 0x22, 40 * MIB));
    print_bytes("pooled", pooled, 40 * MIB);
    OK(cuMemFree(pooled));
    print_bytes("read again", read, 40 * MIB);
}

/* Resident memory is nobody's to take. */
SCENARIO(out_of_memory)
{
    CUdeviceptr first = allocate(40 * MIB);
    CUdeviceptr second = allocate(40 * MIB);
    CUfunction kernel = function("add_in_place32");
    struct {
        CUdeviceptr address;
        uint64_t count;
        uint32_t value;
    } add = {first, 10 * MIB, 5};
    void *params[] = {&add};
    OK(cuMemsetD8(first, 1, 40 * MIB));
    OK(cuMemsetD8(second, 2, 40 * MIB));
    OK(cuLaunchKernel(kernel, 16, 1, 1, 64, 1, 1, 0, NULL, params, NULL));
    add.address = second;
    const CUresult result = cuLaunchKernel(kernel, 16, 1, 1, 64, 1, 1, 0, NULL, params, NULL);
    printf("the second launch: %d\n", (int)result);
    print_bytes("first", first, 40 * MIB);
    OK(cuMemFree(first));
    if (result != CUDA_SUCCESS) /* once there is room, it runs */
        OK(cuLaunchKernel(kernel, 16, 1, 1, 64, 1, 1, 0, NULL, params, NULL));
    print_bytes("second", second, 40 * MIB);
}

SCENARIO(allocate_until_failure)
{
    enum { MOST = 1000 };
    static CUdeviceptr blocks[MOST];
    int count = 0;
    CUresult result = CUDA_SUCCESS;
    while (count < MOST && (result = cuMemAlloc(&blocks[count], 8 * MIB)) == CUDA_SUCCESS)
        count++;
    printf("allocated %d, then %d\n", count, (int)result);
    OK(cuMemFree(blocks[0]));
    OK(cuMemAlloc(&blocks[0], 8 * MIB));
}

/* A kernel that follows a table in ordinary host memory, where the device can read it. */
SCENARIO(pageable_table)
{
    uint64_t count = 2;
    uint32_t out[2];
    CUdeviceptr result = allocate(4096);
    const CUdeviceptr block = allocate(8 * MIB);
    CUdeviceptr *table = malloc(2 * sizeof(*table));
    OK(cuMemsetD32(block, 0x12345678, 2 * MIB));
    OK(cuMemsetD32(block + 4 * MIB, 0x87654321, MIB));
    table[0] = block + MIB;
    table[1] = block + 5 * MIB;
    CUdeviceptr from = (CUdeviceptr)(uintptr_t)table;
    void *params[] = {&result, &from, &count};
    OK(cuLaunchKernel(function("gather32"), 1, 1, 1, 1, 1, 1, 0, NULL, params, NULL));
    OK(cuMemcpyDtoH(out, result, sizeof(out)));
    printf("gathered %x %x\n", out[0], out[1]);
    free(table);
}
