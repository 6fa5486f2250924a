/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finds which blocks a kernel could reach if it were given some bytes. Any 8 bytes that hold a far
 * address (addresses.h) count as a pointer, wherever they begin; for low addresses, only words
 * where a pointer can lie.
 *
 * A kernel can know an address in a deferred block only from its parameters, or from memory that
 * holds the address. What the program copies or sets into device memory is scanned here, and what
 * it points to is materialised whole. So no device memory ever holds the address of a deferred
 * block. host_memory.h covers what the host writes without a call; docs/limits.md says what is not
 * seen.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "runtime/base/range.h"
#include "runtime/base/strided_copy.h"
#include "runtime/kernel/call.h"
#include "runtime/memory/space.h"

enum { MS_MAX_HITS = 64 };

struct ms_pointer_scan {
    struct ms_pointed hits[MS_MAX_HITS]; /* ascending; from the 33rd on, each of another block */
    size_t count;
    bool everything; /* more hits than fit, or memory that the host can write */
};

/* True if the word at this offset in the packed parameters may be a pointer. */
bool ms_pointer_scan_is_possible(const struct ms_arguments *arguments, size_t at, uint64_t word);

/* Finds what the parameters reach. */
void ms_pointer_scan_find(const struct ms_arguments *arguments, struct ms_pointer_scan *reach_out);

/* These bytes become readable for kernels: materialises the blocks that they reach. */
CUresult ms_pointer_scan_expose(const void *bytes, size_t count);

CUresult ms_pointer_scan_expose_rows(const struct ms_rows *rows);

/* The same for bytes that are copied to host memory now, and so are in the processor's caches. */
CUresult ms_pointer_scan_copy(void *to, const void *bytes, size_t count);

/* The same for bytes that are not known: materialises everything. */
CUresult ms_pointer_scan_expose_all(void);

/* False if the bytes may hold a part of an address that could be exposed. Takes no lock. */
bool ms_pointer_scan_is_clean(const void *bytes, size_t count);

/* As ms_pointer_scan_expose, for a repeated 4-byte pattern. */
CUresult ms_pointer_scan_expose_pattern(uint32_t pattern);

/* True if a copy put an address of host memory on the device: any kernel may reach anything. */
bool ms_pointer_scan_is_unbounded(void);
