/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One scenario for each entry point: a small program whose observations need the shim's function
 * for that entry. The entry is reached through dlsym, all other calls by direct linkage, so that
 * taking the one hook away (unhook.c) leaves the rest as it is. groups.py runs them.
 */
#pragma once

/* Exported names are wanted, not the ones that cuda.h maps them to. */
#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/driver/groups/moves.h"
#include "tools/simcuda/driver/newer.h"

#define MIB ((size_t)1 << 20)

/* A call that must succeed, and one whose result is observed. */
void must(CUresult result, const char *call, int line);
#define MUST(call) must(call, #call, __LINE__)
void seen(const char *what, CUresult result);
#define SEEN(call) seen(#call, call)

void print_host(const char *what, const void *bytes, size_t count);
void print_device(const char *what, CUdeviceptr address, size_t bytes);

enum { BLOCK_BYTES = 8 << 20 };

/* A block of which every byte is known and nothing is in memory. */
CUdeviceptr make_block(unsigned seed);
CUdeviceptr make_block_of(size_t bytes, unsigned seed);

/* Distinct bytes of the heap. */
unsigned char *make_bytes(size_t count, unsigned seed);

CUfunction find_kernel(const char *name);
CUmodule get_module(void);

/* out[i] = *table[i] by a kernel, printed; the launch knows no more than the table's address. */
void print_gathered(CUdeviceptr table, uint64_t count);

struct scenario {
    const char *symbol; /* with a name behind a colon, when the entry has another scenario */
    void (*run)(void);
    const char *with; /* other entries that would do the same, taken away with it; or NULL */
};

/* Two rows: of an entry, and of its twin for the per-thread default stream. */
#define TWINS_PTDS(symbol, name, run)  \
    {symbol name, run, NULL},          \
    {                                  \
        symbol "_ptds" name, run, NULL \
    }
#define TWINS_PTSZ(symbol, name, run)  \
    {symbol name, run, NULL},          \
    {                                  \
        symbol "_ptsz" name, run, NULL \
    }

/* By chapter; each ends with a row without a symbol. */
extern const struct scenario memory_scenarios[], launch_scenarios[], stream_scenarios[],
    hidden_scenarios[], device_scenarios[], mapping_scenarios[];

/* The scenario of an entry of moves.def: the rows of one symbol, beginning with the first. */
void run_moves(const struct move *first);
