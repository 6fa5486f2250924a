/* SPDX-License-Identifier: Apache-2.0 */
/* Scenarios: small copies from host memory while their stream waits, which may hold addresses. */
#include "tests/driver/differential/scenario.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

enum { WORDS = 8, COPIES = 64 };

static CUstream make_held(unsigned flags)
{
    CUstream stream;
    OK(cuStreamCreate(&stream, flags));
    hold(stream);
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
SCENARIO(behind_held_work)
{
    const CUdeviceptr block = load_file(8 * MIB), table = small(COPIES * 64);
    unsigned char *pinned = (unsigned char *)pin(COPIES * 64);
    const CUstream stream = make_held(CU_STREAM_NON_BLOCKING);
    for (int i = 0; i < COPIES; i++) {
        memset(pinned + 64 * i, i, 64);
        OK(cuMemcpyHtoDAsync(table + 64 * i, pinned + 64 * i, 64, stream));
    }
    let_go();
    OK(cuStreamSynchronize(stream));
    print_bytes("table", table, COPIES * 64);
    OK(cuMemFree(block));
}

/* The legacy stream waits for streams that block with it. */
SCENARIO(behind_the_legacy_stream)
{
    const CUdeviceptr block = load_file(8 * MIB), table = small(64);
    uint64_t *pinned = pin(64);
    const CUstream stream = make_held(CU_STREAM_DEFAULT);
    OK(cuMemcpyHtoDAsync(table, pinned, 64, CU_STREAM_LEGACY));
    let_go();
    OK(cuStreamSynchronize(stream));
    print_bytes("table", table, 64);
    OK(cuMemFree(block));
}

static CUdeviceptr behind_a_table(CUstream stream, CUdeviceptr table)
{
    const CUdeviceptr to = small(4 * WORDS);
    gather_words(to, table, WORDS, stream);
    return to;
}

static CUdeviceptr behind_a_copy(CUstream stream, CUdeviceptr table, const uint64_t *from)
{
    OK(cuMemcpyHtoDAsync(table, from, 8 * WORDS, stream));
    return behind_a_table(stream, table);
}

static void print_gathered(CUdeviceptr to, CUstream stream)
{
    let_go();
    OK(cuStreamSynchronize(stream));
    print_bytes("gathered", to, 4 * WORDS);
}

static void point(uint64_t *table, CUdeviceptr block)
{
    for (int i = 0; i < WORDS; i++)
        table[i] = block + (CUdeviceptr)i * MIB;
}

/* The program writes the addresses after the copy is queued, and before the stream gets there. */
SCENARIO(written_late)
{
    const CUdeviceptr block = load_file(8 * MIB), table = small(8 * WORDS);
    uint64_t *pinned = pin(8 * WORDS);
    const CUstream stream = make_held(CU_STREAM_NON_BLOCKING);
    const CUdeviceptr to = behind_a_copy(stream, table, pinned);
    point(pinned, block);
    print_gathered(to, stream);
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
SCENARIO(rows_written_late)
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
SCENARIO(by_way_of_the_host)
{
    const CUdeviceptr block = load_file(8 * MIB);
    const CUdeviceptr first = small(8 * WORDS), table = small(8 * WORDS);
    uint64_t *addresses = pin(8 * WORDS), *pinned = pin(8 * WORDS);
    const CUstream stream = make_held(CU_STREAM_NON_BLOCKING);
    OK(cuMemcpyHtoDAsync(first, addresses, 8 * WORDS, stream));
    OK(cuMemcpyDtoHAsync(pinned, first, 8 * WORDS, stream));
    const CUdeviceptr to = behind_a_copy(stream, table, pinned);
    point(addresses, block);
    print_gathered(to, stream);
}

/* Pageable memory is the program's again when the call returns. */
SCENARIO(passing)
{
    const CUdeviceptr block = load_file(8 * MIB), table = small(8 * WORDS);
    uint64_t *host =
        mmap(NULL, 8 * WORDS, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    const CUstream stream = make_held(CU_STREAM_NON_BLOCKING);
    point(host, block);
    OK(cuMemcpyHtoDAsync(table, host, 8 * WORDS, stream));
    munmap(host, 8 * WORDS);
    const CUdeviceptr to = behind_a_table(stream, table);
    print_gathered(to, stream);
}

/* Behind the kernel that reads it, but before its stream gets to the copy of its address. */
SCENARIO(freed_in_the_order_of_the_stream)
{
    const CUdeviceptr block = load_file(8 * MIB), table = small(8 * WORDS);
    uint64_t *pinned = pin(8 * WORDS);
    const CUstream stream = make_held(CU_STREAM_NON_BLOCKING);
    point(pinned, block);
    const CUdeviceptr to = behind_a_copy(stream, table, pinned);
    OK(cuMemFreeAsync(block, stream));
    print_gathered(to, stream);
}

/* The kernel must read the bytes from before. One part is overwritten in the same stream, one in a
 * stream that waits for the kernel. */
SCENARIO(overwritten_in_the_order_of_the_stream)
{
    const CUdeviceptr block = load_file(8 * MIB), table = small(8 * WORDS);
    uint64_t *pinned = pin(8 * WORDS);
    const CUstream stream = make_held(CU_STREAM_NON_BLOCKING);
    const CUstream other = make_stream();
    CUevent event;
    OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    point(pinned, block);
    const CUdeviceptr to = behind_a_copy(stream, table, pinned);
    OK(cuMemcpyHtoDAsync(block, pin(4 * MIB), 4 * MIB, stream));
    OK(cuEventRecord(event, stream));
    OK(cuStreamWaitEvent(other, event, 0));
    OK(cuMemsetD8Async(block + 4 * MIB, 5, 4 * MIB, other));
    let_go();
    OK(cuStreamSynchronize(other));
    print_bytes("gathered", to, 4 * WORDS);
    print_bytes("block", block, 8 * MIB);
}

/* The same of a block that goes back to a caching allocator. */
SCENARIO(returned_before_the_stream_got_there)
{
    const CUdeviceptr block = allocate(16 * MIB), table = small(8 * WORDS);
    uint64_t *pinned = pin(8 * WORDS);
    report(block, 8 * MIB);
    OK(cuMemsetD8(block, 5, 8 * MIB));
    OK(cuCtxSynchronize()); /* the stream below waits for no other */
    const CUstream stream = make_held(CU_STREAM_NON_BLOCKING);
    point(pinned, block);
    const CUdeviceptr to = behind_a_copy(stream, table, pinned);
    report(block, -8 * (int64_t)MIB);
    print_gathered(to, stream);
}

/* A kernel can follow it to whatever addresses the host puts there. */
SCENARIO(address_of_the_host)
{
    const CUdeviceptr block = load_file(8 * MIB), table = small(64), out = small(64);
    const uint64_t pinned = (uintptr_t)pin(64);
    OK(cuMemcpyHtoD(table, &pinned, sizeof(pinned)));
    fill(out, 3, 16);
    print_bytes("what any kernel has written", out, 64);
    OK(cuMemFree(block));
}
