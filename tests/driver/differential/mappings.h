/* SPDX-License-Identifier: Apache-2.0 */
/* The common part of tests of memory that the program maps itself. */
#pragma once

#include "tests/harness/preload.h"
#include "tools/simcuda/driver/hook.h"
#include "tools/simcuda/harness/range_access.h"
#include "tools/simcuda/tests/program.h"

#define READWRITE CU_MEM_ACCESS_FLAGS_PROT_READWRITE

static inline bool is_in_memory(CUdeviceptr address)
{
    struct simcuda_piece piece;
    return simcuda_find_piece(address, &piece);
}

/* Mapped, and without memory where the shim is there. */
static inline void check_deferred(CUdeviceptr address)
{
    CHECK_EQ(is_in_memory(address), !device_has_shim());
}

/* The identity of the physical memory there. */
static inline uint64_t identity(CUdeviceptr address)
{
    struct simcuda_piece piece;
    CHECK(simcuda_find_piece(address, &piece));
    return piece.identity;
}

/* As allocators ask for memory that others may get. */
static inline CUmemGenericAllocationHandle create_shareable(size_t bytes)
{
    CUmemGenericAllocationHandle handle;
    CUmemAllocationProp prop = device_prop(0);
    prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    prop.allocFlags.gpuDirectRDMACapable = 1;
    OK(cuMemCreate(&handle, bytes, &prop, 0));
    return handle;
}

static inline void map(CUdeviceptr address, size_t bytes, CUmemGenericAllocationHandle handle)
{
    OK(cuMemMap(address, bytes, 0, handle, 0));
    OK(set_access(address, bytes, 0, READWRITE));
}

/* A new mapping of a new handle, which the program keeps. */
static inline CUmemGenericAllocationHandle map_new(CUdeviceptr address, size_t bytes)
{
    const CUmemGenericAllocationHandle handle = create(bytes);
    map(address, bytes, handle);
    return handle;
}

static inline void unmap(CUdeviceptr address, size_t bytes, CUmemGenericAllocationHandle handle)
{
    OK(cuMemUnmap(address, bytes));
    OK(cuMemRelease(handle));
}

/* --- content: word i of a range is seed + i, with a bit that makes no two of them an address */

static inline uint32_t word_of(uint32_t seed, size_t i)
{
    return UINT32_C(1) << 31 | (seed + (uint32_t)i);
}

enum { MAPPINGS_WORDS = 1 << 20 };
static uint32_t mappings_words[MAPPINGS_WORDS];

RANGE_ACCESS static inline void make_words(size_t count, uint32_t seed)
{
    range_write(mappings_words, count * sizeof(uint32_t));
    for (size_t i = 0; i < count; i++)
        mappings_words[i] = word_of(seed, i);
}

/* Each word is `step` more than the one before. */
RANGE_ACCESS static inline void expect_words(size_t count, uint32_t first, uint32_t step)
{
    range_read(mappings_words, count * sizeof(uint32_t));
    for (size_t i = 0; i < count; i++)
        CHECK_EQ(mappings_words[i], first + (uint32_t)i * step);
}

static inline void put_words(CUdeviceptr address, size_t bytes, uint32_t seed)
{
    for (size_t done = 0; done < bytes; done += sizeof(mappings_words)) {
        const size_t left = bytes - done;
        const size_t part = left < sizeof(mappings_words) ? left : sizeof(mappings_words);
        make_words(part / 4, seed + (uint32_t)(done / 4));
        OK(cuMemcpyHtoD(address + done, mappings_words, part));
    }
}

static inline void check_words(CUdeviceptr address, size_t bytes, uint32_t seed)
{
    for (size_t done = 0; done < bytes; done += sizeof(mappings_words)) {
        const size_t left = bytes - done;
        const size_t part = left < sizeof(mappings_words) ? left : sizeof(mappings_words);
        OK(cuMemcpyDtoH(mappings_words, address + done, part));
        expect_words(part / 4, word_of(seed, done / 4), 1);
    }
}

static inline uint32_t read_word(CUdeviceptr address)
{
    uint32_t word;
    OK(cuMemcpyDtoH(&word, address, sizeof(word)));
    return word;
}

/* All words of the range. */
static inline void check_same(CUdeviceptr address, size_t bytes, uint32_t word)
{
    for (size_t done = 0; done < bytes; done += sizeof(mappings_words)) {
        const size_t left = bytes - done;
        const size_t part = left < sizeof(mappings_words) ? left : sizeof(mappings_words);
        OK(cuMemcpyDtoH(mappings_words, address + done, part));
        expect_words(part / 4, word, 0);
    }
}

/* --- launches of tools/simcuda/kernels/test_kernels.c */

static inline CUfunction kernel(const char *name)
{
    CUmodule module;
    CUfunction function;
    OK(cuModuleLoad(&module, getenv("SIM_KERNELS")));
    OK(cuModuleGetFunction(&function, module, name));
    return function;
}

static inline CUresult try_add(CUfunction add, CUdeviceptr address, size_t bytes, uint32_t value,
                               CUstream stream)
{
    struct {
        CUdeviceptr address;
        uint64_t count;
        uint32_t value;
    } args = {address, bytes / 4, value};
    void *params[] = {&args};
    return cuLaunchKernel(add, 4, 1, 1, 64, 1, 1, 0, stream, params, NULL);
}
