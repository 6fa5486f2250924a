/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the program has in device memory, as it asked for it: allocations, and the parts that a
 * caching allocator reports. A block has the same name in each run of a program that
 * asks for the same sizes in the same order: the thread, the size, and how many of that size the
 * thread had made before. Threads are numbered as they make their first block.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "runtime/driver/driver.h"

enum ms_live_kind { MS_LIVE_WHOLE, MS_LIVE_PART };

struct ms_live_block {
    CUdeviceptr address; /* the key */
    size_t bytes;
    CUcontext context;
    enum ms_live_kind kind;
    bool is_carved;  /* a whole of which parts were reported: they count, and it does not */
    uint32_t thread; /* this and the rest: its name */
    uint32_t number;
    char label[80]; /* what the program calls it; or "" */
};

/* A new block. Parts replace the parts that they overlap. */
void ms_live_add(enum ms_live_kind kind, CUdeviceptr address, size_t bytes);

/* The block that begins there is gone: a whole with all parts in it. */
void ms_live_remove(enum ms_live_kind kind, CUdeviceptr address);

/* The program says what the block is called that begins there; cut to fit. */
void ms_live_set_label(CUdeviceptr address, const char *label);

/* What was in a context that was destroyed is gone. */
void ms_live_forget(CUcontext context);
bool ms_live_has(CUcontext context);

/* Compares two names: kind, thread, bytes and number. */
int ms_live_compare(const struct ms_live_block *left, const struct ms_live_block *right);

/* A copy of what counts, in the order of their names, for ms_heap_free. False:
 * out of memory. */
bool ms_live_copy(struct ms_live_block **blocks_out, size_t *count_out);

/* The number of blocks that a thread has made, and a hash of the sequence of their sizes. False:
 * there is no such thread. */
struct ms_live_thread {
    uint64_t count, sequence;
};
bool ms_live_thread(uint32_t thread, struct ms_live_thread *thread_out);
