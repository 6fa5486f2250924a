/* SPDX-License-Identifier: Apache-2.0 */
/* Scenarios: small copies from host memory while their stream waits, which may hold addresses. */
#include "tests/driver/differential/scenario.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "tests/driver/differential/c10.h"

enum { WORDS = 8, COPIES = 64 };

static _Atomic int may_go;

static void CUDA_CB wait_until_it_may_go(void *unused)
{
    (void)unused;
    while (!may_go)
        nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
}

static CUstream hold(unsigned flags)
{
    CUstream stream;
    OK(cuStreamCreate(&stream, flags));
    OK(cuLaunchHostFunc(stream, wait_until_it_may_go, NULL));
    return stream;
}

static uint64_t *pin(size_t bytes)
{
    void *pinned;
    OK(cuMemHostAlloc(&pinned, bytes, 0));
    memset(pinned, 0x11, bytes);
    return pinned;
}

static CUdeviceptr small(size_t bytes)
{
    CUdeviceptr address;
    OK(cuMemAlloc(&address, bytes));
    return address;
}

/* Nothing ends until the program has queued all, so a call that waits never returns. */
static void behind_held_work(void)
{
    const CUdeviceptr block = load_file(8 * MIB), table = small(COPIES * 64);
    unsigned char *pinned = (unsigned char *)pin(COPIES * 64);
    const CUstream stream = hold(CU_STREAM_NON_BLOCKING);
    for (int i = 0; i < COPIES; i++) {
        memset(pinned + 64 * i, i, 64);
        OK(cuMemcpyHtoDAsync(table + 64 * i, pinned + 64 * i, 64, stream));
    }
    may_go = 1;
    OK(cuStreamSynchronize(stream));
    print_bytes("table", table, COPIES * 64);
    OK(cuMemFree(block));
}

/* The legacy stream waits for streams that block with it. */
static void behind_the_legacy_stream(void)
{
    const CUdeviceptr block = load_file(8 * MIB), table = small(64);
    uint64_t *pinned = pin(64);
    const CUstream stream = hold(CU_STREAM_DEFAULT);
    OK(cuMemcpyHtoDAsync(table, pinned, 64, CU_STREAM_LEGACY));
    may_go = 1;
    OK(cuStreamSynchronize(stream));
    print_bytes("table", table, 64);
    OK(cuMemFree(block));
}

static CUdeviceptr behind_a_table(CUstream stream, CUdeviceptr table)
{
    const CUdeviceptr to = small(4 * WORDS);
    const uint64_t count = WORDS;
    void *params[] = {(void *)&to, (void *)&table, (void *)&count};
    OK(cuLaunchKernel(function("gather32"), 1, 1, 1, 1, 1, 1, 0, stream, params, NULL));
    return to;
}

static void point(uint64_t *table, CUdeviceptr block)
{
    for (int i = 0; i < WORDS; i++)
        table[i] = block + (CUdeviceptr)i * MIB;
}

/* The program writes the addresses after the copy is queued, and before the stream gets there. */
static void written_late(void)
{
    const CUdeviceptr block = load_file(8 * MIB), table = small(8 * WORDS);
    uint64_t *pinned = pin(8 * WORDS);
    const CUstream stream = hold(CU_STREAM_NON_BLOCKING);
    OK(cuMemcpyHtoDAsync(table, pinned, 8 * WORDS, stream));
    const CUdeviceptr to = behind_a_table(stream, table);
    point(pinned, block);
    may_go = 1;
    OK(cuStreamSynchronize(stream));
    print_bytes("gathered", to, 4 * WORDS);
    print_bytes("block", block, 8 * MIB);
}

static uint64_t *table_to_write;
static CUdeviceptr block_to_point_to;

static void CUDA_CB write_table(void *unused)
{
    (void)unused;
    nanosleep(&(struct timespec){.tv_nsec = 30000000}, NULL);
    point(table_to_write, block_to_point_to);
}

/* Rows, from a host function. The address is in the last row. */
static void rows_written_late(void)
{
    const CUdeviceptr block = load_file(8 * MIB), table = small(4 * 8 * WORDS);
    uint64_t *pinned = pin(8 * 8 * WORDS);
    CUstream stream;
    const CUDA_MEMCPY2D copy = {.srcMemoryType = CU_MEMORYTYPE_HOST,
                                .srcHost = pinned,
                                .srcPitch = 2 * 8 * WORDS,
                                .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                                .dstDevice = table,
                                .dstPitch = 8 * WORDS,
                                .WidthInBytes = 8 * WORDS,
                                .Height = 4};
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    table_to_write = pinned + 6 * WORDS;
    block_to_point_to = block;
    OK(cuLaunchHostFunc(stream, write_table, NULL));
    OK(cuMemcpy2DAsync(&copy, stream));
    const CUdeviceptr to = behind_a_table(stream, table + 3 * 8 * WORDS);
    OK(cuStreamSynchronize(stream));
    print_bytes("gathered", to, 4 * WORDS);
}

/* A copy to pinned memory that is still on its way, and from there on. */
static void by_way_of_the_host(void)
{
    const CUdeviceptr block = load_file(8 * MIB);
    const CUdeviceptr first = small(8 * WORDS), table = small(8 * WORDS);
    uint64_t *addresses = pin(8 * WORDS), *pinned = pin(8 * WORDS);
    const CUstream stream = hold(CU_STREAM_NON_BLOCKING);
    OK(cuMemcpyHtoDAsync(first, addresses, 8 * WORDS, stream));
    OK(cuMemcpyDtoHAsync(pinned, first, 8 * WORDS, stream));
    OK(cuMemcpyHtoDAsync(table, pinned, 8 * WORDS, stream));
    const CUdeviceptr to = behind_a_table(stream, table);
    point(addresses, block);
    may_go = 1;
    OK(cuStreamSynchronize(stream));
    print_bytes("gathered", to, 4 * WORDS);
}

/* Pageable memory is the program's again when the call returns. */
static void passing(void)
{
    const CUdeviceptr block = load_file(8 * MIB), table = small(8 * WORDS);
    uint64_t *host =
        mmap(NULL, 8 * WORDS, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    const CUstream stream = hold(CU_STREAM_NON_BLOCKING);
    point(host, block);
    OK(cuMemcpyHtoDAsync(table, host, 8 * WORDS, stream));
    munmap(host, 8 * WORDS);
    const CUdeviceptr to = behind_a_table(stream, table);
    may_go = 1;
    OK(cuStreamSynchronize(stream));
    print_bytes("gathered", to, 4 * WORDS);
}

/* Behind the kernel that reads it, but before its stream gets to the copy of its address. */
static void freed_in_the_order_of_the_stream(void)
{
    const CUdeviceptr block = load_file(8 * MIB), table = small(8 * WORDS);
    uint64_t *pinned = pin(8 * WORDS);
    const CUstream stream = hold(CU_STREAM_NON_BLOCKING);
    point(pinned, block);
    OK(cuMemcpyHtoDAsync(table, pinned, 8 * WORDS, stream));
    const CUdeviceptr to = behind_a_table(stream, table);
    OK(cuMemFreeAsync(block, stream));
    may_go = 1;
    OK(cuStreamSynchronize(stream));
    print_bytes("gathered", to, 4 * WORDS);
}

/* What it held is what the kernel must read. One part is overwritten in the same stream, one in a
 * stream that waits for the kernel. */
static void overwritten_in_the_order_of_the_stream(void)
{
    const CUdeviceptr block = load_file(8 * MIB), table = small(8 * WORDS);
    uint64_t *pinned = pin(8 * WORDS);
    const CUstream stream = hold(CU_STREAM_NON_BLOCKING);
    CUstream other;
    CUevent event;
    OK(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
    OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    point(pinned, block);
    OK(cuMemcpyHtoDAsync(table, pinned, 8 * WORDS, stream));
    const CUdeviceptr to = behind_a_table(stream, table);
    OK(cuMemcpyHtoDAsync(block, pin(4 * MIB), 4 * MIB, stream));
    OK(cuEventRecord(event, stream));
    OK(cuStreamWaitEvent(other, event, 0));
    OK(cuMemsetD8Async(block + 4 * MIB, 5, 4 * MIB, other));
    may_go = 1;
    OK(cuStreamSynchronize(other));
    print_bytes("gathered", to, 4 * WORDS);
    print_bytes("block", block, 8 * MIB);
}

/* As a caching allocator does; without the shim nobody listens. */
static void report(CUdeviceptr block, int64_t bytes)
{
    __typeof__(&REPORT) tell =
        (__typeof__(tell))dlsym(RTLD_DEFAULT,
                                "_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE");
    if (tell != NULL)
        tell((void *)(uintptr_t)block, bytes, 1, 2, (struct c10_device){1, 0});
}

/* The same of a block that goes back to a caching allocator. */
static void returned_before_the_stream_got_there(void)
{
    const CUdeviceptr block = allocate(16 * MIB), table = small(8 * WORDS);
    uint64_t *pinned = pin(8 * WORDS);
    report(block, 8 * MIB);
    OK(cuMemsetD8(block, 5, 8 * MIB));
    OK(cuCtxSynchronize()); /* the stream below waits for no other */
    const CUstream stream = hold(CU_STREAM_NON_BLOCKING);
    point(pinned, block);
    OK(cuMemcpyHtoDAsync(table, pinned, 8 * WORDS, stream));
    const CUdeviceptr to = behind_a_table(stream, table);
    report(block, -8 * (int64_t)MIB);
    may_go = 1;
    OK(cuStreamSynchronize(stream));
    print_bytes("gathered", to, 4 * WORDS);
}

/* A kernel can follow it to whatever addresses the host puts there. */
static void address_of_the_host(void)
{
    const CUdeviceptr block = load_file(8 * MIB), table = small(64), out = small(64);
    const uint64_t pinned = (uintptr_t)pin(64);
    OK(cuMemcpyHtoD(table, &pinned, sizeof(pinned)));
    fill(out, 3, 16);
    print_bytes("what any kernel has written", out, 64);
    OK(cuMemFree(block));
}

const struct scenario scenarios[] = {
    {"behind_held_work", behind_held_work},
    {"behind_the_legacy_stream", behind_the_legacy_stream},
    {"written_late", written_late},
    {"rows_written_late", rows_written_late},
    {"by_way_of_the_host", by_way_of_the_host},
    {"passing", passing},
    {"address_of_the_host", address_of_the_host},
    {"freed_in_the_order_of_the_stream", freed_in_the_order_of_the_stream},
    {"overwritten_in_the_order_of_the_stream", overwritten_in_the_order_of_the_stream},
    {"returned_before_the_stream_got_there", returned_before_the_stream_got_there},
    {NULL, NULL},
};
