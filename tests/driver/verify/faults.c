/* SPDX-License-Identifier: Apache-2.0 */
/* Scenarios that are right; faults.py and plants.c make the shim do them wrongly. */
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/driver/differential/scenario.h"
#include "tests/harness/scrambled.h"

enum { BYTES = 8 << 20, PART = 2 << 20 };

/* No two parts of it are alike. */
static unsigned char *distinct_bytes(size_t count)
{
    unsigned char *bytes = malloc(count);
    scramble(bytes, count, 0, 24);
    return bytes;
}

static void launch(const char *kernel, void **params)
{
    OK(cuLaunchKernel(function(kernel), 16, 1, 1, 64, 1, 1, 0, NULL, params, NULL));
}

/* An inner part of the result alone is replayed. */
SCENARIO(neighbours)
{
    uint64_t count = BYTES / 4;
    CUdeviceptr block = allocate(BYTES);
    void *params[] = {&block, &block, &count};
    uniform(block, count, 7);
    launch("neighbours32", params);
    print_bytes("part", block + PART, PART);
}

SCENARIO(drift)
{
    uint64_t count = BYTES / 4;
    CUdeviceptr block = allocate(BYTES);
    void *params[] = {&block, &count};
    launch("drift32", params);
    print_bytes("all", block, BYTES);
}

SCENARIO(file)
{
    const CUdeviceptr block = load_file(BYTES);
    overwrite_file_unseen(BYTES);
    print_bytes("all", block, BYTES);
}

/* Straight into memory that is not the shim's. */
SCENARIO(file_in_part)
{
    const CUdeviceptr block = load_file(BYTES), small = allocate(4096);
    overwrite_file_unseen(BYTES);
    OK(cuMemcpyDtoD(small, block + PART, 4096));
    print_bytes("small", small, 4096);
}

/* The source of the copy is written by what is before it in the stream. */
SCENARIO(order)
{
    CUstream stream;
    unsigned char *pinned;
    const CUdeviceptr small = allocate(4096), block = allocate(BYTES);
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    OK(cuMemHostAlloc((void **)&pinned, 4096, 0));
    OK(cuMemsetD8(small, 0x22, 4096));
    OK(cuCtxSynchronize());
    memset(pinned, 0x11, 4096);
    OK(cuMemcpyDtoHAsync(pinned, small, 4096, stream));
    OK(cuMemcpyHtoDAsync(block, pinned, 4096, stream));
    OK(cuStreamSynchronize(stream));
    print_bytes("written", block, 4096);
}

/* Through a buffer, from a file that is mapped and has two tensors of this size. */
static void stage(bool into_memory)
{
    static const char header[] =
        "{\"a\":{\"dtype\":\"U8\",\"shape\":[8388608],\"data_offsets\":[0,8388608]},"
        "\"b\":{\"dtype\":\"U8\",\"shape\":[8388608],\"data_offsets\":[8388608,16777216]}}";
    const uint64_t length = sizeof(header) - 1;
    const size_t begin = sizeof(length) + length, all = begin + 2 * (size_t)BYTES;
    const char *path = getenv("VERIFY_FILE");
    unsigned char *content = distinct_bytes(all);
    memcpy(content, &length, sizeof(length));
    memcpy(content + sizeof(length), header, length);
    int opened = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
    if (opened < 0 || write(opened, content, all) != (ssize_t)all)
        exit(2);
    close(opened);
    opened = open(path, O_RDONLY);
    mmap(NULL, all, PROT_READ, MAP_PRIVATE, opened, 0);
    close(opened);
    const CUdeviceptr block = allocate(BYTES);
    if (into_memory) { /* a part of it */
        OK(cuMemsetD8(block + PART, 0, PART));
        print_bytes("before", block + PART, PART);
    }
    OK(cuMemcpyHtoD(block, content + begin, BYTES));
    print_bytes("all", block, BYTES);
    free(content);
}

SCENARIO(staged)
{
    stage(false);
}

SCENARIO(staged_into_memory)
{
    stage(true);
}

SCENARIO(granules)
{
    const CUdeviceptr block = allocate(BYTES);
    unsigned char *bytes = distinct_bytes(BYTES);
    OK(cuMemcpyHtoD(block, bytes, BYTES));
    free(bytes);
    print_bytes("all", block, BYTES);
}

/* A set that faults.py lets the shim miss, and that is done when the cached bytes are compared: the
 * shim waits for what it knows. `take`: what comes next to these bytes. */
static void stray(void (*take)(CUdeviceptr))
{
    CUresult (*set)(CUdeviceptr, unsigned char, size_t);
    CUdriverProcAddressQueryResult found;
    const CUdeviceptr block = load_file(BYTES);
    print_bytes("all", block, BYTES);
    OK(cuGetProcAddress("cuMemsetD8", (void **)&set, 12000, 0, &found));
    OK(set(block + PART + 5, 0x77, 3));
    OK(cuCtxSynchronize());
    take(block);
}

static void leave(CUdeviceptr block)
{
    (void)block;
}

static void release(CUdeviceptr block)
{
    OK(cuMemFree(block));
}

static void overwrite(CUdeviceptr block)
{
    OK(cuMemsetD8(block, 0, 4096));
    OK(cuMemsetD8(block + BYTES - 1, 0, 1));
    OK(cuMemsetD8(block, 0, BYTES));
}

static void press(CUdeviceptr block)
{
    CUdeviceptr other = 0;
    size_t available, total;
    (void)block;
    OK(cuMemGetInfo(&available, &total));
    OK(cuMemAlloc(&other, available));
    OK(cuMemsetD8(other, 1, available));
    print_bytes("other", other, available);
}

SCENARIO(stray_at_exit)
{
    stray(leave);
}

SCENARIO(stray_freed)
{
    stray(release);
}

SCENARIO(stray_overwritten)
{
    stray(overwrite);
}

SCENARIO(stray_under_pressure)
{
    stray(press);
}

/* The check may leave out some of several allocations, and then all that depends on these. */
SCENARIO(several)
{
    CUdeviceptr blocks[4];
    for (unsigned i = 0; i < 4; i++) {
        blocks[i] = allocate(BYTES);
        OK(cuMemsetD8(blocks[i], (unsigned char)(i + 1), BYTES));
    }
    for (unsigned i = 0; i < 3; i++)
        OK(cuMemcpyDtoD(blocks[i] + PART, blocks[i + 1], PART));
    for (unsigned i = 0; i < 4; i++)
        print_bytes("block", blocks[i], BYTES);
}

SCENARIO(killed)
{
    run_several();
    _exit(0);
}
