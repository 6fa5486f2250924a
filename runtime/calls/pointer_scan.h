/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reach: which blocks can be reached through some bytes, if a kernel were given them. Every 8 bytes that hold a far
 * address (addresses.h) are taken for a pointer, wherever they begin; of low addresses only the words where a pointer
 * can lie.
 *
 * A kernel can know an address inside a deferred block only from its parameters, or from memory that
 * holds the address. What the program copies or sets into device memory is looked at here, and what
 * it points to is materialised whole, so no device memory ever holds the address of a deferred
 * block; what the host writes behind the driver's back is host_memory.h. docs/limits.md has what is not seen.
 */
#ifndef METASHARD_RUNTIME_CALLS_POINTER_SCAN_H
#define METASHARD_RUNTIME_CALLS_POINTER_SCAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "runtime/base/range.h"
#include "runtime/kernel/call.h"
#include "runtime/memory/allocations.h"

enum { MS_MAX_HITS = 64 };

struct ms_hit {
    size_t offset;
    CUdeviceptr pointer;
    struct ms_allocation_facts block;
};

struct ms_pointer_scan {
    struct ms_hit hits[MS_MAX_HITS]; /* ascending */
    size_t count;
    bool everything; /* more hits than fit, or memory that the host can write */
};

/* What a launch is given. */
struct ms_arguments {
    const struct ms_param_layout *layout;
    const struct ms_packed *packed;
    struct ms_range numbers; /* of packed, where no pointer lies; may be empty */
};

/* Whether the word at this offset, inside of the packed parameters, may be a pointer. */
bool ms_pointer_scan_is_possible(const struct ms_arguments *arguments, size_t at, uint64_t word);

/* What the parameters reach. */
void ms_pointer_scan_find(const struct ms_arguments *arguments, struct ms_pointer_scan *reach_out);

/* These bytes go to where kernels can read them: materialises the blocks that they reach. */
CUresult ms_pointer_scan_expose(const void *bytes, size_t count);

/* The same for a 4-byte pattern that is repeated. */
CUresult ms_pointer_scan_expose_pattern(uint32_t pattern);

/* True when the device memory of some copy held the address of host memory: then any kernel may reach
 * anything. */
bool ms_pointer_scan_is_unbounded(void);

#endif
