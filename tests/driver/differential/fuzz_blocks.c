/* SPDX-License-Identifier: Apache-2.0 */
/* Device memory, host memory and streams of the fuzzer. */
#include "tests/driver/differential/fuzz.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "tools/simcuda/driver/hook.h"
#include "tools/simcuda/harness/range_access.h"

/* --- host memory */

unsigned char *fuzz_buffers[FUZZ_BUFFERS];
unsigned char *fuzz_scratch, *fuzz_landing;

/* A checkpoint of four tensors: what is copied from there may be known by name. */
static const char header[] =
    "{\"a.weight\":{\"dtype\":\"F32\",\"shape\":[256,64],\"data_offsets\":[0,65536]},"
    "\"b.weight\":{\"dtype\":\"BF16\",\"shape\":[100,333],\"data_offsets\":[65536,132136]},"
    "\"c.weight\":{\"dtype\":\"U8\",\"shape\":[40,1000],\"data_offsets\":[132136,172136]},"
    "\"d.weight\":{\"dtype\":\"F32\",\"shape\":[512,400],\"data_offsets\":[172136,991336]}}";

static void write_file(const char *path)
{
    const uint64_t length = sizeof(header) - 1, none = 0;
    unsigned char *bytes = malloc(FUZZ_BUFFER_BYTES);
    for (size_t i = 0; i < FUZZ_BUFFER_BYTES; i += 8) {
        const uint64_t word = fuzz_random();
        memcpy(bytes + i, &word, sizeof(word));
    }
    memcpy(bytes, fuzz_has_names() ? &length : &none, sizeof(length));
    memcpy(bytes + 8, header, length);
    const size_t size = 8 + (size_t)length + 991336;
    memset(bytes + size, 3, FUZZ_BUFFER_BYTES - size);
    FILE *file = fopen(path, "wb");
    if (file == NULL || fwrite(bytes, 1, size, file) != size || fclose(file) != 0) {
        perror(path);
        exit(2);
    }
    free(bytes);
    /* So old that a later write would show (docs/design/files.md). */
    const struct timespec times[2] = {{.tv_sec = 1700000000}, {.tv_sec = 1700000000}};
    utimensat(AT_FDCWD, path, times, 0);
}

static unsigned char *map_file(const char *path, int protection)
{
    const int file = open(path, O_RDONLY);
    void *address = mmap(NULL, FUZZ_BUFFER_BYTES, protection, MAP_PRIVATE, file, 0);
    if (file < 0 || address == MAP_FAILED) {
        perror(path);
        exit(2);
    }
    close(file);
    return address;
}

unsigned char *fuzz_map_file(void)
{
    char path[4096];
    snprintf(path, sizeof(path), "%s/model.safetensors", fuzz_folder);
    return map_file(path, PROT_READ);
}

static unsigned char *pinned(void)
{
    void *address = NULL;
    if (CALL(cuMemHostAlloc)(&address, FUZZ_BUFFER_BYTES, 0) != CUDA_SUCCESS) {
        fprintf(stderr, "no pinned memory\n");
        exit(2);
    }
    return address;
}

/* Behind the file's end there is nothing to read. */
static size_t buffer_bytes(enum fuzz_buffer buffer)
{
    return buffer == FUZZ_FILE || buffer == FUZZ_WRITTEN ? 8 + sizeof(header) - 1 + 991336
                                                         : (size_t)FUZZ_BUFFER_BYTES;
}

const unsigned char *fuzz_source(size_t bytes)
{
    static const size_t tensors[] = {0, 65536, 132136, 172136};
    const enum fuzz_buffer buffer = (enum fuzz_buffer)fuzz_below(FUZZ_BUFFERS);
    const size_t all = buffer_bytes(buffer);
    size_t at = fuzz_below(all - (bytes < all ? bytes : all - 1));
    if (fuzz_one_in(3))
        at = 8 + sizeof(header) - 1 + tensors[fuzz_below(4)]; /* where a tensor begins */
    static const char *const names[] = {"the file", "the written file", "pinned memory",
                                        "plain memory"};
    const bool is_behind = bytes > all || at + bytes > all;
    fuzz_say("  from %s\n", names[is_behind ? FUZZ_PLAIN : buffer]);
    return is_behind ? fuzz_buffers[FUZZ_PLAIN] + fuzz_below(FUZZ_BUFFER_BYTES - bytes + 1)
                     : fuzz_buffers[buffer] + at;
}

static void change_buffer(enum fuzz_buffer buffer)
{
    for (size_t times = 1 + fuzz_below(4); times > 0; times--) {
        const size_t bytes = 1 + fuzz_below(3000);
        memset(fuzz_buffers[buffer] + fuzz_below(buffer_bytes(buffer) - bytes),
               (int)fuzz_below(256), bytes);
    }
}

/* Numbers that depend on nothing but their place, so that leaving operations out changes no
 * buffer. */
RANGE_ACCESS static void reset_buffers(void)
{
    range_write(fuzz_buffers[FUZZ_PINNED], FUZZ_BUFFER_BYTES);
    memset(fuzz_buffers[FUZZ_PLAIN], 7, FUZZ_BUFFER_BYTES);
    for (uint32_t i = 0; i < FUZZ_BUFFER_BYTES / 4; i++)
        ((uint32_t *)fuzz_buffers[FUZZ_PINNED])[i] = i * 2654435761U;
}

/* --- streams */

enum { STREAMS = 5 };
static CUstream streams[STREAMS], last_stream;
static CUevent order;

CUstream fuzz_stream(bool per_thread)
{
    const CUstream given = streams[fuzz_below(STREAMS)];
    const CUstream next = given != NULL ? given
                          : per_thread  ? CU_STREAM_PER_THREAD
                                        : CU_STREAM_LEGACY;
    if (next != last_stream) {
        TWIN(fuzz_one_in(2), cuEventRecord, cuEventRecord_ptsz)(order, last_stream);
        TWIN(fuzz_one_in(2), cuStreamWaitEvent, cuStreamWaitEvent_ptsz)(next, order, 0);
        last_stream = next;
    }
    return given;
}

void fuzz_default_stream(bool per_thread)
{
    const CUstream next = per_thread ? CU_STREAM_PER_THREAD : CU_STREAM_LEGACY;
    if (next != last_stream) {
        CALL(cuEventRecord)(order, last_stream);
        CALL(cuStreamWaitEvent)(next, order, 0);
        last_stream = next;
    }
}

void fuzz_wait(void)
{
    const CUresult result =
        TWIN(fuzz_one_in(2), cuStreamSynchronize, cuStreamSynchronize_ptsz)(last_stream);
    fuzz_see((uint64_t)result);
    if (result != CUDA_SUCCESS)
        fuzz_say("  the stream is done: %d\n", (int)result);
}

/* --- device memory */

enum { ARENA_PART = 16 << 10, WITNESS_BYTES = 64 << 10 };
static struct fuzz_block blocks[FUZZ_SLOTS];
static CUdeviceptr arena; /* FUZZ_SLOTS parts, one for each slot */

static size_t draw_bytes(size_t most)
{
    const size_t draw = fuzz_below(100);
    const size_t limit = fuzz_is_large ? most
                         : draw < 60   ? 4096
                         : draw < 88   ? 24 << 10
                         : draw < 98   ? 160 << 10
                                       : most;
    size_t bytes = 1 + fuzz_below(limit < most ? limit : most);
    if (fuzz_one_in(3))
        bytes = (bytes + 511) / 512 * 512;
    return bytes < most ? bytes : most;
}

void fuzz_define(CUdeviceptr at, size_t bytes)
{
    for (; bytes > FUZZ_BUFFER_BYTES; at += FUZZ_BUFFER_BYTES, bytes -= FUZZ_BUFFER_BYTES)
        fuzz_define(at, FUZZ_BUFFER_BYTES);
    const size_t words = bytes / 4;
    const bool twin = fuzz_one_in(2);
    switch (fuzz_below(3)) {
    case 0:
        SEE_NOW(twin, cuMemsetD8_v2, at, (unsigned char)fuzz_random(), bytes);
        return;
    case 1:
        SEE_NOW(twin, cuMemcpyHtoD_v2, at, fuzz_source(bytes), bytes);
        return;
    default:
        fuzz_default_stream(false);
        if (words > 0)
            SEE(CALL(cuMemsetD32_v2)(at, (unsigned)fuzz_random(), words));
        if (bytes % 4 != 0)
            SEE(CALL(cuMemsetD8_v2)(at + 4 * words, 5, bytes % 4));
    }
}

/* By its size, as whether it is mapped: nothing is drawn, so that kept programs stay what they are.
 */
static bool has_gaps(const struct fuzz_block *block)
{
    return block->bytes % 8 == 5 && !fuzz_is_left_out("a reservation with gaps");
}

/* Over the border of two mappings; of some, what is reserved before and behind stays unmapped. */
static void map_block(struct fuzz_block *block)
{
    const CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                      .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
    const CUmemAccessDesc desc = {.location = prop.location,
                                  .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    size_t granule = 2 << 20; /* where a call fails after an illegal access */
    CALL(cuMemGetAllocationGranularity)(&granule, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
    const size_t each = ((block->bytes / 2 + 512) / granule + 1) * granule;
    const size_t gap = has_gaps(block) ? each : 0;
    block->reserved_bytes = 2 * each + 2 * gap;
    SEE(CALL(cuMemAddressReserve)(&block->reserved_at, block->reserved_bytes, 0, 0, 0));
    block->mapped_at = block->reserved_at + gap;
    block->mapped_bytes = 2 * each;
    for (CUdeviceptr at = block->mapped_at; at < block->mapped_at + 2 * each; at += each) {
        CUmemGenericAllocationHandle handle = 0;
        SEE(CALL(cuMemCreate)(&handle, each, &prop, 0));
        SEE(CALL(cuMemMap)(at, each, 0, handle, 0));
        SEE(CALL(cuMemRelease)(handle));
    }
    SEE(CALL(cuMemSetAccess)(block->mapped_at, 2 * each, &desc, 1));
    block->at = block->mapped_at + each - block->bytes / 2 / 512 * 512;
}

static void unmap_block(const struct fuzz_block *block)
{
    SEE(CALL(cuMemUnmap)(block->mapped_at, block->mapped_bytes));
    SEE(CALL(cuMemAddressFree)(block->reserved_at, block->reserved_bytes));
}

static void make_memory(struct fuzz_block *block)
{
    if (block->is_mapped)
        map_block(block);
    else
        SEE(CALL(cuMemAlloc_v2)(&block->at, block->bytes));
}

static void free_memory(const struct fuzz_block *block)
{
    if (block->is_mapped)
        unmap_block(block);
    else
        SEE(CALL(cuMemFree_v2)(block->at));
}

static void make(struct fuzz_block *block, size_t least, bool may_be_part)
{
    const size_t slot = (size_t)(block - blocks);
    block->is_part = may_be_part && least <= ARENA_PART && fuzz_one_in(4);
    block->bytes = draw_bytes(block->is_part ? ARENA_PART : FUZZ_BLOCK_MOST);
    if (block->bytes < FUZZ_BLOCK_LEAST)
        block->bytes = FUZZ_BLOCK_LEAST;
    if (block->bytes < least)
        block->bytes = least;
    block->is_mapped = block->bytes % 4 == 1; /* draws nothing, as below */
    if (block->is_part && arena == 0) {
        fuzz_wait();
        SEE(CALL(cuMemAlloc_v2)(&arena, FUZZ_SLOTS * ARENA_PART));
    }
    if (block->is_part)
        block->at = arena + slot * ARENA_PART;
    else if (!block->is_mapped &&
             block->bytes % 3 == 0) /* draws nothing, so that kept programs stay what they are */
        SEE(CALL(cuMemAllocAsync)(&block->at, block->bytes, last_stream));
    else
        make_memory(block);
    fuzz_say("  block %zu: %zu bytes%s\n", slot, block->bytes, block->is_part ? ", a part" : "");
    fuzz_define(block->at, block->bytes);
}

void fuzz_free_block(struct fuzz_block *block)
{
    if (block->at != 0 && !block->is_part) {
        fuzz_wait();
        if (!block->is_mapped && block->bytes % 6 == 0)
            SEE(CALL(cuMemFreeAsync)(block->at, last_stream));
        else
            free_memory(block);
    }
    *block = (struct fuzz_block){0};
}

struct fuzz_block *fuzz_block(void)
{
    struct fuzz_block *block = &blocks[fuzz_below(FUZZ_SLOTS)];
    if (block->at == 0)
        make(block, FUZZ_BLOCK_LEAST, true);
    return block;
}

struct fuzz_block *fuzz_new_block(size_t least)
{
    struct fuzz_block *block = &blocks[fuzz_below(FUZZ_SLOTS)];
    fuzz_free_block(block);
    make(block, least, false);
    return block;
}

static struct fuzz_range draw_range(struct fuzz_block *block, size_t most, size_t align)
{
    const size_t limit = block->bytes < most ? block->bytes : most;
    size_t bytes = fuzz_one_in(4) ? limit : draw_bytes(limit);
    bytes = bytes < align ? align : bytes / align * align;
    const size_t at = fuzz_below(block->bytes - bytes + 1) / align * align;
    fuzz_say("  block %d: %zu bytes at %zu\n", (int)(block - blocks), bytes, at);
    return (struct fuzz_range){.block = block, .at = block->at + at, .bytes = bytes};
}

struct fuzz_range fuzz_range(size_t most, size_t align)
{
    return draw_range(fuzz_block(), most, align);
}

struct fuzz_range fuzz_fresh_range(size_t most, size_t align)
{
    struct fuzz_block *block = fuzz_one_in(3) ? fuzz_new_block(FUZZ_BLOCK_LEAST) : fuzz_block();
    return draw_range(block, most, align);
}

bool fuzz_two_ranges(struct fuzz_range *from, struct fuzz_range *to, size_t most, size_t align)
{
    /* A new block takes the place of an old one, so it comes first. */
    const bool is_swapped = fuzz_one_in(2);
    *(is_swapped ? to : from) = fuzz_fresh_range(most, align);
    *(is_swapped ? from : to) = fuzz_range(most, align);
    from->bytes = to->bytes = from->bytes < to->bytes ? from->bytes : to->bytes;
    return from->at + from->bytes <= to->at || to->at + to->bytes <= from->at;
}

void fuzz_read(CUdeviceptr at, size_t bytes)
{
    const bool twin = fuzz_one_in(2);
    memset(fuzz_scratch, 0, bytes);
    SEE_NOW(twin, cuMemcpyDtoH_v2, fuzz_scratch, at, bytes);
    fuzz_see_bytes(fuzz_scratch, bytes);
}

void fuzz_block_sizes(size_t sizes[FUZZ_SLOTS])
{
    for (int i = 0; i < FUZZ_SLOTS; i++)
        sizes[i] = blocks[i].at != 0 ? blocks[i].bytes : FUZZ_BLOCK_LEAST;
}

void fuzz_free_all(void)
{
    for (int i = 0; i < FUZZ_SLOTS; i++)
        fuzz_free_block(&blocks[i]);
    if (arena != 0)
        SEE(CALL(cuMemFree_v2)(arena));
    arena = 0;
}

void fuzz_end_program(void)
{
    fuzz_wait();
    for (int i = 0; i < FUZZ_SLOTS; i++) {
        if (blocks[i].at != 0)
            fuzz_read(blocks[i].at, blocks[i].bytes);
    }
    fuzz_free_all();
    fuzz_wait();
    reset_buffers();
}

/* --- witnesses */

/* Whether there is memory behind an address, as the simulated driver tells
 * (tools/simcuda/driver/hook.h). */
static bool is_in_memory(CUdeviceptr at)
{
    static simcuda_find_piece_function *find;
    struct simcuda_piece piece;
    if (find == NULL)
        find = FUZZ_STAND_IN(simcuda_find_piece);
    return find(at, &piece);
}

struct fuzz_witness fuzz_witness_begin(void)
{
    struct fuzz_witness witness = {
        .block = {.bytes = WITNESS_BYTES, .is_mapped = fuzz_way(3) == 0}};
    fuzz_default_stream(false);
    make_memory(&witness.block);
    SEE(CALL(cuMemsetD8_v2)(witness.block.at, 1, WITNESS_BYTES));
    return witness;
}

bool fuzz_launches_need_all;

bool fuzz_may_be_in_memory(void)
{
    return fuzz_device_has_threads() || fuzz_driver_has("SIMCUDA_OTHERS");
}

void fuzz_see_deferred(CUdeviceptr at)
{
    fuzz_see(!fuzz_may_be_in_memory() && fuzz_has_shim() && fuzz_defers() && is_in_memory(at));
}

static void end_witness(struct fuzz_witness witness, bool counts)
{
    const bool is_here = is_in_memory(witness.block.at);
    fuzz_see(counts && !fuzz_may_be_in_memory() && fuzz_has_shim() && fuzz_defers() && is_here);
    fuzz_say("  a deferred block %s\n", is_here ? "is in memory" : "is not in memory");
    fuzz_wait();
    free_memory(&witness.block);
}

void fuzz_witness_end(struct fuzz_witness witness)
{
    end_witness(witness, true);
}

void fuzz_witness_end_launch(struct fuzz_witness witness)
{
    end_witness(witness, !fuzz_launches_need_all);
}

/* --- operations on blocks and buffers */

static void operate_free(void)
{
    fuzz_free_block(&blocks[fuzz_below(FUZZ_SLOTS)]);
}

static void operate_free_async(void)
{
    struct fuzz_block *block = fuzz_block();
    if (block->is_part || block->is_mapped)
        return;
    CUdeviceptr base;
    size_t bytes;
    const CUdeviceptr at = block->at;
    const bool twin = fuzz_one_in(2);
    SEE(TWIN(twin, cuMemFreeAsync, cuMemFreeAsync_ptsz)(at, fuzz_stream(twin)));
    fuzz_wait();
    SEE(CALL(cuMemGetAddressRange_v2)(&base, &bytes, at));
    *block = (struct fuzz_block){0};
}

static void operate_new(void)
{
    fuzz_new_block(FUZZ_BLOCK_LEAST);
}

static void operate_change_buffer(void)
{
    fuzz_wait();
    change_buffer(fuzz_one_in(2) ? FUZZ_PINNED : FUZZ_PLAIN);
}

static void operate_witness(void)
{
    fuzz_witness_end(fuzz_witness_begin());
}

/*
 * The block is of use to all operations; a part that is read is in memory. An access to what is not
 * mapped would end the simulated device.
 */
static void operate_gaps(void)
{
    struct fuzz_block *block = &blocks[fuzz_below(FUZZ_SLOTS)];
    fuzz_free_block(block);
    block->bytes = 64 + 8 * fuzz_below(12 << 10) + 5;
    block->is_mapped = true;
    map_block(block);
    fuzz_define(block->at, block->bytes);
    if (fuzz_one_in(2))
        fuzz_read(block->at, 1 + fuzz_below(block->bytes));
}

const struct fuzz_operation fuzz_basics[] = {
    {"free", operate_free, 40},
    {"free in a stream", operate_free_async, 4},
    {"allocate", operate_new, 60},
    {"change host memory", operate_change_buffer, 10},
    {"witness", operate_witness, 4},
    {"a reservation with gaps", operate_gaps, 4},
    {NULL, NULL, 0},
};

void fuzz_blocks_init(void)
{
    char path[4096];
    snprintf(path, sizeof(path), "%s/model.safetensors", fuzz_folder);
    write_file(path);
    fuzz_buffers[FUZZ_FILE] = map_file(path, PROT_READ);
    fuzz_buffers[FUZZ_WRITTEN] = map_file(path, PROT_READ | PROT_WRITE);
    fuzz_buffers[FUZZ_PINNED] = pinned();
    fuzz_buffers[FUZZ_PLAIN] = malloc(FUZZ_BUFFER_BYTES);
    fuzz_landing = pinned();
    fuzz_scratch = malloc(FUZZ_SCRATCH_BYTES);
    reset_buffers();
    change_buffer(FUZZ_WRITTEN);
    streams[0] = NULL;
    streams[1] = CU_STREAM_LEGACY;
    streams[2] = CU_STREAM_PER_THREAD;
    if (CALL(cuStreamCreate)(&streams[3], CU_STREAM_DEFAULT) != CUDA_SUCCESS ||
        CALL(cuStreamCreate)(&streams[4], CU_STREAM_NON_BLOCKING) != CUDA_SUCCESS ||
        CALL(cuEventCreate)(&order, CU_EVENT_DISABLE_TIMING) != CUDA_SUCCESS) {
        fprintf(stderr, "no streams\n");
        exit(2);
    }
    last_stream = CU_STREAM_LEGACY;
}
