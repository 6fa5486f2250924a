/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reach: which blocks can be reached through some bytes, if a kernel were given them. Every 8-byte word
 * of them, at steps of 4 bytes, is taken for a pointer.
 *
 * A kernel can know an address inside a deferred block only from its parameters, or from memory that
 * holds the address. What the program copies or sets into device memory is looked at here, and what
 * it points to is materialised whole, so no device memory ever holds the address of a deferred
 * block; what the host writes behind the driver's back is host.h.
 */
#ifndef METASHARD_RUNTIME_MACHINE_REACH_H
#define METASHARD_RUNTIME_MACHINE_REACH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "runtime/machine/space.h"

enum { MS_MAX_HITS = 64 };

struct ms_hit {
    size_t offset;
    CUdeviceptr pointer;
    struct ms_block_facts block;
};

struct ms_reach {
    struct ms_hit hits[MS_MAX_HITS];
    size_t count;
    bool everything; /* more hits than fit, or memory that the host can write */
};

/* What `bytes` bytes reach. */
void ms_reach_find(const void *bytes, size_t count, struct ms_reach *reach_out);

/* These bytes go to where kernels can read them: materialises the blocks that they reach. */
CUresult ms_reach_expose(const void *bytes, size_t count);

/* The same for a 4-byte pattern that is repeated. */
CUresult ms_reach_expose_pattern(uint32_t pattern);

/* True when the device memory of some copy held the address of host memory: then any kernel may reach
 * anything. */
bool ms_reach_is_unbounded(void);

#endif
