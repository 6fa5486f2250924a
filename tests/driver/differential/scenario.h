/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shared by the scenario programs: PROGRAM KERNELS SCENARIO FILE runs one scenario, which prints
 * what it observes; scenarios.py runs it without and with the shim. FILE is where a scenario may
 * make a file.
 */
#pragma once

#include <cuda.h>
#include <stddef.h>
#include <stdint.h>

#define MIB ((size_t)1 << 20)

/* A call that must succeed. */
void scenario_check(CUresult result, const char *call, int line);
#define OK(call) scenario_check(call, #call, __LINE__)

CUdeviceptr allocate(size_t bytes);

/* Reads the bytes and prints the result and their hash. */
void print_bytes(const char *name, CUdeviceptr address, size_t bytes);

/* Prints a hash of host memory. */
void print_host(const char *name, const void *bytes, size_t count);

/* A kernel of tools/simcuda/kernels/test_kernels.c. */
CUfunction function(const char *name);
void unload_kernels(void);

/* Launches of fill32 and uniform32. */
void fill(CUdeviceptr address, uint32_t value, uint64_t count);
void uniform(CUdeviceptr address, uint64_t count, uint64_t seed);

/* The same of add_in_place32, copy32, send32 (copies from back to front, and has `from` first) and
 * gather32 (to[i] = *from[i]), in a stream. */
CUresult try_add(CUdeviceptr address, uint32_t value, uint64_t count, CUstream stream);
void copy_words(CUdeviceptr to, CUdeviceptr from, uint64_t count, CUstream stream);
void send_words(CUdeviceptr from, CUdeviceptr to, uint64_t count, CUstream stream);
void gather_words(CUdeviceptr to, CUdeviceptr table, uint64_t count, CUstream stream);

CUstream make_stream(void); /* one that does not block with the legacy stream */

/* The stream stands still until let_go; one at a time. */
void hold(CUstream stream);
void let_go(void);

/* As a caching allocator tells of its blocks: of one that goes back, with -bytes. Where libc10 is
 * not, the shim alone listens. */
void report(CUdeviceptr block, int64_t bytes);

/* Calls `then` while another thread captures a stream, in a mode that leaves this thread alone. */
void beside_capture(void (*then)(CUdeviceptr), CUdeviceptr block);

/* The path of FILE. */
const char *scenario_file(void);

/* A file of distinct bytes, mapped. Each call makes it anew. */
void *map_file(size_t bytes);

/* A new block that was loaded from a mapped file of distinct bytes; and other bytes for that
 * file. */
CUdeviceptr load_file(size_t bytes);
void overwrite_file(size_t bytes);

/* The same without a call of libc that the shim would see, as another process does it. */
void overwrite_file_unseen(size_t bytes);

/* SCENARIO(name) { ... } registers itself. */
struct scenario {
    const char *name;
    void (*run)(void);
    struct scenario *next;
};
void scenario_register(struct scenario *scenario);

#define SCENARIO(scenario_name)                                                                  \
    static void run_##scenario_name(void);                                                       \
    static struct scenario record_##scenario_name = {#scenario_name, run_##scenario_name, NULL}; \
    __attribute__((constructor)) static void register_##scenario_name(void)                      \
    {                                                                                            \
        scenario_register(&record_##scenario_name);                                              \
    }                                                                                            \
    static void run_##scenario_name(void)
