/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/driver/differential/program.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_BLOCKS = 10 };

static struct program_block blocks[MAX_BLOCKS];
static int operation_number;
static uint64_t random_state;

uint64_t program_random(void)
{
    /* splitmix64, Steele, Lea and Flood 2014 */
    uint64_t z = random_state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

size_t program_below(size_t limit)
{
    return (size_t)(program_random() % limit);
}

bool program_one_in(unsigned chances)
{
    return program_below(chances) == 0;
}

void program_must(CUresult result, const char *what)
{
    if (result == CUDA_SUCCESS)
        return;
    printf("operation %d: %s failed with CUDA error %d\n", operation_number, what, result);
    exit(1);
}

uint64_t program_hash(const void *bytes, size_t length)
{
    const unsigned char *byte = bytes;
    uint64_t hash = UINT64_C(0xcbf29ce484222325); /* FNV-1a */
    for (size_t i = 0; i < length; i++)
        hash = (hash ^ byte[i]) * UINT64_C(0x100000001b3);
    return hash;
}

/* Sizes and offsets of every kind: tiny, odd, aligned, large. */
static size_t random_size(size_t limit)
{
    size_t size;
    switch (program_below(4)) {
    case 0:
        size = 1 + program_below(64);
        break;
    case 1:
        size = 1 + program_below(100000);
        break;
    case 2:
        size = (1 + program_below(8)) << 19;
        break;
    default:
        size = 1 + program_below(limit);
    }
    return size < limit ? size : limit;
}

bool program_range(struct program_range *range_out, size_t limit)
{
    struct program_block *block = &blocks[program_below(MAX_BLOCKS)];
    if (block->address == 0)
        return false;
    const size_t most = block->bytes < limit ? block->bytes : limit;
    const size_t bytes = program_one_in(6) ? most : random_size(most);
    *range_out = (struct program_range){.block = block,
                                        .at = program_below(block->bytes - bytes + 1),
                                        .bytes = bytes};
    return true;
}

CUdeviceptr program_address(const struct program_range *range)
{
    return range->block->address + range->at;
}

bool program_is_disjoint(const struct program_range *a, const struct program_range *b)
{
    return a->block != b->block || a->at + a->bytes <= b->at || b->at + b->bytes <= a->at;
}

static void define(const struct program_range *range, const void *bytes)
{
    memcpy(range->block->model + range->at, bytes, range->bytes);
    memset(range->block->defined + range->at, 1, range->bytes);
}

static void allocate(void)
{
    struct program_block *block = &blocks[program_below(MAX_BLOCKS)];
    if (block->address != 0)
        return;
    const size_t bytes = random_size(PROGRAM_BUFFER_BYTES);
    program_must(cuMemAlloc(&block->address, bytes), "cuMemAlloc");
    block->bytes = bytes;
    block->model = calloc(1, bytes);
    block->defined = calloc(1, bytes);
    printf("allocate %zu\n", bytes);
    if (program_one_in(2))
        program_build(block);
}

static void release(void)
{
    struct program_block *block = &blocks[program_below(MAX_BLOCKS)];
    if (block->address == 0)
        return;
    program_must(cuMemFree(block->address), "cuMemFree");
    free(block->model);
    free(block->defined);
    *block = (struct program_block){0};
    printf("free\n");
}

static void set(void)
{
    struct program_range range;
    if (!program_range(&range, SIZE_MAX))
        return;
    const unsigned width = 1u << program_below(3);
    const uint32_t value = program_one_in(3) ? 0 : (uint32_t)program_random();
    range.at -= range.at % width;
    const size_t count = range.bytes / width;
    range.bytes = count * width;
    if (count == 0)
        return;
    CUstream stream = program_next_stream();
    CUresult result;
    if (width == 1)
        result = cuMemsetD8Async(program_address(&range), (unsigned char)value, count, stream);
    else if (width == 2)
        result = cuMemsetD16Async(program_address(&range), (unsigned short)value, count, stream);
    else
        result = cuMemsetD32Async(program_address(&range), value, count, stream);
    program_must(result, "memset");
    for (size_t i = 0; i < range.bytes; i++) {
        range.block->model[range.at + i] = (unsigned char)(value >> 8 * (i % width));
        range.block->defined[range.at + i] = 1;
    }
    printf("set %zu of width %u\n", range.bytes, width);
}

static void copy_from_host(void)
{
    struct program_range range;
    if (!program_range(&range, PROGRAM_BUFFER_BYTES))
        return;
    const enum program_buffer buffer = (enum program_buffer)program_below(BUFFER_COUNT);
    const unsigned char *source =
        program_buffer(buffer) + program_below(PROGRAM_BUFFER_BYTES - range.bytes + 1);
    CUresult result;
    if (program_one_in(3)) {
        program_streams_wait();
        result = program_one_in(2) ? cuMemcpyHtoD(program_address(&range), source, range.bytes)
                                   : cuMemcpy(program_address(&range),
                                              (CUdeviceptr)(uintptr_t)source, range.bytes);
    } else {
        CUstream stream = program_next_stream();
        result = program_one_in(2)
                     ? cuMemcpyHtoDAsync(program_address(&range), source, range.bytes, stream)
                     : cuMemcpyAsync(program_address(&range), (CUdeviceptr)(uintptr_t)source,
                                     range.bytes, stream);
    }
    program_must(result, "copy from the host");
    define(&range, source);
    printf("copy %zu from %s memory\n", range.bytes, program_buffer_names[buffer]);
}

static void copy_on_device(void)
{
    struct program_range from, to;
    if (!program_range(&from, SIZE_MAX) || !program_range(&to, SIZE_MAX))
        return;
    from.bytes = to.bytes = from.bytes < to.bytes ? from.bytes : to.bytes;
    if (!program_is_disjoint(&from, &to))
        return;
    CUstream stream = program_next_stream();
    const CUresult result =
        program_one_in(2)
            ? cuMemcpyDtoDAsync(program_address(&to), program_address(&from), from.bytes, stream)
            : cuMemcpyAsync(program_address(&to), program_address(&from), from.bytes, stream);
    program_must(result, "copy on the device");
    memcpy(to.block->model + to.at, from.block->model + from.at, from.bytes);
    memcpy(to.block->defined + to.at, from.block->defined + from.at, from.bytes);
    printf("copy %zu on the device\n", from.bytes);
}

/* Device to pinned memory to device, in one stream: the host bytes come late. */
static void bounce(void)
{
    struct program_range from, to;
    if (!program_range(&from, 1 << 20) || !program_range(&to, 1 << 20))
        return;
    from.bytes = to.bytes = from.bytes < to.bytes ? from.bytes : to.bytes;
    if (!program_is_disjoint(&from, &to) ||
        memchr(from.block->defined + from.at, 0, from.bytes) != NULL)
        return;
    unsigned char *host = program_buffer(BUFFER_PINNED) + program_below(1000);
    CUstream stream = program_next_stream();
    program_must(cuMemcpyDtoHAsync(host, program_address(&from), from.bytes, stream),
                 "bounce down");
    program_must(cuMemcpyHtoDAsync(program_address(&to), host, from.bytes, stream), "bounce up");
    program_streams_wait();
    define(&to, from.block->model + from.at);
    printf("bounce %zu\n", from.bytes);
}

static void copy_rows(void)
{
    struct program_range from, to;
    if (!program_range(&from, 1 << 20) || !program_range(&to, 1 << 20) || from.block == to.block)
        return;
    const size_t bytes = from.bytes < to.bytes ? from.bytes : to.bytes;
    const size_t pitch = 1 + program_below(bytes);
    const size_t width = 1 + program_below(pitch);
    const size_t height = bytes / pitch;
    if (height == 0)
        return;
    const CUDA_MEMCPY2D copy = {
        .srcMemoryType = CU_MEMORYTYPE_DEVICE,
        .srcDevice = program_address(&from),
        .srcPitch = pitch,
        .dstMemoryType = CU_MEMORYTYPE_DEVICE,
        .dstDevice = program_address(&to),
        .dstPitch = pitch,
        .WidthInBytes = width,
        .Height = height,
    };
    CUstream stream = program_next_stream();
    program_must(cuMemcpy2DAsync(&copy, stream), "cuMemcpy2DAsync");
    for (size_t row = 0; row < height; row++) {
        memcpy(to.block->model + to.at + row * pitch, from.block->model + from.at + row * pitch,
               width);
        memcpy(to.block->defined + to.at + row * pitch, from.block->defined + from.at + row * pitch,
               width);
    }
    printf("copy %zu rows of %zu\n", height, width);
}

/* Bytes that were never written may be anything; they are left out. */
static void compare(const struct program_range *range, unsigned char *seen)
{
    const unsigned char *model = range->block->model + range->at;
    const unsigned char *defined = range->block->defined + range->at;
    for (size_t i = 0; i < range->bytes; i++) {
        if (!defined[i]) {
            seen[i] = 0;
        } else if (seen[i] != model[i]) {
            printf("operation %d: byte %zu of %zu read at %zu is %02x, expected %02x\n",
                   operation_number, i, range->bytes, range->at, seen[i], model[i]);
            exit(1);
        }
    }
    printf("read %zu: %016llx\n", range->bytes,
           (unsigned long long)program_hash(seen, range->bytes));
}

static void read_range(const struct program_range *range)
{
    static unsigned char *seen;
    if (seen == NULL)
        seen = malloc(PROGRAM_BUFFER_BYTES);
    if (program_one_in(2)) {
        program_streams_wait();
        program_must(cuMemcpyDtoH(seen, program_address(range), range->bytes), "cuMemcpyDtoH");
    } else {
        CUstream stream = program_next_stream();
        program_must(cuMemcpyDtoHAsync(seen, program_address(range), range->bytes, stream),
                     "cuMemcpyDtoHAsync");
        program_streams_wait();
    }
    compare(range, seen);
}

static void read_back(void)
{
    struct program_range range;
    if (program_range(&range, PROGRAM_BUFFER_BYTES))
        read_range(&range);
}

static void ask(void)
{
    struct program_range range;
    if (!program_range(&range, SIZE_MAX))
        return;
    CUdeviceptr base, start;
    size_t bytes, size;
    unsigned type;
    int ordinal;
    program_must(cuMemGetAddressRange(&base, &bytes, program_address(&range)),
                 "cuMemGetAddressRange");
    CUpointer_attribute attributes[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                        CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
                                        CU_POINTER_ATTRIBUTE_RANGE_SIZE,
                                        CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL};
    void *data[] = {&type, &start, &size, &ordinal};
    program_must(cuPointerGetAttributes(4, attributes, data, program_address(&range)),
                 "cuPointerGetAttributes");
    printf("ask: offset %llu of %zu, type %u, start %llu, size %zu, device %d\n",
           (unsigned long long)(program_address(&range) - base), bytes, type,
           (unsigned long long)(program_address(&range) - start), size, ordinal);
}

/* Calls that must be refused, or do nothing. */
static void misuse(void)
{
    struct program_range range;
    unsigned char byte = 0;
    if (!program_range(&range, SIZE_MAX))
        return;
    const CUdeviceptr end = range.block->address + range.block->bytes;
    printf("misuse: free inside %d, copy of nothing %d, set of nothing %d, copy over the end %d\n",
           cuMemFree(program_address(&range) + (range.at == 0)),
           cuMemcpyHtoD(program_address(&range), &byte, 0),
           cuMemsetD8(program_address(&range), 1, 0),
           cuMemcpyDtoD(range.block->address, end - 1, (size_t)64 << 20));
}

static void change_buffer(void)
{
    const enum program_buffer buffer = (enum program_buffer)program_below(BUFFER_COUNT);
    program_streams_wait();
    program_buffer_change(buffer);
    printf("change %s memory\n", program_buffer_names[buffer]);
}

static void hold(void)
{
    program_hold_stream(program_next_stream());
    printf("hold\n");
}

/* A memset and a copy become a graph, which then runs twice. */
static void capture(void)
{
    struct program_range from, to;
    if (!program_range(&from, 1 << 20) || !program_range(&to, 1 << 20))
        return;
    from.bytes = to.bytes = from.bytes < to.bytes ? from.bytes : to.bytes;
    if (!program_is_disjoint(&from, &to))
        return;
    static CUstream stream;
    if (stream == NULL)
        program_must(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
    program_streams_wait();
    CUgraph graph;
    CUgraphExec executable;
    program_must(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED), "begin capture");
    program_must(cuMemsetD8Async(program_address(&from), 0x5a, from.bytes, stream),
                 "captured memset");
    program_must(cuMemcpyDtoDAsync(program_address(&to), program_address(&from), from.bytes,
                                   stream),
                 "captured copy");
    program_must(cuStreamEndCapture(stream, &graph), "end capture");
    program_must(cuGraphInstantiate(&executable, graph, 0), "cuGraphInstantiate");
    program_must(cuGraphLaunch(executable, stream), "cuGraphLaunch");
    program_must(cuGraphLaunch(executable, stream), "cuGraphLaunch");
    program_must(cuStreamSynchronize(stream), "cuStreamSynchronize");
    program_must(cuGraphExecDestroy(executable), "cuGraphExecDestroy");
    program_must(cuGraphDestroy(graph), "cuGraphDestroy");
    memset(from.block->model + from.at, 0x5a, from.bytes);
    memset(from.block->defined + from.at, 1, from.bytes);
    memset(to.block->model + to.at, 0x5a, to.bytes);
    memset(to.block->defined + to.at, 1, to.bytes);
    printf("capture %zu\n", from.bytes);
}

static const struct {
    void (*run)(void);
    unsigned weight;
} operations[] = {
    {allocate, 12},
    {release, 4},
    {set, 12},
    {copy_from_host, 20},
    {copy_on_device, 20},
    {copy_rows, 3},
    {read_back, 12},
    {ask, 4},
    {misuse, 2},
    {change_buffer, 3},
    {hold, 2},
    {capture, 1},
    {bounce, 4},
    {program_add, 1},
    {program_copy_words, 1},
    {program_initialise, 12},
    {program_change_in_place, 8},
    {program_follow_table, 2},
    {program_reload_kernels, 1},
    {program_work_in_threads, 2},
    {program_set_rows, 2},
    {program_copy_box, 2},
    {program_copy_peer, 2},
    {program_through_array, 1},
    {program_run_graph, 1},
};

static void run_one(void)
{
    unsigned total = 0;
    for (size_t i = 0; i < sizeof(operations) / sizeof(operations[0]); i++)
        total += operations[i].weight;
    unsigned left = (unsigned)program_below(total);
    size_t i = 0;
    while (left >= operations[i].weight)
        left -= operations[i++].weight;
    operations[i].run();
}

static void read_everything(void)
{
    for (int i = 0; i < MAX_BLOCKS; i++) {
        if (blocks[i].address == 0)
            continue;
        const struct program_range whole = {.block = &blocks[i], .bytes = blocks[i].bytes};
        read_range(&whole);
    }
}

int main(int argc, char **argv)
{
    if (argc != 6) {
        fprintf(stderr, "usage: %s SEED OPERATIONS FILE KERNELS TORCH-KERNELS\n", argv[0]);
        return 2;
    }
    random_state = strtoull(argv[1], NULL, 10);
    const int count = atoi(argv[2]);
    CUdevice device;
    CUcontext context;
    program_must(cuInit(0), "cuInit");
    program_must(cuDeviceGet(&device, 0), "cuDeviceGet");
    program_must(cuDevicePrimaryCtxRetain(&context, device), "cuDevicePrimaryCtxRetain");
    program_must(cuCtxSetCurrent(context), "cuCtxSetCurrent");
    program_kernels_init(argv[4], argv[5]);
    program_buffers_init(argv[3]);
    program_streams_init();
    for (operation_number = 1; operation_number <= count; operation_number++)
        run_one();
    read_everything();
    program_streams_wait();
    printf("done\n");
    return 0;
}
