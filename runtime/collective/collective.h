/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Collectives: what NCCL reads is materialised and what it writes is backed before it is called. NCCL works
 * later, in the order of a stream; what was prepared is resident, and stays.
 */
#ifndef METASHARD_RUNTIME_COLLECTIVE_COLLECTIVE_H
#define METASHARD_RUNTIME_COLLECTIVE_COLLECTIVE_H

#include <stdbool.h>
#include <stddef.h>

#include "runtime/driver.h"

/* What one call reads and, whole, overwrites; either may be empty, and both the same. */
struct ms_operation {
    const void *read;
    size_t read_bytes;
    void *written;
    size_t written_bytes;
};
CUresult ms_collective_prepare(const struct ms_operation *operation);

/* The call will share physical memory of [address, address + bytes): in memory, whole allocations, for good.
 * In one handle each, unless they were backed in pieces before; then *one_handle_out is false. */
CUresult ms_collective_pin(const void *address, size_t bytes, bool *one_handle_out);

#endif
