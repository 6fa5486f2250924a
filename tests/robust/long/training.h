/* SPDX-License-Identifier: Apache-2.0 */
/*
 * training FOLDER KERNELS TORCH_KERNELS [TORCH_FILE]: a program that trains, saves and loads until
 * its standard input ends, and holds nothing from one round to the next.
 *
 * Two workers make rounds of all that such a program does with memory (training.c), and compare
 * each byte that they read with what it must be. After each EPOCH rounds both have freed what they
 * had. If a line has come on standard input by then, the program prints "rounds N bytes B" (bytes
 * compared) and waits for another line, while it is looked at from outside (run). The first wrong
 * byte ends it with a line.
 *
 * Files: training.c (workers, rounds), checkpoint.c (the file of a worker), memory.c (other ways to
 * get memory).
 */
#pragma once

#include <cuda.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { TENSORS = 4, ROWS = 64, STREAMS = 3, WORKERS = 2, EPOCH = 8 };

struct worker {
    unsigned index;
    unsigned long round;
    uint64_t random;
    CUstream streams[STREAMS];
    CUevent event;
    char path[160];              /* of its checkpoint */
    uint32_t *truth;             /* all words of it */
    void *pinned;                /* as large */
    CUdeviceptr shards[TENSORS]; /* the first rows of even tensors, columns of odd ones */
    uint32_t *expected[TENSORS]; /* their words */
    CUdeviceptr moments[2], bias, arena;
    unsigned char *torch_bytes; /* of the file of torch.save */
    size_t torch_count;
};

extern CUcontext context;
extern CUmodule kernels, torch;
extern const char *folder, *kernels_path;
extern _Atomic uint64_t compared_bytes;

__attribute__((noreturn, format(printf, 1, 2))) void fail(const char *format, ...);
void check(CUresult result, const char *what);
#define OK(call) check(call, #call)
/* Ends the process where they differ. */
void compare(const char *what, const void *seen, const void *wanted, size_t bytes);
uint32_t draw(struct worker *worker);
CUdeviceptr allocate(size_t bytes);
void launch(CUmodule module, const char *name, void **params, CUstream stream);
/* Adds to each word, and to those of the host. */
void add(CUdeviceptr at, uint32_t *words, size_t count, uint32_t value, CUstream stream);
/* Copies to the host, and compares. */
void read_back(struct worker *worker, const char *what, CUdeviceptr at, const void *wanted,
               size_t bytes, CUstream stream);

/* --- checkpoint.c */

static inline size_t columns_of(int tensor)
{
    return 512 + 64 * (size_t)tensor;
}
static inline size_t words_of(int tensor)
{
    return ROWS * columns_of(tensor);
}
/* Where it begins in the data. */
size_t place_of(int tensor);
size_t checkpoint_words(void);
/* The file mapped, and where its data begins. */
struct mapped {
    unsigned char *at;
    size_t bytes, data;
};
struct mapped checkpoint_map(const char *path);
void checkpoint_unmap(struct mapped mapped);
void checkpoint_make(struct worker *worker);
/* Writes `truth`: under a new name, over the old file, or into it. */
void checkpoint_save(struct worker *worker);
/* A file of torch.save, written again, copied to the device and back. */
void torch_round(struct worker *worker);

/* --- memory.c: one round of each; nothing is left */

void memory_small(struct worker *worker);
void memory_mapped(struct worker *worker);
void memory_reported(struct worker *worker);
void memory_graph(struct worker *worker, int tensor, CUstream stream);
void memory_module(struct worker *worker);
void memory_thread(struct worker *worker);
void memory_plan(struct worker *worker);
