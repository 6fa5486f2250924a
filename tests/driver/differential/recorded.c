/* SPDX-License-Identifier: Apache-2.0 */
/* Recorded launches, and bytes that were read and could be played again. */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tests/driver/differential/scenario.h"

/* A chain of launches, with other writes between and behind them, read in parts and whole. */
SCENARIO(chain)
{
    const CUdeviceptr block = allocate(16 * MIB);
    uniform(block, 4 * MIB, 1);
    OK(cuMemsetD8(block + 3 * MIB + 5, 0x77, MIB));
    fill(block + 6 * MIB, 0x3f800000, MIB / 2);
    OK(cuMemsetD32(block + 7 * MIB, 0x12345678, MIB / 4));
    uniform(block + 10 * MIB, MIB, 2);
    print_bytes("a part", block + 5 * MIB + 3, 3 * MIB);
    print_bytes("another part", block + MIB, 3 * MIB);
    print_bytes("all", block, 16 * MIB);
    fill(block + MIB, 7, 100);
    print_bytes("all again", block, 16 * MIB);
}

/* The launch runs again for each piece; what it writes where others have been read stands there
 * already. But not where somebody has written since. */
SCENARIO(in_pieces)
{
    const CUdeviceptr block = allocate(32 * MIB);
    uniform(block, 8 * MIB, 1);
    print_bytes("the end", block + 17 * MIB + 5, 15 * MIB - 5);
    print_bytes("the begin", block, 17 * MIB + 100);
    print_bytes("all", block, 32 * MIB);
    uniform(block, 8 * MIB, 2);
    print_bytes("a piece", block, 4 * MIB);
    OK(cuMemsetD8(block + MIB, 0x55, 2 * MIB));
    print_bytes("beside what was written since", block + 3 * MIB, 29 * MIB);
    print_bytes("all of it", block, 32 * MIB);
}

/* The read begins before the rest of the launch's output, in bytes that the launch wrote, too. */
SCENARIO(before_a_launch)
{
    const CUdeviceptr block = allocate(16 * MIB);
    uniform(block, 4 * MIB, 1);
    OK(cuMemsetD8(block + MIB, 0x55, 4 * MIB));
    print_bytes("from what was written since", block + 2 * MIB, 14 * MIB);
    print_bytes("all of it", block, 16 * MIB);
}

/* A rank's rows, of which the whole is freed before they are needed. */
SCENARIO(moved)
{
    const CUdeviceptr whole = allocate(32 * MIB);
    const CUdeviceptr rows = allocate(8 * MIB);
    uniform(whole, 8 * MIB, 5);
    OK(cuMemcpyDtoD(rows, whole + 9 * MIB + 1024, 8 * MIB));
    OK(cuMemFree(whole));
    print_bytes("rows of a freed tensor", rows + MIB, 2 * MIB);
    print_bytes("all rows", rows, 8 * MIB);
    fill(rows + 4 * MIB, 9, MIB);
    print_bytes("rows written on", rows, 8 * MIB);
}

/* Columns [begin, begin + width) of the rows of a matrix, side by side in another block. */
static CUresult copy_columns(CUdeviceptr to, CUdeviceptr matrix, size_t pitch, size_t begin,
                             size_t width, size_t rows)
{
    const CUDA_MEMCPY2D copy = {.srcMemoryType = CU_MEMORYTYPE_DEVICE,
                                .srcDevice = matrix,
                                .srcPitch = pitch,
                                .srcXInBytes = begin,
                                .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                                .dstDevice = to,
                                .dstPitch = width,
                                .WidthInBytes = width,
                                .Height = rows};
    return cuMemcpy2D(&copy);
}

/* A rank's columns, of which the whole is freed before they are needed. */
SCENARIO(columns)
{
    enum { PITCH = 16 << 10, WIDTH = 2 << 10, ROWS = 2048 };
    const CUdeviceptr whole = load_file((size_t)PITCH * ROWS);
    const CUdeviceptr part = allocate((size_t)WIDTH * ROWS);
    OK(cuMemsetD32(whole + 7 * MIB, 0x01020304, MIB / 4));
    OK(copy_columns(part, whole, PITCH, 3 * WIDTH, WIDTH, ROWS));
    OK(cuMemFree(whole));
    print_bytes("columns of a freed tensor", part + MIB, MIB);
    fill(part + 2 * MIB, 9, 1000);
    print_bytes("all columns", part, (size_t)WIDTH * ROWS);
}

/* Where rows are not what is copied: a launch would run for each of them, and memory is there
 * already. */
SCENARIO(other_columns)
{
    enum { PITCH = 4 << 10, WIDTH = 512, ROWS = 2048 };
    const CUdeviceptr whole = allocate((size_t)PITCH * ROWS);
    const CUdeviceptr part = allocate(4 * MIB);
    uniform(whole, (size_t)PITCH * ROWS / 4, 3);
    OK(copy_columns(part, whole, PITCH, WIDTH, WIDTH, ROWS));
    print_bytes("columns of a launch", part, (size_t)WIDTH * ROWS);
    OK(cuMemsetD8(whole + MIB, 0x33, MIB));
    OK(copy_columns(part + MIB, whole, PITCH, 2 * WIDTH, WIDTH, ROWS));
    print_bytes("columns of what was read", part, 4 * MIB);
    printf("a pitch below the width: %d\n", (int)copy_columns(part, whole, 1000, 0, 2000, 2));
    const CUdeviceptr one = load_file(4 * MIB);
    OK(copy_columns(one + MIB + 100, one, PITCH, 0, WIDTH, 512));
    print_bytes("columns of itself", one, 4 * MIB);
    const CUdeviceptr two = load_file(4 * MIB);
    OK(copy_columns(two + 2 * MIB, two, PITCH, WIDTH, WIDTH, 512));
    OK(copy_columns(two + 3 * MIB, two, 100, 3, 10, 1024));
    print_bytes("columns beside themselves", two, 4 * MIB);
}

/* The program changes a block, or the copy of the block, in place before it reads either. */
static void change(CUdeviceptr block, bool is_copy_changed)
{
    const CUdeviceptr copy = allocate(8 * MIB);
    OK(cuMemcpyDtoD(copy, block, 8 * MIB));
    fill((is_copy_changed ? copy : block) + MIB, 5, MIB);
    print_bytes("the changed one", is_copy_changed ? copy : block, 8 * MIB);
    print_bytes("the other one", is_copy_changed ? block : copy, 8 * MIB);
}

/* A new block with distinct bytes of the host, which are in no file. */
static CUdeviceptr load_host(size_t bytes)
{
    const CUdeviceptr block = allocate(bytes);
    uint32_t *words = malloc(bytes);
    for (size_t i = 0; i < bytes / 4; i++)
        words[i] = (uint32_t)i * 2654435761u;
    OK(cuMemcpyHtoD(block, words, bytes));
    free(words);
    return block;
}

SCENARIO(changed_block_of_a_file)
{
    change(load_file(8 * MIB), false);
}

SCENARIO(changed_copy_of_a_file)
{
    change(load_file(8 * MIB), true);
}

SCENARIO(changed_block_of_host_bytes)
{
    change(load_host(8 * MIB), false);
}

SCENARIO(changed_copy_of_host_bytes)
{
    change(load_host(8 * MIB), true);
}

/* Three blocks have the same bytes; two launches lie on one of them. */
SCENARIO(changed_twice)
{
    const CUdeviceptr block = load_file(8 * MIB), first = allocate(8 * MIB),
                      second = allocate(8 * MIB);
    OK(cuMemcpyDtoD(first, block, 8 * MIB));
    OK(cuMemcpyDtoD(second, first, 8 * MIB));
    fill(block + MIB, 5, MIB);
    fill(block + 3 * MIB, 7, MIB);
    print_bytes("changed twice", block, 8 * MIB);
    print_bytes("the last copy", second, 8 * MIB);
    print_bytes("the first copy", first, 8 * MIB);
}

/* Rows that fit, but not twice: there is no room to play them all at once. */
SCENARIO(little_room)
{
    const CUdeviceptr whole = allocate(64 * MIB);
    const CUdeviceptr rows = allocate(44 * MIB);
    uniform(whole, 16 * MIB, 5);
    OK(cuMemcpyDtoD(rows, whole + 9 * MIB + 1024, 44 * MIB));
    OK(cuMemFree(whole));
    print_bytes("rows", rows, 44 * MIB);
}

/* Copies of copies, with launches on each. */
SCENARIO(moved_twice)
{
    CUdeviceptr blocks[3];
    for (int i = 0; i < 3; i++)
        blocks[i] = allocate(8 * MIB);
    uniform(blocks[0], 2 * MIB, 1);
    OK(cuMemcpyDtoD(blocks[1] + MIB, blocks[0] + 2 * MIB, 4 * MIB));
    fill(blocks[1] + 2 * MIB, 3, MIB / 2);
    OK(cuMemcpyDtoD(blocks[2], blocks[1] + MIB + 512, 4 * MIB - 512));
    uniform(blocks[2] + 4 * MIB - 512, MIB, 8);
    OK(cuMemcpyDtoD(blocks[0] + 2 * MIB, blocks[2], 4 * MIB));
    print_bytes("third", blocks[2], 5 * MIB);
    print_bytes("first", blocks[0], 8 * MIB);
    print_bytes("second", blocks[1] + MIB, 4 * MIB);
}

/* More launches than may lie on each other. */
SCENARIO(deep)
{
    const CUdeviceptr block = allocate(4 * MIB);
    for (uint64_t i = 0; i < 20; i++)
        uniform(block, MIB - 1000 * i, i);
    print_bytes("a deep block", block, 4 * MIB);
}

/* The kernel belongs to another context than the block: it could not be run for it later. */
SCENARIO(from_another_context)
{
    CUcontext home, other;
    const CUdeviceptr block = allocate(4 * MIB);
    OK(cuMemsetD8(block, 9, 4 * MIB));
    OK(cuCtxSynchronize());
    OK(cuCtxGetCurrent(&home));
    OK(cuCtxCreate(&other, NULL, 0, 0));
    uniform(block, MIB / 2, 5); /* the first kernel, so it is loaded here */
    OK(cuCtxSynchronize());
    OK(cuCtxSetCurrent(home));
    print_bytes("a block that another context has written", block, 4 * MIB);
}

/* The rule says write-only, but this launch has an input: its bytes must be those of now. */
SCENARIO(has_an_input)
{
    const CUdeviceptr block = allocate(4 * MIB);
    const CUdeviceptr input = allocate(MIB); /* the driver's own */
    OK(cuMemsetD8(input, 1, MIB));
    OK(cuMemsetD8(block, 9, 4 * MIB));
    copy_words(block, input, MIB / 4, NULL);
    OK(cuMemsetD8(input, 2, MIB));
    print_bytes("copied before the input changed", block, 4 * MIB);
}

/* The seed is an address of another block, as what lies in the padding of parameters may be. What
 * it makes is another one without the shim, so it is not printed. */
SCENARIO(stale_parameter)
{
    const CUdeviceptr block = allocate(4 * MIB);
    const CUdeviceptr other = allocate(4 * MIB);
    OK(cuMemsetD8(other, 3, 4 * MIB));
    uniform(block, MIB, 1);
    uniform(block, MIB / 2, other);
    print_bytes("behind it", block + 2 * MIB, 2 * MIB);
    OK(cuMemsetD8(block, 2, 2 * MIB));
    print_bytes("block", block, 4 * MIB);
    print_bytes("other", other, 4 * MIB);
}

static void uniform_with(CUdeviceptr address, uint64_t count, uint64_t seed,
                         CUlaunchAttribute *attributes, unsigned attribute_count)
{
    uint64_t offset = 5;
    void *params[] = {&address, &count, &seed, &offset};
    const CUlaunchConfig config = {.gridDimX = 16,
                                   .gridDimY = 1,
                                   .gridDimZ = 1,
                                   .blockDimX = 64,
                                   .blockDimY = 1,
                                   .blockDimZ = 1,
                                   .attrs = attributes,
                                   .numAttrs = attribute_count};
    OK(cuLaunchKernelEx(&config, function("uniform32"), params, NULL));
    memset(attributes, 0xff,
           attribute_count * sizeof(*attributes)); /* they are the program's again */
}

/* Attributes that say how a kernel runs go with it; one that says when does not wait. */
SCENARIO(with_attributes)
{
    const CUdeviceptr block = allocate(16 * MIB);
    CUlaunchAttribute how[] = {{.id = CU_LAUNCH_ATTRIBUTE_IGNORE},
                               {.id = CU_LAUNCH_ATTRIBUTE_PRIORITY, .value.priority = 0},
                               {.id = CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN}};
    CUlaunchAttribute when[] = {{.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
                                 .value.programmaticStreamSerializationAllowed = 1}};
    OK(cuMemsetD8(block, 9, 16 * MIB));
    uniform_with(block, MIB, 1, how, 3);
    uniform_with(block + 8 * MIB, MIB, 2, how, 0);
    print_bytes("recorded", block, 16 * MIB);
    uniform_with(block + 4 * MIB, MIB, 3, when, 1);
    print_bytes("run", block, 16 * MIB);
}

/* Launches that the driver refuses are refused, and leave everything as it was. */
SCENARIO(refused)
{
    CUdeviceptr block = allocate(4 * MIB);
    uint32_t value = 5;
    uint64_t count = 1000;
    void *params[] = {&block, &value, &count};
    const CUfunction kernel = function("fill32");
    OK(cuMemsetD8(block, 3, 4 * MIB));
    printf("no threads: %d\n",
           (int)cuLaunchKernel(kernel, 1, 1, 1, 0, 1, 1, 0, NULL, params, NULL));
    printf("too many threads: %d\n",
           (int)cuLaunchKernel(kernel, 1, 1, 1, 2000, 1, 1, 0, NULL, params, NULL));
    printf("too large a grid: %d\n",
           (int)cuLaunchKernel(kernel, 1, 70000, 1, 1, 1, 1, 0, NULL, params, NULL));
    printf("too much shared memory: %d\n",
           (int)cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 1 << 30, NULL, params, NULL));
    printf("no stream: %d\n", (int)cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0,
                                                  (CUstream)(uintptr_t)0x1234, params, NULL));
    const struct {
        CUdeviceptr block;
        uint64_t count, seed, offset, more;
    } packed = {allocate(4 * MIB), MIB, 1, 5, 0};
    void *extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, (void *)&packed, CU_LAUNCH_PARAM_BUFFER_SIZE,
                     &(size_t){sizeof(packed)}, CU_LAUNCH_PARAM_END};
    printf("more than its arguments: %d\n",
           (int)cuLaunchKernel(function("uniform32"), 16, 1, 1, 64, 1, 1, 0, NULL, NULL, extra));
    print_bytes("never written", packed.block, 4 * MIB);
    print_bytes("untouched", block, 4 * MIB);
}

/* A copy to the host that is still under way when the bytes are written again: the stream of the
 * second call waits for the legacy stream, although there is nothing in it. */
SCENARIO(read_while_written)
{
    CUstream stream;
    unsigned char *pinned;
    const CUdeviceptr block = allocate(4 * MIB);
    const CUdeviceptr other = allocate(4 * MIB);
    OK(cuMemAllocHost((void **)&pinned, 4 * MIB));
    OK(cuStreamCreate(&stream, CU_STREAM_DEFAULT));
    OK(cuMemsetD32(block, 0x01020304, MIB));
    OK(cuCtxSynchronize());
    OK(cuMemcpyDtoHAsync(pinned, block, 4 * MIB, NULL));
    OK(cuMemsetD8Async(block, 0xee, 4 * MIB, stream));
    print_bytes("written", block, 4 * MIB);
    OK(cuStreamSynchronize(stream));
    print_host("read before", pinned, 4 * MIB);
    OK(cuMemcpyDtoHAsync(pinned, block, 4 * MIB, NULL));
    OK(cuMemcpyHtoDAsync(other, pinned, 4 * MIB, stream));
    print_bytes("copied on", other, 4 * MIB);
    OK(cuMemcpyDtoHAsync(pinned, block, 4 * MIB, stream));
    uniform(block, MIB, 4);
    print_bytes("launched", block, 4 * MIB);
    OK(cuStreamSynchronize(stream));
    print_host("read before the launch", pinned, 4 * MIB);
    OK(cuMemcpyDtoHAsync(pinned, block, 4 * MIB, stream));
    OK(cuMemFree(block));
    OK(cuStreamSynchronize(stream));
    print_host("read before it was freed", pinned, 4 * MIB);
}

/* Work that waits for what comes later runs after it, although it was queued before. */
SCENARIO(behind_a_host_function)
{
    const CUstream stream = make_stream(), other = make_stream();
    CUdeviceptr block = allocate(4 * MIB);
    uint64_t count = MIB;
    uint64_t seed = 1;
    uint64_t offset = 2;
    void *params[] = {&block, &count, &seed, &offset};
    const CUfunction kernel = function("uniform32");
    hold(stream);
    OK(cuLaunchKernel(kernel, 16, 1, 1, 64, 1, 1, 0, stream, params, NULL));
    OK(cuMemsetD8Async(block, 0x44, 4 * MIB, other));
    OK(cuStreamSynchronize(other));
    let_go();
    OK(cuStreamSynchronize(stream));
    print_bytes("the launch came last", block, 4 * MIB);
}

/* A copy of bytes that are in memory already, into a block that is not. */
SCENARIO(copy_of_read)
{
    const CUdeviceptr whole = allocate(8 * MIB);
    const CUdeviceptr slice = allocate(4 * MIB);
    uniform(whole, 2 * MIB, 6);
    OK(cuMemsetD8(whole + 4 * MIB, 0x10, MIB));
    print_bytes("read", whole + 2 * MIB, 4 * MIB);
    OK(cuMemcpyDtoD(slice, whole + 3 * MIB, 4 * MIB));
    OK(cuMemFree(whole));
    print_bytes("slice", slice, 4 * MIB);
}

/* A launch is played into a granule that holds other bytes already. */
SCENARIO(beside_resident)
{
    const CUdeviceptr block = allocate(8 * MIB);
    uniform(block, 2 * MIB, 6);
    print_bytes("read", block, MIB / 2);
    OK(cuMemsetD8(block, 0x55, MIB / 2)); /* the driver's, as the bytes are in memory */
    print_bytes("the rest of the granule", block + MIB / 2, 2 * MIB);
    print_bytes("all", block, 8 * MIB);
}

/* Bytes that nobody has written may be anything, but are always the same. */
SCENARIO(undefined_is_stable)
{
    unsigned char *first = malloc(8 * MIB);
    unsigned char *second = malloc(8 * MIB);
    const CUdeviceptr block = allocate(8 * MIB);
    const CUdeviceptr slice = allocate(4 * MIB);
    uniform(block, MIB / 2, 1); /* the rest of the block stays as it is */
    OK(cuMemcpyDtoD(slice, block + 4 * MIB, 4 * MIB));
    OK(cuMemcpyDtoH(first, block, 8 * MIB));
    /* More than the device has: what was read is given back. */
    for (int i = 0; i < 4; i++) {
        const CUdeviceptr other = allocate(58 * MIB);
        OK(cuMemsetD8(other, (unsigned char)i, 58 * MIB));
        print_bytes("other", other, 58 * MIB);
        OK(cuMemFree(other));
    }
    OK(cuMemcpyDtoH(second, block, 8 * MIB));
    printf("second read: %s\n", memcmp(first, second, 8 * MIB) == 0 ? "same" : "different");
    OK(cuMemcpyDtoH(second, slice, 4 * MIB));
    printf("slice: %s\n", memcmp(first + 4 * MIB, second, 4 * MIB) == 0 ? "same" : "different");
    free(first);
    free(second);
}

/* A file that has changed can no longer restore what was read from it. */
SCENARIO(lost_file_under_pressure)
{
    const CUdeviceptr block = load_file(24 * MIB);
    print_bytes("read", block, 24 * MIB);
    overwrite_file(24 * MIB);
    const CUdeviceptr other = allocate(24 * MIB);
    OK(cuMemsetD8(other, 1, 24 * MIB));
    print_bytes("other", other, 24 * MIB);
    const CUdeviceptr third = allocate(24 * MIB);
    OK(cuMemsetD8(third, 2, 24 * MIB));
    print_bytes("third", third, 24 * MIB);
    print_bytes("read again", block, 24 * MIB);
}

/* --- in addresses of which the program has mapped a part: pieces with gaps around them */

enum { PIECE = 4 << 20, PIECES = 7 };

static const CUmemAllocationProp mapped_prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                                .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};

static CUmemGenericAllocationHandle map_piece(CUdeviceptr at, CUmemAccess_flags flags)
{
    CUmemGenericAllocationHandle handle;
    const CUmemAccessDesc access = {.location = mapped_prop.location, .flags = flags};
    OK(cuMemCreate(&handle, PIECE, &mapped_prop, 0));
    OK(cuMemMap(at, PIECE, 0, handle, 0));
    if (flags != CU_MEM_ACCESS_FLAGS_PROT_NONE)
        OK(cuMemSetAccess(at, PIECE, &access, 1));
    return handle;
}

/* Pieces 1 and 2 side by side, and 4; 6 is mapped, but not accessible. */
static CUdeviceptr reserve_pieces(CUmemGenericAllocationHandle handles[PIECES])
{
    CUdeviceptr base;
    OK(cuMemAddressReserve(&base, (size_t)PIECES * PIECE, 0, 0, 0));
    for (size_t i = 0; i < PIECES; i++) {
        if (i == 1 || i == 2 || i == 4)
            handles[i] = map_piece(base + i * PIECE, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    }
    handles[6] = map_piece(base + (size_t)6 * PIECE, CU_MEM_ACCESS_FLAGS_PROT_NONE);
    OK(cuMemsetD32(base + PIECE, 11, 2 * PIECE / 4));
    OK(cuMemsetD32(base + (size_t)4 * PIECE, 44, PIECE / 4));
    return base;
}

static void print_pieces(const char *name, CUdeviceptr base)
{
    print_bytes(name, base + PIECE, (size_t)2 * PIECE);
    print_bytes(name, base + (size_t)4 * PIECE, PIECE);
}

SCENARIO(beside_gaps)
{
    CUmemGenericAllocationHandle handles[PIECES];
    const CUdeviceptr base = reserve_pieces(handles), other = load_file(PIECE);
    uniform(base + PIECE + 4096, (2 * PIECE - 8192) / 4, 1); /* over the border of two pieces */
    fill(base + (size_t)4 * PIECE + 64, 7, 5000);
    print_bytes("a part", base + 2 * PIECE - 512, 1024);
    print_pieces("recorded", base);
    uniform(base + 2 * PIECE, PIECE / 4, 2);
    OK(cuMemcpyDtoD(base + PIECE + 100, other + 100, PIECE / 2));
    copy_columns(base + (size_t)4 * PIECE, base + PIECE, 4096, 512, 1024, 1024);
    print_pieces("and copied", base);
    printf("copied into the gap in front: %d\n", (int)cuMemcpyDtoD(base, other, PIECE));
}

/* A kernel without a rule reads what was recorded on both sides of a gap. */
SCENARIO(beside_gaps_read)
{
    CUmemGenericAllocationHandle handles[PIECES];
    const CUdeviceptr base = reserve_pieces(handles), out = allocate(PIECE);
    uniform(base + PIECE, PIECE / 4, 3);
    fill(base + (size_t)4 * PIECE, 5, PIECE / 8);
    copy_words(out, base + (size_t)4 * PIECE, PIECE / 4, NULL);
    print_bytes("copied by a kernel", out, PIECE);
    print_pieces("read", base);
    printf("copied over the gap: %d\n", (int)cuMemcpyDtoD(base + (size_t)3 * PIECE - 64, out, 128));
}

/* A part of what a launch has written is unmapped, and other memory comes there. */
SCENARIO(unmapped_after)
{
    CUmemGenericAllocationHandle handles[PIECES];
    const CUdeviceptr base = reserve_pieces(handles);
    uniform(base + PIECE, 2 * PIECE / 4, 4);
    OK(cuCtxSynchronize());
    OK(cuMemUnmap(base + 2 * PIECE, PIECE));
    OK(cuMemRelease(handles[2]));
    print_bytes("the rest", base + PIECE + 2048, PIECE / 2);
    handles[2] = map_piece(base + 2 * PIECE, CU_MEM_ACCESS_FLAGS_PROT_NONE);
    print_bytes("the rest beside what is not accessible", base + PIECE + PIECE / 2, PIECE / 2);
    OK(cuMemUnmap(base + 2 * PIECE, PIECE));
    OK(cuMemRelease(handles[2]));
    handles[2] = map_piece(base + 2 * PIECE, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    OK(cuMemsetD32(base + 2 * PIECE, 22, PIECE / 4));
    print_pieces("mapped again", base);
    uniform(base + PIECE, 2 * PIECE / 4, 5);
    OK(cuCtxSynchronize());
    OK(cuMemUnmap(base + PIECE, PIECE));
    OK(cuMemRelease(handles[1]));
    print_bytes("behind", base + 2 * PIECE, PIECE);
    printf("set where it was: %d\n", (int)cuMemsetD8(base + PIECE, 1, 64));
}
