/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The table of copies and sets (moves.def): each entry that reads or writes a range of device
 * memory, with each role that the range may have. Groups runs each entry on deferred memory at odd
 * places and beyond the end, and takes its hook away; ../differential/refused.c runs all of them at
 * and beyond both ends, deferred, in memory and freed.
 */
#pragma once

#include <cuda.h>
#include <stdbool.h>
#include <stddef.h>

/* The entry under test, as a function of the type of `symbol`. */
extern void *tested;
#define TESTED(symbol) ((__typeof__(&symbol))tested)

enum move_kind {
    MOVE_DEVICE,
    MOVE_UNIFIED, /* an address that is no memory of the device would be one of the host */
    MOVE_SEALED   /* the call brings all into memory, so that it is the bounds alone that matter */
};
struct move {
    const char *symbol, *way;
    enum move_kind kind;
    CUresult (*call)(CUdeviceptr at, size_t bytes); /* touches [at, at + bytes), by `tested` */
};
extern const struct move moves[]; /* ends with a row without a symbol */

/* New other sides of a move: deferred device memory, all of which is set, host memory and an array.
 * Each has MOVES_BYTES. */
enum { MOVES_BYTES = 4 << 20 };
extern struct sides {
    CUdeviceptr other;
    unsigned char *host;
    CUarray array;
    CUstream stream; /* of what is in a stream */
    size_t failed;   /* of a batch, which of its copies */
} sides;
void moves_begin(void);
