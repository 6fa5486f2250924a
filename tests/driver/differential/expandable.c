/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Segments that grow and shrink, as PyTorch's allocator makes them with expandable_segments: a
 * large reservation, handles of 20 MiB (2 MiB for small blocks) that are mapped side by side in
 * it, and blocks that are reported. Runs with the shim and without it.
 */
#include "tests/driver/differential/c10.h"
#include "tests/driver/differential/mappings.h"

#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

enum { HANDLES = 64 };

struct segment {
    CUdeviceptr address;
    size_t unit; /* of a handle */
    CUmemGenericAllocationHandle handles[HANDLES];
    bool is_mapped[HANDLES];
};

static const struct c10_device device = {1, 0};

static CUdeviceptr take(CUdeviceptr address, size_t bytes)
{
    REPORT((void *)(uintptr_t)address, (int64_t)bytes, 1, 2, device);
    return address;
}

static void give(CUdeviceptr address, size_t bytes)
{
    REPORT((void *)(uintptr_t)address, -(int64_t)bytes, 1, 2, device);
}

static struct segment make_segment(size_t unit)
{
    return (struct segment){.address = reserve(HANDLES * unit), .unit = unit};
}

static CUdeviceptr at_handle(const struct segment *segment, size_t handle)
{
    return segment->address + handle * segment->unit;
}

/* All or nothing: false if there is no memory. */
static bool try_grow(struct segment *segment, size_t begin, size_t end)
{
    const CUmemAllocationProp prop = device_prop(0);
    for (size_t i = begin; i < end; i++) {
        const CUresult result = cuMemCreate(&segment->handles[i], segment->unit, &prop, 0);
        if (result != CUDA_SUCCESS) {
            CHECK_EQ(result, CUDA_ERROR_OUT_OF_MEMORY);
            while (i-- > begin)
                OK(cuMemRelease(segment->handles[i]));
            return false;
        }
    }
    for (size_t i = begin; i < end; i++) {
        OK(cuMemMap(at_handle(segment, i), segment->unit, 0, segment->handles[i], 0));
        segment->is_mapped[i] = true;
    }
    OK(set_access(at_handle(segment, begin), (end - begin) * segment->unit, 0, READWRITE));
    return true;
}

static void grow(struct segment *segment, size_t begin, size_t end)
{
    CHECK(try_grow(segment, begin, end));
}

static void shrink(struct segment *segment, size_t begin, size_t end)
{
    OK(cuCtxSynchronize());
    for (size_t i = begin; i < end; i++) {
        unmap(at_handle(segment, i), segment->unit, segment->handles[i]);
        segment->is_mapped[i] = false;
    }
}

static void free_segment(struct segment *segment)
{
    for (size_t i = 0; i < HANDLES; i++) {
        if (segment->is_mapped[i])
            shrink(segment, i, i + 1);
    }
    OK(cuMemAddressFree(segment->address, HANDLES * segment->unit));
}

/* --- memory */

enum { TENSORS = 4 };
#define TENSOR (40 * MIB)
#define PART (TENSOR / 8)

static void shard_tensors(void)
{
    start();
    const CUfunction add = kernel("add_in_place32");
    struct segment whole = make_segment(20 * MIB), kept = make_segment(20 * MIB);
    grow(&whole, 0, TENSORS * TENSOR / (20 * MIB));
    grow(&kept, 0, 1);
    for (uint32_t i = 0; i < TENSORS; i++) {
        const CUdeviceptr tensor = take(whole.address + i * TENSOR, TENSOR);
        const CUdeviceptr part = take(kept.address + i * PART, PART);
        OK(cuMemsetD32(tensor, 10 * i, TENSOR / 4));
        put_words(tensor + 18 * MIB, 4 * MIB, i << 24); /* over the border of two handles */
        OK(cuMemcpyDtoD(part, tensor + 17 * MIB, PART));
        give(tensor, TENSOR);
    }
    for (uint32_t i = 0; i < TENSORS; i++) {
        OK(try_add(add, kept.address + i * PART, PART, 1, NULL));
        check_same(kept.address + i * PART, MIB, 10 * i + 1);
        check_words(kept.address + i * PART + MIB, 4 * MIB, (i << 24) + 1);
    }
    exit(0);
}

/* Physical memory at most, as the simulated driver counted it in a process of its own. */
static unsigned long long peak_of(void (*run)(void))
{
    char path[] = "/tmp/metashard-mappings-XXXXXX", text[4096] = {0};
    const int file = mkstemp(path);
    int status;
    unsigned long long peak = 0;
    CHECK(file >= 0);
    const pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        setenv("SIMCUDA_STATS", path, 1);
        run();
    }
    CHECK_EQ(waitpid(child, &status, 0), child);
    unlink(path);
    CHECK_EQ(status, 0);
    CHECK(pread(file, text, sizeof(text) - 1, 0) > 0);
    close(file);
    const char *found = strstr(text, "\"physical_bytes_peak\":");
    CHECK(found != NULL && sscanf(strchr(found, ':') + 1, "%llu", &peak) == 1);
    return peak;
}

MS_TEST(only_what_is_kept_of_tensors_gets_memory)
{
    const unsigned long long peak = peak_of(shard_tensors);
    if (device_has_shim())
        CHECK(peak >= TENSORS * PART && peak <= TENSORS * PART + 4 * MIB);
    else
        CHECK_EQ(peak, TENSORS * TENSOR + 20 * MIB);
}

/* --- blocks */

MS_TEST(a_tensor_lies_over_several_handles)
{
    start();
    const CUfunction add = kernel("add_in_place32");
    struct segment segment = make_segment(20 * MIB);
    grow(&segment, 0, 3);
    grow(&segment, 3, 6);
    const CUdeviceptr first = take(segment.address + 6 * MIB, 50 * MIB);
    const CUdeviceptr second = take(first + 50 * MIB, 44 * MIB);
    put_words(first, 50 * MIB, 3);
    OK(cuMemsetD32(second, 8, 11 * MIB));
    check_deferred(first + 20 * MIB);
    OK(try_add(add, first, 50 * MIB, 4, NULL)); /* an unknown kernel */
    CHECK(is_in_memory(first) && is_in_memory(first + 50 * MIB - 1));
    check_deferred(second + 2 * MIB);
    check_deferred(second + 44 * MIB - 1);
    check_words(first, 50 * MIB, 7);
    check_same(second, 44 * MIB, 8);
    free_segment(&segment);
}

MS_TEST(a_segment_has_a_hole_in_the_middle_for_a_while)
{
    start();
    const CUfunction add = kernel("add_in_place32");
    const size_t before = free_bytes();
    struct segment segment = make_segment(20 * MIB);
    grow(&segment, 0, 6);
    const CUdeviceptr blocks[] = {take(segment.address, 40 * MIB),
                                  take(segment.address + 40 * MIB, 40 * MIB),
                                  take(segment.address + 80 * MIB, 40 * MIB)};
    put_words(blocks[0], 40 * MIB, 1);
    OK(cuMemsetD32(blocks[1], 2, 10 * MIB));
    OK(cuMemsetD32(blocks[2], 3, 10 * MIB));
    OK(try_add(add, blocks[1], 40 * MIB, 1, NULL));
    give(blocks[1], 40 * MIB);
    shrink(&segment, 2, 4);
    CHECK_EQ(before - free_bytes(), 80 * MIB);
    CHECK(!is_in_memory(blocks[1]));
    check_words(blocks[0] + 20 * MIB, 20 * MIB, 1 + 5 * (uint32_t)MIB);
    check_deferred(blocks[2] + 8 * MIB);
    for (int i = 0; i < 2; i++) {
        grow(&segment, 2, 4);
        check_deferred(blocks[1]);
        /* From the first block's last handle into the third one's first. */
        give(blocks[0], 40 * MIB);
        const CUdeviceptr over = take(blocks[0] + 20 * MIB, 60 * MIB);
        put_words(over, 60 * MIB, 77);
        check_deferred(over + 21 * MIB);
        OK(try_add(add, over, 60 * MIB, 1, NULL));
        check_words(over, 60 * MIB, 78);
        give(over, 60 * MIB);
        take(blocks[0], 40 * MIB);
        shrink(&segment, 2, 4);
    }
    check_same(blocks[2], 40 * MIB, 3);
    CHECK_EQ(before - free_bytes(), 80 * MIB);
    free_segment(&segment);
    CHECK_EQ(free_bytes(), before);
}

/* Two pools: slots of segments are taken, written, read and given in any order, and handles in
 * which no slot is taken may go. */
enum { SLOTS = 48 };

struct pool {
    struct segment segment;
    size_t slot, slots_per_handle;
    uint32_t seeds[SLOTS]; /* 0: free */
};

static CUdeviceptr slot_address(const struct pool *pool, size_t slot)
{
    return pool->segment.address + slot * pool->slot;
}

static bool has_blocks(const struct pool *pool, size_t handle)
{
    for (size_t i = 0; i < pool->slots_per_handle; i++) {
        if (pool->seeds[handle * pool->slots_per_handle + i] != 0)
            return true;
    }
    return false;
}

static void check_slot(const struct pool *pool, size_t slot)
{
    const uint32_t seed = pool->seeds[slot];
    check_words(slot_address(pool, slot), 8192, seed);
    check_words(slot_address(pool, slot) + pool->slot - 8192, 8192, seed + 99);
}

static void step_pool(struct pool *pool, uint32_t random)
{
    const size_t slot = (random >> 4) % SLOTS, handle = slot / pool->slots_per_handle;
    if (pool->seeds[slot] != 0) {
        check_slot(pool, slot);
        give(slot_address(pool, slot), pool->slot);
        pool->seeds[slot] = 0;
        if (random % 3 == 0 && !has_blocks(pool, handle))
            shrink(&pool->segment, handle, handle + 1);
        return;
    }
    if (!pool->segment.is_mapped[handle])
        grow(&pool->segment, handle, handle + 1);
    take(slot_address(pool, slot), pool->slot);
    pool->seeds[slot] = random >> 8 | 1;
    put_words(slot_address(pool, slot), 8192, pool->seeds[slot]);
    put_words(slot_address(pool, slot) + pool->slot - 8192, 8192, pool->seeds[slot] + 99);
}

MS_TEST(small_and_large_handles_come_and_go)
{
    start();
    const size_t before = free_bytes();
    static struct pool pools[2];
    pools[0] = (struct pool){make_segment(2 * MIB), 256 << 10, 8, {0}};
    pools[1] = (struct pool){make_segment(20 * MIB), 5 * MIB, 4, {0}};
    uint32_t random = 7;
    for (int i = 0; i < 600; i++) {
        random = random * 1664525 + 1013904223;
        step_pool(&pools[random >> 31], random);
    }
    for (int i = 0; i < 2; i++) {
        for (size_t slot = 0; slot < SLOTS; slot++) {
            if (pools[i].seeds[slot] != 0)
                check_slot(&pools[i], slot);
        }
        free_segment(&pools[i].segment);
    }
    CHECK_EQ(free_bytes(), before);
}

/* As the allocator does when there is no memory: what is free goes, and then it works. */
MS_TEST(free_handles_make_room)
{
    setenv("SIMCUDA_MEMORY_MIB", "160", 1);
    start();
    const CUfunction add = kernel("add_in_place32");
    struct segment old = make_segment(20 * MIB), new = make_segment(20 * MIB);
    grow(&old, 0, 6);
    take(old.address, 100 * MIB);
    take(old.address + 100 * MIB, 20 * MIB);
    put_words(old.address + 100 * MIB, 20 * MIB, 6);
    OK(try_add(add, old.address, 100 * MIB, 1, NULL));
    OK(try_add(add, old.address + 100 * MIB, 20 * MIB, 1, NULL));
    give(old.address, 100 * MIB);
    bool has_room = try_grow(&new, 0, 4);
    if (!has_room) {
        shrink(&old, 0, 5);
        has_room = try_grow(&new, 0, 4);
    }
    CHECK(has_room);
    take(new.address, 80 * MIB);
    put_words(new.address, 80 * MIB, 5);
    OK(try_add(add, new.address, 80 * MIB, 1, NULL));
    check_words(new.address, 80 * MIB, 6);
    check_words(old.address + 100 * MIB, 20 * MIB, 7);
    free_segment(&old);
    free_segment(&new);
}

/* A block on memory that has a second address is written through either of them, also after it was
 * given back, and taken again. */
MS_TEST(memory_with_a_second_address_stays_where_it_is)
{
    start();
    struct segment segment = make_segment(20 * MIB);
    const CUdeviceptr other = reserve(20 * MIB);
    grow(&segment, 0, 2);
    const CUdeviceptr block = take(segment.address, 20 * MIB);
    put_words(block, 20 * MIB, 3);
    map(other, 20 * MIB, segment.handles[0]);
    check_words(other, 20 * MIB, 3);
    give(block, 20 * MIB);
    take(block, 20 * MIB);
    put_words(block, 20 * MIB, 9);
    check_words(other, 20 * MIB, 9);
    put_words(other, 20 * MIB, 5);
    check_words(block, 20 * MIB, 5);
    OK(cuMemUnmap(other, 20 * MIB));
    OK(cuMemAddressFree(other, 20 * MIB));
    free_segment(&segment);
}

/* A block of which the program unmaps a part without a word keeps the rest. */
MS_TEST(a_block_that_is_unmapped_in_part_keeps_the_rest)
{
    start();
    struct segment segment = make_segment(20 * MIB);
    grow(&segment, 0, 3);
    const CUdeviceptr block = take(segment.address, 60 * MIB);
    put_words(block, 60 * MIB, 4);
    shrink(&segment, 1, 2);
    check_words(block, 20 * MIB, 4);
    check_words(block + 40 * MIB, 20 * MIB, 4 + 10 * (uint32_t)MIB);
    OK(cuMemsetD32(block + 40 * MIB, 8, 5 * MIB));
    check_same(block + 40 * MIB, 20 * MIB, 8);
    free_segment(&segment);
}

/* A private pool of a graph grows while the stream is captured. */
MS_TEST(a_segment_grows_during_a_capture)
{
    start();
    CUstream stream;
    CUgraph graph;
    CUgraphExec executable;
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    const CUfunction add = kernel("add_in_place32");
    struct segment segment = make_segment(20 * MIB);
    grow(&segment, 0, 2);
    const CUdeviceptr out = take(segment.address, 20 * MIB);
    OK(cuMemsetD32(out, 1, 5 * MIB));
    check_deferred(out);
    OK(cuCtxSynchronize());
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    OK(cuThreadExchangeStreamCaptureMode(&mode));
    grow(&segment, 2, 4);
    OK(cuThreadExchangeStreamCaptureMode(&mode));
    const CUdeviceptr inside = take(segment.address + 30 * MIB, 20 * MIB);
    OK(cuMemsetD32Async(inside, 5, 5 * MIB, stream));
    OK(try_add(add, inside, 20 * MIB, 3, stream));
    OK(cuMemcpyDtoDAsync(out + 10 * MIB, inside + 5 * MIB, 10 * MIB, stream));
    OK(try_add(add, out, 20 * MIB, 2, stream));
    give(inside, 20 * MIB);
    OK(cuStreamEndCapture(stream, &graph));
    OK(cuGraphInstantiate(&executable, graph, 0));
    for (uint32_t i = 0; i < 3; i++) {
        OK(cuGraphLaunch(executable, stream));
        OK(cuStreamSynchronize(stream));
        check_same(out, 10 * MIB, 3 + 2 * i);
        check_same(out + 10 * MIB, 10 * MIB, 10);
    }
    OK(cuGraphExecDestroy(executable));
    OK(cuGraphDestroy(graph));
    free_segment(&segment);
}
