/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finds which blocks a kernel could reach if it were given some bytes. Any 8 bytes that hold a far
 * address (far_address.h) count as a pointer, wherever they begin; low addresses count only where a
 * pointer can lie.
 *
 * A kernel can know an address in a deferred block only from its parameters, or from memory that
 * holds the address. payload.h scans the bytes that the program copies or sets into device memory,
 * and the shim materialises the whole blocks that these bytes point to. So no device memory ever
 * holds the address of a deferred block. host_memory.h covers writes of the host without a call;
 * docs/limits.md lists the gaps.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "runtime/base/range.h"
#include "runtime/calls/host_memory.h"
#include "runtime/calls/word_scan.h"
#include "runtime/kernel/call.h"
#include "runtime/memory/space.h"

enum { MS_MAX_HITS = 64 };

struct ms_pointer_scan {
    struct ms_pointed hits[MS_MAX_HITS]; /* ascending; from the 33rd on, each of another block */
    size_t count;
    bool everything; /* more hits than fit, or a pointer to tracked memory */
};

/* True if the word at this offset in the packed parameters may be a pointer. */
bool ms_pointer_scan_is_possible(const struct ms_arguments *arguments, size_t at, uint64_t word);

/* Finds the blocks that the parameters reach. */
void ms_pointer_scan_find(const struct ms_arguments *arguments, struct ms_pointer_scan *reach_out);

/* Only words in these ranges mean anything: addresses of blocks, and of tracked memory. */
enum { MS_WORD_HOST = MS_BOUNDS };
_Static_assert(MS_WORD_HOST + 1 == MS_WORD_WINDOWS, "a window for each");

static inline void ms_pointer_scan_bounds(struct ms_range bounds_out[MS_WORD_WINDOWS])
{
    struct ms_range *host = &bounds_out[MS_WORD_HOST];
    ms_space_bounds(bounds_out);
    ms_host_memory_bounds(&host->begin, &host->end);
}
