/* SPDX-License-Identifier: Apache-2.0 */
/* A caching allocator that carves its allocations into blocks and reports them, as PyTorch's
 * does. */
#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "tests/driver/differential/c10.h"
#include "tests/driver/differential/scenario.h"

static CUdeviceptr take(CUdeviceptr address, size_t bytes)
{
    report(address, (int64_t)bytes);
    return address;
}

static void give(CUdeviceptr address, size_t bytes)
{
    report(address, -(int64_t)bytes);
}

static CUstream stream; /* of add and copy; the legacy one unless a scenario sets it */

static void add(CUdeviceptr address, uint32_t value, uint64_t count)
{
    OK(try_add(address, value, count, stream));
}

static void copy(CUdeviceptr to, CUdeviceptr from, uint64_t count)
{
    copy_words(to, from, count, stream);
}

static void print_told(void)
{
    int calls;
    int64_t bytes;
    c10_told(&calls, &bytes);
    printf("told %d times, %lld bytes live\n", calls, (long long)bytes);
}

/* One allocation for a whole model, as transformers warms the allocator up: of each tensor an
 * eighth is kept. */
SCENARIO(carved)
{
    const CUdeviceptr whole = allocate(128 * MIB);
    const CUdeviceptr shards = allocate(16 * MIB);
    give(take(whole, 128 * MIB), 128 * MIB);
    for (int i = 0; i < 4; i++) {
        const CUdeviceptr tensor = take(whole + (size_t)i * 32 * MIB, 32 * MIB);
        const CUdeviceptr shard = take(shards + (size_t)i * 4 * MIB, 4 * MIB);
        uniform(tensor, 8 * MIB, (uint64_t)i);
        OK(cuMemcpyDtoD(shard, tensor + 12 * MIB, 4 * MIB));
        give(tensor, 32 * MIB);
    }
    print_bytes("shards", shards, 16 * MIB);
    print_told();
}

/* 128 experts in 48 layers, three matrices each, in one allocation; an eighth of each is kept. */
SCENARIO(experts)
{
    enum { COUNT = 128 * 48 * 3, WHOLE = 8 << 10, PART = WHOLE / 8 };
    const unsigned char *file = map_file(8 * MIB);
    const CUdeviceptr model = allocate((size_t)COUNT * WHOLE);
    const CUdeviceptr shards = allocate((size_t)COUNT * PART);
    for (size_t i = 0; i < COUNT; i++) {
        const CUdeviceptr expert = take(model + i * WHOLE, WHOLE);
        OK(cuMemcpyHtoD(expert, file + i * 384, WHOLE));
    }
    for (size_t i = COUNT; i-- > 0;) {
        const CUdeviceptr shard = take(shards + i * PART, PART);
        OK(cuMemcpyDtoD(shard, model + i * WHOLE + 3 * PART, PART));
    }
    for (size_t i = 0; i < COUNT; i++)
        give(model + i * 7 % COUNT * WHOLE, WHOLE);
    print_bytes("some of the shards", shards + 5 * MIB, MIB);
}

/* Written in so many pieces that a block is better off in memory. Its neighbour is not. */
SCENARIO(shredded)
{
    enum { PIECES = 140000, STRIDE = 64 };
    const CUdeviceptr whole = allocate(64 * MIB);
    const CUdeviceptr shreds = take(whole, 16 * MIB), smooth = take(whole + 32 * MIB, 32 * MIB);
    OK(cuMemsetD32(shreds, 1, 4 * MIB));
    OK(cuMemsetD32(smooth, 2, 8 * MIB));
    for (uint32_t i = 0; i < PIECES; i++)
        OK(cuMemsetD32(shreds + (size_t)i * STRIDE, 0x80000000u | i, 1));
    print_bytes("shreds", shreds, 16 * MIB);
    print_bytes("some of the other", smooth + 7 * MIB, MIB);
}

/* Four blocks of 16 MiB, of other numbers each, in one allocation. */
static CUdeviceptr make_four(void)
{
    const CUdeviceptr whole = allocate(64 * MIB);
    for (int i = 0; i < 4; i++)
        uniform(take(whole + (size_t)i * 16 * MIB, 16 * MIB), 4 * MIB, (uint64_t)i);
    return whole;
}

/* An unknown kernel touches the block it is given, and no other. */
SCENARIO(one_block)
{
    const CUdeviceptr whole = make_four();
    add(whole + 16 * MIB, 5, 4 * MIB);
    print_bytes("touched", whole + 16 * MIB + 100, MIB);
    print_bytes("read", whole + 48 * MIB, MIB);
}

/* Blocks of all sizes in one granule, which take turns. */
SCENARIO(neighbours)
{
    const CUdeviceptr whole = allocate(4 * MIB);
    CUdeviceptr at = whole;
    for (size_t i = 0; i < 40; i++) {
        const size_t bytes = (i * 7919 % 150 + 1) * 512;
        uniform(take(at, bytes), bytes / 4, i);
        if (i % 3 == 0)
            add(at, 1, bytes / 4);
        if (i % 5 == 0)
            print_bytes("block", at, bytes);
        at += bytes;
    }
    print_bytes("all", whole, (size_t)(at - whole));
}

/* Work is queued on a block that was given back, and memory runs out. */
SCENARIO(freed_but_queued)
{
    const CUdeviceptr whole = allocate(24 * MIB);
    const CUdeviceptr kept = allocate(8 * MIB);
    const CUdeviceptr other = allocate(44 * MIB);
    OK(cuMemsetD8(take(whole, 24 * MIB), 7, 24 * MIB));
    add(whole, 1, 6 * MIB);
    add(take(kept, 8 * MIB), 1, 2 * MIB);
    OK(cuCtxSynchronize());
    stream = make_stream();
    for (uint32_t i = 0; i < 8; i++)
        add(whole, i, 6 * MIB);
    copy(kept, whole + 8 * MIB, 2 * MIB);
    give(whole, 24 * MIB);
    stream = NULL;
    add(take(other, 44 * MIB), 1, MIB); /* needs the memory of the block that was given back */
    OK(cuCtxSynchronize());
    print_bytes("kept", kept, 8 * MIB);
    give(other, 44 * MIB);
    OK(cuMemsetD8(take(whole, 24 * MIB), 1, 24 * MIB));
    add(whole, 2, 6 * MIB);
    print_bytes("again", whole, 24 * MIB);
    print_bytes("kept", kept, 8 * MIB);
}

/* The next block takes the memory that a block leaves behind, once the device is done with it. */
SCENARIO(left_behind)
{
    const CUdeviceptr whole = allocate(64 * MIB);
    stream = make_stream();
    for (int i = 0; i < 3; i++) {
        const CUdeviceptr block = take(whole + (size_t)(i % 2) * 32 * MIB, 24 * MIB);
        OK(cuMemsetD8Async(block, (unsigned char)(i + 1), 24 * MIB, stream));
        add(block, 1, 6 * MIB);
        OK(cuStreamSynchronize(stream));
        print_bytes("written", block, 24 * MIB);
        add(block, 2, 6 * MIB); /* queued when the block goes back */
        give(block, 24 * MIB);
    }
    OK(cuCtxSynchronize());
    stream = NULL;
}

/* A block goes back while work on it is queued behind something that this thread does later. */
SCENARIO(left_in_use)
{
    const CUdeviceptr whole = allocate(64 * MIB);
    const CUdeviceptr kept = allocate(4 * MIB);
    stream = make_stream();
    const CUdeviceptr first = take(whole, 24 * MIB);
    OK(cuMemsetD8Async(first, 3, 24 * MIB, stream));
    add(first, 1, 6 * MIB);
    add(take(kept, 4 * MIB), 1, MIB);
    hold(stream);
    add(first, 2, 6 * MIB);
    copy(kept, first + 8 * MIB, MIB);
    give(first, 24 * MIB);
    const CUdeviceptr second = take(whole + 32 * MIB, 24 * MIB);
    OK(cuMemsetD8Async(second, 5, 24 * MIB, stream));
    add(second, 1, 6 * MIB);
    let_go();
    OK(cuStreamSynchronize(stream));
    stream = NULL;
    print_bytes("kept", kept, 4 * MIB);
    print_bytes("second", second, 24 * MIB);
}

/* Steps of a training that never settles. */
SCENARIO(for_ever)
{
    const CUdeviceptr whole = allocate(64 * MIB);
    for (int i = 0; i < 40; i++) {
        const CUdeviceptr block = take(whole, 24 * MIB);
        OK(cuMemsetD8(block, (unsigned char)i, 24 * MIB));
        add(block, 1, 6 * MIB);
        OK(cuCtxSynchronize());
        if (i == 39)
            print_bytes("last", block, 24 * MIB);
        give(block, 24 * MIB);
    }
}

/* The same, but of every block that a kernel fills the next two hold only what is recorded. */
SCENARIO(for_the_next)
{
    const CUdeviceptr whole = allocate(64 * MIB);
    for (int i = 0; i < 80; i++) {
        const CUdeviceptr block = take(whole, 24 * MIB);
        OK(cuMemsetD8(block, (unsigned char)i, 24 * MIB));
        if (i % 3 == 0)
            add(block, 1, 6 * MIB);
        OK(cuCtxSynchronize());
        if (i == 79)
            print_bytes("last", block, 24 * MIB);
        give(block, 24 * MIB);
    }
}

/* A part of each tensor is kept, which was made of another one; all but the parts is freed before
 * they are needed. Their sizes divide nothing. */
static void read_late(size_t bytes, size_t kept_bytes)
{
    enum { COUNT = 6 };
    CUdeviceptr kept[COUNT];
    for (uint32_t i = 0; i < COUNT; i++) {
        const CUdeviceptr first = allocate(bytes);
        uniform(first, bytes / 4, i);
        const CUdeviceptr second = allocate(bytes);
        copy(second, first, bytes / 4);
        OK(cuMemFree(first));
        kept[i] = allocate(kept_bytes);
        copy(kept[i], second + 3 * MIB, kept_bytes / 4);
        OK(cuMemFree(second));
    }
    for (size_t i = 0; i < COUNT; i++)
        print_bytes("kept", kept[i], kept_bytes);
    for (size_t i = 0; i < COUNT; i++)
        print_bytes("again", kept[i], kept_bytes);
}

SCENARIO(read_late)
{
    read_late(32 * MIB, 8 * MIB);
}

SCENARIO(read_late_odd)
{
    read_late(31 * MIB + 12340, 7 * MIB + 4100);
}

/* Sixteen blocks of 1 MiB, of which all were used, given back and handed out again: with the memory
 * that they had. */
enum { READY = 16 };
static CUdeviceptr make_ready(CUdeviceptr whole)
{
    for (size_t i = 0; i < READY; i++)
        add(take(whole + i * MIB, MIB), (uint32_t)i, MIB / 4);
    for (int round = 0; round < 3; round++) {
        for (size_t i = 0; i < READY; i++)
            give(whole + i * MIB, MIB);
        for (size_t i = 0; i < READY; i++)
            OK(cuMemsetD8(take(whole + i * MIB, MIB), (unsigned char)i, MIB));
    }
    return whole;
}

/* They are in use when memory runs out, all but those that were given back. */
SCENARIO(ready_when_short)
{
    const CUdeviceptr whole = allocate(24 * MIB), other = allocate(50 * MIB);
    make_ready(whole);
    for (size_t i = 0; i < READY / 2; i++)
        give(whole + i * MIB, MIB);
    add(take(other, 50 * MIB), 1, 12 * MIB);
    for (size_t i = READY / 2; i < READY; i++)
        print_bytes("kept", whole + i * MIB, MIB);
    for (size_t i = 0; i < 2; i++)
        add(take(whole + i * MIB, MIB), 7, 1);
    print_bytes("other", other, 50 * MIB);
}

/* A kernel is queued on one that is taken back, while memory runs out. */
SCENARIO(ready_and_queued)
{
    const CUdeviceptr whole = allocate(24 * MIB), other = allocate(54 * MIB);
    make_ready(whole);
    stream = make_stream();
    for (size_t i = 0; i < READY; i++) {
        add(whole + i * MIB, 1, MIB / 4);
        give(whole + i * MIB, MIB);
        add(take(whole + i * MIB, MIB), 2, MIB / 4);
        give(whole + i * MIB, MIB);
    }
    stream = NULL;
    add(take(other, 54 * MIB), 1, 13 * MIB);
    print_bytes("other", other, 54 * MIB);
}

/* Something is deferred beside them: what they are counts again. */
SCENARIO(ready_then_deferred)
{
    const CUdeviceptr whole = make_ready(allocate(24 * MIB));
    uniform(take(whole + 18 * MIB, 4 * MIB), MIB, 1);
    add(whole + 3 * MIB, 5, MIB / 4);
    uniform(whole + 5 * MIB, MIB / 4, 2);
    give(whole + 7 * MIB, MIB);
    uniform(take(whole + 7 * MIB, MIB / 2), MIB / 8, 3);
    take(whole + 8 * MIB + MIB / 2, 2 * MIB); /* over three that were never given back */
    add(whole + 8 * MIB + MIB / 2, 1, MIB / 2);
    copy(whole + 12 * MIB, whole + 18 * MIB, MIB / 4);
    print_bytes("all", whole, 16 * MIB);
    print_bytes("deferred", whole + 18 * MIB, 4 * MIB);
}

/* One is used from its middle on by a copy: that is no use of dead memory. */
SCENARIO(ready_and_copied)
{
    const CUdeviceptr whole = make_ready(allocate(24 * MIB));
    unsigned char bytes[4096];
    memset(bytes, 9, sizeof(bytes));
    OK(cuMemcpyHtoD(whole + 3 * MIB + 8192, bytes, sizeof(bytes)));
    uniform(take(whole + 18 * MIB, 4 * MIB), MIB, 1);
    copy(whole, whole + 23 * MIB, 0); /* a stale address */
    print_bytes("copied", whole + 3 * MIB, MIB);
}

/* When deferral has ended, what is handed out has memory at once. */
SCENARIO(after_settling)
{
    const CUdeviceptr whole = allocate(32 * MIB);
    uniform(take(whole, 8 * MIB), 2 * MIB, 1);
    uniform(take(whole + 24 * MIB, 8 * MIB), 2 * MIB, 2);
    give(whole + 24 * MIB, 8 * MIB);
    OK(cuStreamSynchronize(NULL));
    struct timespec wait = {.tv_nsec = 300 * 1000 * 1000};
    const CUdeviceptr small = allocate(4096);
    for (int i = 0; i < 100; i++)
        fill(small, (uint32_t)i, 1024);
    nanosleep(&wait, NULL);
    for (int i = 0; i < 100; i++)
        fill(small, (uint32_t)i, 1024);
    take(whole + 16 * MIB, 4 * MIB);
    print_bytes("settled", whole, 8 * MIB);
}

/* A program that uses what it was not handed out. */
SCENARIO(outside)
{
    const CUdeviceptr whole = allocate(16 * MIB);
    uniform(take(whole, 4 * MIB), MIB, 1);
    OK(cuMemsetD8(whole + 8 * MIB, 3, 4 * MIB));
    add(whole + 9 * MIB, 5, MIB / 2);
    print_bytes("outside", whole + 8 * MIB, 4 * MIB);
    print_bytes("inside", whole, 4 * MIB);
}

/* A stale address among the parameters, which the kernel does not use. */
SCENARIO(stale)
{
    const CUdeviceptr whole = allocate(64 * MIB);
    give(take(whole + 32 * MIB, 16 * MIB), 16 * MIB);
    uniform(take(whole, 4 * MIB), MIB, 1);
    copy(whole, whole + 40 * MIB, 0);
    print_bytes("block", whole, 4 * MIB);
}

/* A pointer that is formed a little before the block that it is for. */
SCENARIO(little_before)
{
    const CUdeviceptr whole = allocate(16 * MIB);
    uniform(take(whole, 4 * MIB), MIB, 1);
    uniform(take(whole + 4 * MIB, 8 * MIB), 2 * MIB, 2);
    add(whole + 4 * MIB - 256, 5, MIB);
    print_bytes("both", whole, 12 * MIB);
}

/* A pointer to the end of a block, and so a little before the next one, with a gap between them. */
SCENARIO(across_a_gap)
{
    const CUdeviceptr whole = allocate(16 * MIB);
    uniform(take(whole, 4 * MIB), MIB, 1);
    uniform(take(whole + 4 * MIB + 256, 4 * MIB), MIB, 2);
    fill(whole + 4 * MIB - 256, 5, 64);
    print_bytes("first", whole, 4 * MIB);
    print_bytes("second", whole + 4 * MIB + 256, 4 * MIB);
}

/* Written before anything was handed out: the allocation stays whole. */
SCENARIO(written_before)
{
    unsigned char *bytes = malloc(16 * MIB);
    for (size_t i = 0; i < 16 * MIB; i++)
        bytes[i] = (unsigned char)(i * 7 >> 4);
    const CUdeviceptr whole = allocate(16 * MIB);
    OK(cuMemcpyHtoD(whole, bytes, 16 * MIB));
    take(whole + 4 * MIB, 4 * MIB);
    give(whole + 4 * MIB, 4 * MIB);
    print_bytes("whole", whole, 16 * MIB);
    free(bytes);
}

/* Bytes that nobody has written may be anything, but must be the same in a copy. */
SCENARIO(undefined_input)
{
    unsigned char *bytes[2];
    const CUdeviceptr blocks[] = {take(allocate(8 * MIB), 8 * MIB),
                                  take(allocate(8 * MIB), 8 * MIB)};
    OK(cuMemsetD8(blocks[0], 5, 4 * MIB));
    copy(blocks[1], blocks[0], 2 * MIB);
    for (int i = 0; i < 2; i++) {
        bytes[i] = malloc(8 * MIB);
        OK(cuMemcpyDtoH(bytes[i], blocks[i], 8 * MIB));
    }
    printf("copy: %s\n", memcmp(bytes[0], bytes[1], 8 * MIB) == 0 ? "same" : "different");
}

/* A kernel that reads what it has just written: from one block to itself is not from another. */
SCENARIO(within)
{
    const CUdeviceptr block = take(allocate(8 * MIB), 8 * MIB);
    uniform(block, 2 * MIB, 1);
    copy(block + MIB, block, MIB);
    print_bytes("repeated", block, 8 * MIB);
}

/* From one block to another, and the pointer to the source is the first: the source is written anew
 * and freed; then within one block. */
SCENARIO(first_is_source)
{
    const CUdeviceptr from = take(allocate(8 * MIB), 8 * MIB);
    const CUdeviceptr to = take(allocate(8 * MIB), 8 * MIB);
    const CUdeviceptr last = take(allocate(8 * MIB), 8 * MIB);
    uniform(from, 2 * MIB, 1);
    OK(cuMemsetD8(to, 5, 8 * MIB));
    send_words(from, to + 4 * MIB, MIB, NULL);
    uniform(from, 2 * MIB, 2);
    print_bytes("before and sent", to, 8 * MIB);
    send_words(from, last, 2 * MIB, NULL);
    give(from, 8 * MIB);
    print_bytes("sent", last + 6 * MIB, MIB);
    send_words(to, to + 4 * MIB, MIB, NULL);
    print_bytes("within", to, 8 * MIB);
}

/* A new block over old ones that were never given back, and giving back what was not handed out. */
SCENARIO(odd_reports)
{
    const CUdeviceptr whole = allocate(16 * MIB);
    uniform(take(whole, 4 * MIB), MIB, 1);
    uniform(take(whole + 4 * MIB, 4 * MIB), MIB, 2);
    uniform(take(whole + 2 * MIB, 4 * MIB), MIB, 3);
    give(whole + 3 * MIB, MIB);
    take(whole + 12 * MIB, 64 * MIB);
    take(0x1000, 4096);
    give(0x1000, 4096);
    print_bytes("new", whole + 2 * MIB, 4 * MIB);
}

static CUtensorMap map_of(CUdeviceptr address, size_t bytes)
{
    CUtensorMap map;
    const cuuint64_t dims[] = {1024, bytes / 4096};
    const cuuint64_t pitch = 4096;
    const cuuint32_t box[] = {64, 1}, steps[] = {1, 1};
    OK(cuTensorMapEncodeTiled(&map, CU_TENSOR_MAP_DATA_TYPE_UINT32, 2, (void *)(uintptr_t)address,
                              dims, &pitch, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                              CU_TENSOR_MAP_SWIZZLE_NONE, CU_TENSOR_MAP_L2_PROMOTION_NONE,
                              CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE));
    return map;
}

static void add_through(CUtensorMap *map, uint32_t value)
{
    void *params[] = {map, &value};
    OK(cuLaunchKernel(function("add_map32"), 1, 1, 1, 1, 1, 1, 0, stream, params, NULL));
}

static void print_through(CUtensorMap *map)
{
    static CUdeviceptr out;
    if (out == 0)
        OK(cuMemAlloc(&out, 4));
    void *params[] = {&out, map};
    OK(cuLaunchKernel(function("sum_map32"), 1, 1, 1, 1, 1, 1, 0, stream, params, NULL));
    print_bytes("through the map", out, 4);
}

/* A matrix product reads one weight through a tensor map, and writes its result through another. */
SCENARIO(described)
{
    const CUdeviceptr whole = make_four();
    CUtensorMap in = map_of(whole + 16 * MIB, 16 * MIB);
    print_through(&in);
    CUtensorMap out = map_of(whole + 52 * MIB, 4 * MIB);
    add_through(&out, 5);
    print_bytes("written", whole + 52 * MIB, 4 * MIB);
}

/* Another address in the map of a block: the block there. */
SCENARIO(described_elsewhere)
{
    const CUdeviceptr whole = make_four();
    CUtensorMap map = map_of(allocate(4096), 4096);
    OK(cuTensorMapReplaceAddress(&map, (void *)(uintptr_t)(whole + 20 * MIB)));
    print_through(&map);
    OK(cuTensorMapReplaceAddress(&map, (void *)(uintptr_t)(whole + 32 * MIB - 4096)));
    print_through(&map);
}

/* A map is used again for the next block in the same place, with other content: memory that others
 * left behind is given back, also that which was only read. The map's own stays. */
SCENARIO(described_again)
{
    const CUdeviceptr whole = allocate(32 * MIB);
    const CUdeviceptr file = load_file(16 * MIB);
    const CUdeviceptr other = allocate(40 * MIB);
    uniform(take(whole, 8 * MIB), 2 * MIB, 1);
    CUtensorMap map = map_of(whole, 8 * MIB);
    print_through(&map);
    give(whole, 8 * MIB);
    uniform(take(whole + 8 * MIB, 8 * MIB), 2 * MIB, 2);
    add(whole + 8 * MIB, 1, 2 * MIB);
    give(whole + 8 * MIB, 8 * MIB);
    print_bytes("file", file, 16 * MIB);
    uniform(take(whole, 8 * MIB), 2 * MIB, 3);
    add_through(&map, 7);
    add(other, 1, MIB);
    print_through(&map);
    print_bytes("again", whole, 8 * MIB);
}

/* Memory of a captured graph is used whenever it is launched, whether or not it is handed out. */
SCENARIO(captured)
{
    CUgraph graph;
    CUgraphExec exec;
    const CUdeviceptr whole = allocate(16 * MIB);
    const CUdeviceptr kept = allocate(4 * MIB);
    /* There may be no room for it beside the others. No block is in it while the capture begins. */
    const CUdeviceptr other = allocate(58 * MIB);
    give(take(other, 2 * MIB), 2 * MIB);
    const CUstream captured_stream = make_stream();
    uniform(take(whole, 2 * MIB), MIB / 2, 1);
    take(kept, 4 * MIB);
    OK(cuCtxSynchronize());
    OK(cuStreamBeginCapture(captured_stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    take(whole + 8 * MIB, 4 * MIB);
    OK(cuMemsetD8Async(whole + 8 * MIB, 5, 4 * MIB, captured_stream));
    OK(cuMemcpyDtoDAsync(kept, whole + 8 * MIB, 4 * MIB, captured_stream));
    give(whole + 8 * MIB, 4 * MIB);
    OK(cuStreamEndCapture(captured_stream, &graph));
    OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
    const CUresult result = try_add(take(other, 58 * MIB), 9, 58 * MIB / 4, NULL);
    printf("%s\n", result == CUDA_SUCCESS || result == CUDA_ERROR_OUT_OF_MEMORY ? "full" : "?");
    give(other, 58 * MIB);
    OK(cuGraphLaunch(exec, captured_stream));
    OK(cuStreamSynchronize(captured_stream));
    print_bytes("kept", kept, 4 * MIB);
}

/* Memory that others have a handle of is not given up when its block is returned: they would not
 * see the block that comes there next. */
SCENARIO(exported)
{
    const CUdeviceptr range = allocate(8 * MIB);
    uniform(take(range, 8 * MIB), 2 * MIB, 2);
    int file;
    OK(cuMemGetHandleForAddressRange(&file, range, 8 * MIB, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD,
                                     0));
    const off_t place = lseek(file, 0, SEEK_CUR);
    give(range, 8 * MIB);
    const CUdeviceptr other = allocate(60 * MIB);
    printf("no room: %d\n", try_add(take(other, 60 * MIB), 9, 60 * MIB / 4, NULL));
    give(other, 60 * MIB);
    OK(cuMemsetD8(take(range, 8 * MIB), 4, 8 * MIB));
    OK(cuCtxSynchronize());
    unsigned char seen = 0;
    if (pread(file, &seen, 1, place + 5 * (off_t)MIB) != 1)
        exit(2);
    printf("through the handle: %d\n", seen);
}

/* Each from the one before: no more than two of them may need memory at a time. */
SCENARIO(chain)
{
    CUdeviceptr blocks[8];
    for (int i = 0; i < 8; i++)
        blocks[i] = take(allocate(8 * MIB), 8 * MIB);
    uniform(blocks[0], 2 * MIB, 1);
    for (int i = 1; i < 8; i++)
        copy(blocks[i], blocks[i - 1], 2 * MIB);
    print_bytes("last", blocks[7], MIB);
    print_bytes("middle", blocks[4], 8 * MIB);
}

/* PyTorch is there and reports nothing: an older or a changed one. */
SCENARIO(silent)
{
    if (dlopen(getenv("LIBC10_CUDA"), RTLD_NOW) == NULL)
        exit(2);
    CUdeviceptr all[20];
    for (int i = 0; i < 20; i++) {
        all[i] = allocate(4 * MIB);
        uniform(all[i], MIB, (uint64_t)i);
    }
    print_bytes("one", all[7], 4 * MIB);
}

/* --- random programs */

enum { SEGMENTS = 3, MAX_BLOCKS = 64, SEGMENT_BYTES = 12 << 20 };

struct block {
    CUdeviceptr address;
    size_t bytes;
};

static struct block live[MAX_BLOCKS];
static size_t block_count;
static CUdeviceptr segments[SEGMENTS];
static uint64_t state;

static size_t pick(size_t below)
{
    state = state * UINT64_C(6364136223846793005) + 1442695040888963407;
    return (size_t)(state >> 33) % below;
}

static bool is_free(CUdeviceptr address, size_t bytes)
{
    for (size_t i = 0; i < block_count; i++) {
        if (address < live[i].address + live[i].bytes && live[i].address < address + bytes)
            return false;
    }
    return true;
}

static const struct block *pick_block(void)
{
    return &live[pick(block_count)];
}

/* Every byte of a block is written before it is read. */
static void write_block(const struct block *block)
{
    const struct block *other = block_count > 1 ? pick_block() : block;
    unsigned char *bytes;
    switch (pick(5)) {
    case 0:
        OK(cuMemsetD32(block->address, (uint32_t)pick(1000), block->bytes / 4));
        break;
    case 1:
        fill(block->address, (uint32_t)pick(1000), block->bytes / 4);
        break;
    case 2:
        bytes = malloc(block->bytes);
        memset(bytes, (int)pick(250), block->bytes);
        OK(cuMemcpyHtoD(block->address, bytes, block->bytes));
        free(bytes);
        break;
    case 3:
        if (other != block && other->bytes >= block->bytes) {
            copy(block->address, other->address, block->bytes / 4);
            break;
        }
        /* fall through */
    default:
        uniform(block->address, block->bytes / 4, pick(1000));
    }
}

static void take_some(void)
{
    const size_t bytes = (pick(3) == 0 ? pick(6000) + 1 : pick(300) + 1) * 512;
    const CUdeviceptr at = segments[pick(SEGMENTS)] + pick((SEGMENT_BYTES - bytes) / 512) * 512;
    if (block_count == MAX_BLOCKS || !is_free(at, bytes))
        return;
    live[block_count++] = (struct block){take(at, bytes), bytes};
    write_block(&live[block_count - 1]);
}

static void give_some(void)
{
    const size_t at = pick(block_count);
    give(live[at].address, live[at].bytes);
    live[at] = live[--block_count];
}

static void copy_some(void)
{
    const struct block *from = pick_block();
    const struct block *to = pick_block();
    const size_t bytes = pick((from->bytes < to->bytes ? from->bytes : to->bytes) / 4) * 4;
    const size_t skip = pick((from->bytes - bytes) / 4 + 1) * 4;
    if (from != to)
        OK(cuMemcpyDtoD(to->address, from->address + skip, bytes));
}

static void read_some(void)
{
    const struct block *block = pick_block();
    const size_t begin = pick(block->bytes);
    print_bytes("read", block->address + begin, pick(block->bytes - begin) + 1);
}

SCENARIO(random)
{
    const char *seed = getenv("BLOCKS_SEED");
    const char *ops = getenv("BLOCKS_OPS");
    state = seed != NULL ? strtoull(seed, NULL, 10) : 1;
    for (int i = 0; i < SEGMENTS; i++)
        segments[i] = allocate(SEGMENT_BYTES);
    for (int i = ops != NULL ? atoi(ops) : 300; i > 0; i--) {
        const size_t what = block_count < 4 ? 0 : pick(16);
        if (what < 5)
            take_some();
        else if (what < 8)
            give_some();
        else if (what < 10)
            write_block(pick_block());
        else if (what < 12)
            copy_some();
        else if (what < 13)
            add(pick_block()->address, 3, 128);
        else if (what < 15)
            read_some();
        else
            OK(cuMemsetD8(pick_block()->address + 100, (unsigned char)i, 300));
    }
    for (size_t i = 0; i < block_count; i++)
        print_bytes("at the end", live[i].address, live[i].bytes);
    print_told();
}
