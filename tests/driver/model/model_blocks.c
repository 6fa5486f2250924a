/* SPDX-License-Identifier: Apache-2.0 */
/* Blocks of device memory with what they must hold, the order of operations, and comparisons. */
#include "tests/driver/model/model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/driver/differential/c10.h"
#include "tools/simcuda/tests/peer.h"

enum { ARENA_PART = 48 << 10, CHECKS = 64, LEAST = 64 };

static struct model_block shared[MODEL_SHARED];
static _Thread_local struct model_block own[MODEL_OWN];
static _Thread_local CUstream streams[MODEL_STREAMS];
static _Thread_local CUdeviceptr arena; /* a part for each own block */

static const char *const kinds[] = {"cuMemAlloc", "cuMemAllocAsync", "cuMemMap", "reported"};

/* --- streams */

CUstream model_stream(void)
{
    return model_one_in(12) ? CU_STREAM_LEGACY : streams[model_below(MODEL_STREAMS)];
}

CUstream model_own_stream(void)
{
    return streams[2 + model_below(MODEL_STREAMS - 2)];
}

/* --- blocks */

static void say(const char *what, struct model_range range, struct model_range from)
{
    if (!model_prints)
        return;
    printf("thread %u:   %s %s block %d, %zu bytes at %zu", model_thread, what,
           range.block->is_shared ? "shared" : "own", range.block->index, range.bytes, range.at);
    if (from.block != NULL)
        printf(" from %s block %d at %zu", from.block->is_shared ? "shared" : "own",
               from.block->index, from.at);
    printf("\n");
}

static void map_block(struct model_block *block)
{
    const CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                      .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
    const CUmemAccessDesc access = {.location = prop.location,
                                    .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    block->gap = model_one_in(3) && !model_is_left_out("reservations with gaps")
                     ? (1 + model_below(2)) * block->part
                     : 0;
    OK(cuMemAddressReserve(&block->reserved, 2 * (block->part + block->gap), 0, 0, 0));
    block->mapped = block->reserved + block->gap;
    for (int i = 0; i < 2; i++) {
        const CUdeviceptr at = block->mapped + (CUdeviceptr)i * block->part;
        if (block->handles[i] == 0)
            OK(cuMemCreate(&block->handles[i], block->part, &prop, 0));
        OK(cuMemMap(at, block->part, 0, block->handles[i], 0));
        if (block->bytes % 2 == 0)
            OK(cuMemSetAccess(at, block->part, &access, 1));
    }
    if (block->bytes % 2 != 0)
        OK(cuMemSetAccess(block->mapped, 2 * block->part, &access, 1));
    /* over the border between the two */
    block->at = block->mapped + block->part - block->bytes / 2 / 8 * 8;
}

static void unmap_block(struct model_block *block)
{
    OK(cuMemUnmap(block->mapped, 2 * block->part));
    OK(cuMemAddressFree(block->reserved, 2 * (block->part + block->gap)));
}

static void make_memory(struct model_block *block)
{
    size_t granule;
    const CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                      .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
    switch (block->kind) {
    case MODEL_POOLED:
        OK(cuMemAllocAsync(&block->at, block->bytes, block->last_stream));
        break;
    case MODEL_MAPPED:
        OK(cuMemGetAllocationGranularity(&granule, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
        /* The part behind the border of an odd number is longer by up to 8. */
        block->part = ((block->bytes / 2 + 8) / granule + 1) * granule;
        map_block(block);
        break;
    case MODEL_REPORTED:
        if (arena == 0)
            OK(cuMemAlloc(&arena, (size_t)MODEL_OWN * ARENA_PART));
        block->at = arena + (CUdeviceptr)block->index * ARENA_PART;
        REPORT((void *)(uintptr_t)block->at, (int64_t)block->bytes, 1, 2,
               (struct c10_device){1, 0});
        break;
    default:
        OK(cuMemAlloc(&block->at, block->bytes));
    }
}

static size_t draw_bytes(size_t most)
{
    const size_t draw = model_below(100);
    const size_t limit = draw < 50 ? 4096 : draw < 80 ? 24 << 10 : draw < 95 ? 96 << 10 : most;
    size_t bytes = 1 + model_below(limit < most ? limit : most);
    if (model_one_in(3))
        bytes = (bytes + 511) / 512 * 512;
    return bytes < most ? bytes : most;
}

static void make_block_of(struct model_block *block, enum model_kind kind, size_t bytes)
{
    block->kind = kind;
    block->bytes = bytes < LEAST ? LEAST : bytes;
    block->last_stream = model_own_stream();
    /* A part of the arena may be in use still. */
    OK(cuStreamWaitEvent(block->last_stream, block->last, 0));
    block->content = calloc(1, block->bytes);
    block->known = calloc(1, block->bytes);
    make_memory(block);
    OK(cuEventRecord(block->last, block->last_stream));
    if (model_one_in(2)) {
        const unsigned char value = (unsigned char)model_random();
        const struct model_range whole = {block, 0, block->bytes};
        OK(cuMemsetD8Async(block->at, value, block->bytes, block->last_stream));
        OK(cuEventRecord(block->last, block->last_stream));
        model_fill(whole, &value, 1);
    }
}

static void make_block(struct model_block *block)
{
    enum model_kind kind =
        (enum model_kind)model_below(block->is_shared ? MODEL_REPORTED : MODEL_KINDS);
    if (model_is_left_out(kinds[kind]))
        kind = MODEL_PLAIN;
    make_block_of(block, kind, draw_bytes(kind == MODEL_REPORTED ? ARENA_PART : MODEL_MOST));
}

static void forget_block(struct model_block *block)
{
    free(block->content);
    free(block->known);
    block->at = 0;
    block->content = block->known = NULL;
    block->handles[0] = block->handles[1] = 0;
}

static void free_block(struct model_block *block)
{
    say(kinds[block->kind], (struct model_range){block, 0, block->bytes}, (struct model_range){0});
    say("frees", (struct model_range){block, 0, block->bytes}, (struct model_range){0});
    switch (block->kind) {
    case MODEL_POOLED:
        if (model_one_in(2)) {
            const CUstream stream = model_own_stream();
            OK(cuStreamWaitEvent(stream, block->last, 0));
            OK(cuMemFreeAsync(block->at, stream));
            break;
        }
        OK(cuEventSynchronize(block->last));
        OK(cuMemFree(block->at));
        break;
    case MODEL_MAPPED:
        OK(cuEventSynchronize(block->last));
        unmap_block(block);
        for (int i = 0; i < 2; i++)
            OK(cuMemRelease(block->handles[i]));
        break;
    case MODEL_REPORTED:
        REPORT((void *)(uintptr_t)block->at, -(int64_t)block->bytes, 1, 2,
               (struct c10_device){1, 0});
        break;
    default:
        OK(cuMemFree(block->at)); /* waits */
    }
    forget_block(block);
}

void model_blocks_init(void)
{
    for (int i = 0; i < MODEL_SHARED; i++) {
        shared[i] = (struct model_block){.is_shared = true, .index = i};
        pthread_mutex_init(&shared[i].mutex, NULL);
        OK(cuEventCreate(&shared[i].last, CU_EVENT_DISABLE_TIMING));
    }
}

void model_blocks_begin(void)
{
    streams[0] = CU_STREAM_PER_THREAD;
    OK(cuStreamCreate(&streams[1], CU_STREAM_DEFAULT));
    for (int i = 2; i < MODEL_STREAMS; i++)
        OK(cuStreamCreate(&streams[i], CU_STREAM_NON_BLOCKING));
    for (int i = 0; i < MODEL_OWN; i++) {
        own[i].index = i;
        OK(cuEventCreate(&own[i].last, CU_EVENT_DISABLE_TIMING));
    }
}

/* --- ranges */

static void lock(struct model_block *block)
{
    if (block->is_shared)
        pthread_mutex_lock(&block->mutex);
}

static void unlock(struct model_block *block)
{
    if (block->is_shared)
        pthread_mutex_unlock(&block->mutex);
}

static struct model_range draw_range(struct model_block *block, size_t most, size_t align)
{
    if (block->at == 0)
        make_block(block);
    const size_t limit = block->bytes < most ? block->bytes : most;
    size_t bytes = model_one_in(4) ? limit : draw_bytes(limit);
    bytes = bytes < align ? align : bytes / align * align;
    return (struct model_range){block, model_below(block->bytes - bytes + 1) / align * align,
                                bytes};
}

struct model_range model_own_range(size_t most, size_t align)
{
    return draw_range(&own[model_below(MODEL_OWN)], most, align);
}

struct model_range model_new_range(size_t bytes)
{
    struct model_block *block = &own[model_below(MODEL_OWN)];
    if (block->at != 0)
        free_block(block);
    const enum model_kind kind = (enum model_kind)model_below(MODEL_REPORTED);
    make_block_of(block, model_is_left_out(kinds[kind]) ? MODEL_PLAIN : kind, bytes);
    return (struct model_range){block, 0, block->bytes};
}

void model_block_sizes(size_t sizes[MODEL_OWN])
{
    for (int i = 0; i < MODEL_OWN; i++)
        sizes[i] = own[i].at != 0 ? own[i].bytes : LEAST;
}

struct model_range model_range(size_t most, size_t align)
{
    if (!model_one_in(6))
        return model_own_range(most, align);
    struct model_block *block = &shared[model_below(MODEL_SHARED)];
    lock(block);
    return draw_range(block, most, align);
}

bool model_ranges(struct model_range *from, struct model_range *to, size_t most, size_t align)
{
    /* At most one of them is shared, so that no two threads wait for each other. */
    const bool is_swapped = model_one_in(2);
    *from = is_swapped ? model_own_range(most, align) : model_range(most, align);
    *to = is_swapped ? model_range(most, align) : model_own_range(most, align);
    from->bytes = to->bytes = from->bytes < to->bytes ? from->bytes : to->bytes;
    if (from->block != to->block || from->at + from->bytes <= to->at ||
        to->at + to->bytes <= from->at)
        return true;
    unlock(from->block);
    return false;
}

CUdeviceptr model_address(struct model_range range)
{
    return range.block->at + range.at;
}

void model_order(struct model_range range, CUstream stream)
{
    if (range.block->is_shared || range.block->last_stream != stream)
        OK(cuStreamWaitEvent(stream, range.block->last, 0));
}

void model_done(struct model_range range, CUstream stream)
{
    OK(cuEventRecord(range.block->last, stream));
    range.block->last_stream = stream;
    unlock(range.block);
}

/* --- what bytes must be */

void model_write(struct model_range range, const void *bytes)
{
    say("writes", range, (struct model_range){0});
    memcpy(range.block->content + range.at, bytes, range.bytes);
    memset(range.block->known + range.at, 1, range.bytes);
}

void model_fill(struct model_range range, const void *pattern, size_t width)
{
    say("sets", range, (struct model_range){0});
    for (size_t i = 0; i < range.bytes; i += width)
        memcpy(range.block->content + range.at + i, pattern, width);
    memset(range.block->known + range.at, 1, range.bytes);
}

void model_move(struct model_range to, struct model_range from)
{
    say("copies to", to, from);
    memcpy(to.block->content + to.at, from.block->content + from.at, to.bytes);
    memcpy(to.block->known + to.at, from.block->known + from.at, to.bytes);
}

static void compare(const struct model_block *block, size_t at, size_t bytes,
                    const unsigned char *content, const unsigned char *known,
                    const unsigned char *seen, const char *when)
{
    size_t first = bytes, wrong = 0;
    for (size_t i = 0; i < bytes; i++) {
        if (known[i] && content[i] != seen[i]) {
            first = wrong == 0 ? i : first;
            wrong++;
        }
    }
    if (wrong > 0)
        model_fail(
            "%s block %d (%s, %zu bytes), read %zu bytes at %zu%s: byte %zu is %#x, and must "
            "be %#x; %zu bytes differ",
            block->is_shared ? "shared" : "own", block->index, kinds[block->kind], block->bytes,
            bytes, at, when, at + first, seen[first], content[first], wrong);
}

void model_compare(struct model_range range, const unsigned char *seen)
{
    const struct model_block *block = range.block;
    compare(block, range.at, range.bytes, block->content + range.at, block->known + range.at, seen,
            "");
    model_write(range, seen);
}

/* --- comparisons that wait */

static _Thread_local struct {
    struct model_block block; /* as it was */
    size_t at, bytes;
    unsigned char *content, *known;
    const unsigned char *seen;
} checks[CHECKS];
static _Thread_local int check_count;

static void *copy_of(const void *bytes, size_t count)
{
    return memcpy(malloc(count), bytes, count);
}

void model_compare_later(struct model_range range, const unsigned char *seen)
{
    const int i = check_count++;
    checks[i].block = *range.block;
    checks[i].at = range.at;
    checks[i].bytes = range.bytes;
    checks[i].content = copy_of(range.block->content + range.at, range.bytes);
    checks[i].known = copy_of(range.block->known + range.at, range.bytes);
    checks[i].seen = seen;
}

void model_breathe(void)
{
    if (check_count > CHECKS - 8 || !model_has_pinned())
        model_wait();
}

void model_wait(void)
{
    for (int i = 0; i < MODEL_STREAMS; i++)
        OK(cuStreamSynchronize(streams[i]));
    OK(cuStreamSynchronize(CU_STREAM_LEGACY));
    for (int i = 0; i < check_count; i++) {
        compare(&checks[i].block, checks[i].at, checks[i].bytes, checks[i].content, checks[i].known,
                checks[i].seen, ", seen late");
        free(checks[i].content);
        free(checks[i].known);
    }
    check_count = 0;
    model_pinned_unused();
}

/* --- the end */

static void read_block(struct model_block *block)
{
    if (block->at == 0)
        return;
    unsigned char *seen = malloc(block->bytes);
    OK(cuEventSynchronize(block->last));
    OK(cuMemcpyDtoH(seen, block->at, block->bytes));
    model_compare((struct model_range){block, 0, block->bytes}, seen);
    free(seen);
}

void model_read_all(void)
{
    for (int i = 0; i < MODEL_OWN; i++)
        read_block(&own[i]);
    for (int i = 0; i < MODEL_SHARED; i++) {
        lock(&shared[i]);
        read_block(&shared[i]);
        unlock(&shared[i]);
    }
}

void model_free_all(void)
{
    for (int i = 0; i < MODEL_OWN; i++) {
        if (own[i].at != 0)
            free_block(&own[i]);
    }
    if (arena != 0)
        OK(cuMemFree(arena));
    arena = 0;
}

/* --- operations on blocks */

static void operate_free(void)
{
    struct model_block *block =
        model_one_in(8) ? &shared[model_below(MODEL_SHARED)] : &own[model_below(MODEL_OWN)];
    lock(block);
    if (block->at != 0)
        free_block(block);
    unlock(block);
}

/* A new block in the place of an old one, not written yet. */
static void operate_new(void)
{
    struct model_block *block = &own[model_below(MODEL_OWN)];
    if (block->at != 0)
        free_block(block);
    make_block(block);
}

/* The same handles at other addresses: what was written stays. */
static void operate_remap(void)
{
    for (int i = 0; i < MODEL_OWN; i++) {
        struct model_block *block = &own[i];
        if (block->at == 0 || block->kind != MODEL_MAPPED)
            continue;
        OK(cuEventSynchronize(block->last));
        unmap_block(block);
        map_block(block);
        return;
    }
}

static void operate_free_arena(void)
{
    if (arena == 0)
        return;
    for (int i = 0; i < MODEL_OWN; i++) {
        if (own[i].at != 0 && own[i].kind == MODEL_REPORTED)
            free_block(&own[i]);
    }
    OK(cuMemFree(arena));
    arena = 0;
}

/* --- calls while another context is current than the memory's and the stream's */

/* The call returns at once, whatever waits in the stream. */
static void free_elsewhere(void)
{
    struct model_gate gate = {0};
    struct model_block *block = &own[model_below(MODEL_OWN)];
    const CUstream stream = model_own_stream();
    CUcontext popped;
    if (block->at == 0 || block->kind != MODEL_POOLED)
        return;
    OK(cuStreamWaitEvent(stream, block->last, 0));
    if (model_device_has_threads)
        model_queue_gate(&gate, stream);
    OK(cuCtxPushCurrent(model_one_in(2) ? model_other_context : model_peer_context));
    OK(cuMemFreeAsync(block->at, stream));
    OK(cuCtxPopCurrent(&popped));
    model_open_gate(&gate);
    OK(cuStreamSynchronize(stream));
    if (atomic_load(&gate.was_late))
        model_fail("cuMemFreeAsync has waited for the stream");
    forget_block(block);
}

/* --- questions, and what must be refused or do nothing */

/* The driver's answer about memory there: about a block, or about the arena that has the block. */
struct told {
    CUdeviceptr base;
    size_t bytes;
};

static struct told told_of(const struct model_block *block)
{
    if (block->kind == MODEL_REPORTED)
        return (struct told){arena, (size_t)MODEL_OWN * ARENA_PART};
    if (block->kind == MODEL_MAPPED)
        return (struct told){block->reserved, 2 * (block->part + block->gap)};
    return (struct told){block->at, block->bytes};
}

static struct told told_of_mapping(const struct model_block *block, CUdeviceptr at)
{
    if (block->kind == MODEL_MAPPED)
        return (struct told){at - (at - block->mapped) % block->part, block->part};
    return told_of(block);
}

static void check_told(const struct model_block *block, struct told seen, struct told wanted)
{
    if (seen.base != wanted.base || seen.bytes != wanted.bytes)
        model_fail("%s: %zu bytes at %#llx are told of, and must be %zu at %#llx",
                   kinds[block->kind], seen.bytes, (unsigned long long)seen.base, wanted.bytes,
                   (unsigned long long)wanted.base);
}

static void ask(void)
{
    const struct model_range range = model_own_range(MODEL_MOST, 1);
    const CUdeviceptr at = model_address(range);
    struct told mapping, memory;
    unsigned type;
    int ordinal;
    CUpointer_attribute attributes[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                        CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
                                        CU_POINTER_ATTRIBUTE_RANGE_SIZE,
                                        CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL};
    void *data[] = {&type, &memory.base, &memory.bytes, &ordinal};
    OK(cuMemGetAddressRange(&mapping.base, &mapping.bytes, at));
    OK(cuPointerGetAttributes(4, attributes, data, at));
    check_told(range.block, mapping, told_of_mapping(range.block, at));
    check_told(range.block, memory, told_of(range.block));
    if (type != CU_MEMORYTYPE_DEVICE || ordinal != 0)
        model_fail("memory of type %u, device %d", type, ordinal);
}

static void refused(CUresult result, const char *what)
{
    if (result != CUDA_ERROR_INVALID_VALUE)
        model_fail("%s: CUDA error %d, and must be refused", what, (int)result);
}

static void misuse(void)
{
    const struct model_range range = model_own_range(MODEL_MOST, 1);
    const CUdeviceptr at = model_address(range), end = range.block->at + range.block->bytes;
    unsigned char byte = 0;
    OK(cuMemcpyHtoD(at, &byte, 0));
    OK(cuMemsetD8(at, 1, 0));
    OK(cuMemcpyDtoD(at, at, 0));
    if (range.block->kind > MODEL_POOLED)
        return;
    refused(cuMemFree(at + (range.at == 0)), "to free the middle of a block");
    refused(cuMemcpyDtoD(range.block->at, end - 1, (size_t)64 << 20), "a copy over the end");
}

/* --- another process */

/* Opens the memory, adds 1 to each word, and closes it. One for all threads. */
static struct sim_peer_shared add_by_another(CUipcMemHandle handle, size_t bytes)
{
    static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    static struct sim_peer peer;
    pthread_mutex_lock(&mutex);
    if (peer.to == 0)
        peer = sim_peer_start_as("memory");
    const struct sim_peer_shared seen = sim_peer_add(peer, handle, bytes);
    pthread_mutex_unlock(&mutex);
    return seen;
}

/* Memory of its own: what was shared stays where it is for good. */
static void share(void)
{
    enum { WORDS = 3000 };
    uint32_t words[WORDS];
    CUdeviceptr at;
    CUipcMemHandle handle;
    uint64_t sum = 0;
    for (size_t i = 0; i < WORDS; i++)
        sum += words[i] = (uint32_t)model_random();
    OK(cuMemAlloc(&at, sizeof(words)));
    OK(cuMemcpyHtoD(at, words, sizeof(words)));
    OK(cuIpcGetMemHandle(&handle, at));
    const struct sim_peer_shared seen = add_by_another(handle, sizeof(words));
    if (seen.result != CUDA_SUCCESS || seen.sum != sum)
        model_fail("another process opens memory: %d, and sees the sum %#llx, expected %#llx",
                   (int)seen.result, (unsigned long long)seen.sum, (unsigned long long)sum);
    uint32_t read[WORDS];
    OK(cuMemcpyDtoH(read, at, sizeof(read)));
    for (size_t i = 0; i < WORDS; i++) {
        if (read[i] != words[i] + 1)
            model_fail("word %zu of what another process has written is %#x, expected %#x", i,
                       read[i], words[i] + 1);
    }
    OK(cuMemFree(at));
}

const struct model_operation model_memory[] = {
    {"free", operate_free, 40},
    {"new block", operate_new, 40},
    {"remap", operate_remap, 8},
    {"free the arena", operate_free_arena, 3},
    {"wait", model_wait, 20},
    {"read everything", model_read_all, 3},
    {"free in another current context", free_elsewhere, 20},
    {"reservations with gaps", operate_remap, 4},
    {"share with another process", share, 1},
    {"ask", ask, 15},
    {"misuse", misuse, 6},
    {NULL, NULL, 0},
};
