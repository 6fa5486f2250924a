/* SPDX-License-Identifier: Apache-2.0 */
/* A file that is copied to the device, and what the device has of it. */
#pragma once

#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shim/metashard.h"
#include "tests/harness/preload.h"
#include "tools/simcuda/harness/device.h"
#include "tools/simcuda/harness/range_access.h"

enum { BYTES = 4 << 20, WRITTEN = 4096 };

/* In a folder of its own, which the test's process removes. */
static char folder[64], path[96], other[96];
static unsigned char original[BYTES], seen[BYTES], scratch[WRITTEN];

static inline void clean_up(void)
{
    unlink(path);
    unlink(other);
    rmdir(folder);
}

static inline void write_file(const char *name, const unsigned char *bytes, size_t count)
{
    const int file = open(name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    CHECK(file >= 0);
    CHECK_EQ(write(file, bytes, count), count);
    CHECK_EQ(close(file), 0);
}

/* Once for all tests, which are children of this process. */
__attribute__((constructor)) RANGE_ACCESS static void make_original(void)
{
    uint32_t random = 1;
    range_write(original, BYTES);
    for (size_t i = 0; i < BYTES; i++)
        original[i] = (unsigned char)((random = random * 1664525 + 1013904223) >> 24);
}

static inline void make_files(void)
{
    const char *parent = getenv("OVERWRITE_FOLDER");
    snprintf(folder, sizeof(folder), "%s/overwrite-XXXXXX", parent != NULL ? parent : "/tmp");
    CHECK(mkdtemp(folder) != NULL);
    snprintf(path, sizeof(path), "%s/checkpoint", folder);
    snprintf(other, sizeof(other), "%s/other", folder);
    atexit(clean_up);
    write_file(path, original, BYTES);
    memset(scratch, 0x5a, sizeof(scratch));
}

/* As torch.load(mmap=True, map_location="cuda") does. */
static inline void load_to(CUdeviceptr block)
{
    const int file = open(path, O_RDONLY | O_CLOEXEC);
    CHECK(file >= 0);
    void *mapped = mmap(NULL, BYTES, PROT_READ, MAP_PRIVATE, file, 0);
    CHECK(mapped != MAP_FAILED);
    CHECK_EQ(close(file), 0);
    CHECK_EQ(cuMemcpyHtoD(block, mapped, BYTES), CUDA_SUCCESS);
    CHECK_EQ(munmap(mapped, BYTES), 0);
}

static inline CUdeviceptr load(void)
{
    const CUdeviceptr block = device_allocate(BYTES);
    load_to(block);
    return block;
}

static inline void check_device(CUdeviceptr block)
{
    CHECK_EQ(cuMemcpyDtoH(seen, block, BYTES), CUDA_SUCCESS);
    CHECK_BYTES(seen, original, BYTES);
}

static inline uint64_t backed_bytes(void)
{
    char text[1024];
    CHECK(metashard_status != NULL);
    CHECK(metashard_status(text, sizeof(text)) < sizeof(text));
    const char *found = strstr(text, "\"backed_bytes\":");
    CHECK(found != NULL);
    return strtoull(found + strlen("\"backed_bytes\":"), NULL, 10);
}

static inline void expect_shim(void)
{
    if (!device_has_shim())
        ms_test_skip("alone there is nothing of that");
}
