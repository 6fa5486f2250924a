/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Host memory that kernels can read: pinned, registered, mapped and managed. The host can write a
 * pointer there at any time without a call that the shim sees, so a kernel that is given such
 * memory may reach anything. It is called tracked memory.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "runtime/base/range.h"
#include "runtime/state/format.h"

/* Tracks [alias, alias + bytes), where the device reaches the memory at `address`; mostly both are
 * the same. After a range that could not be stored, every address counts as tracked. */
void ms_host_memory_add_alias(uint64_t address, uint64_t alias, size_t bytes);
static inline void ms_host_memory_add(uint64_t address, size_t bytes)
{
    ms_host_memory_add_alias(address, address, bytes);
}

/* Ends the tracking of all that was added for a first address. */
void ms_host_memory_forget(uint64_t address);

/* Ends the tracking of [address, address + bytes), and of nothing else. */
void ms_host_memory_cut(uint64_t address, size_t bytes);

/* Kernels may reach such memory without an argument: a global variable of some module is such
 * memory (MS_REASON_GLOBALS), or a copy put its address on the device (MS_REASON_UNBOUNDED). */
void ms_host_memory_add_reach(enum ms_reason why);

/* Why they may; MS_REASON_CALL: they may not. */
enum ms_reason ms_host_memory_reach(void);

bool ms_host_memory_holds(uint64_t address);

/* The addresses around this one that are not tracked; empty if it is. */
struct ms_range ms_host_memory_gap(uint64_t address);

/* True if this process can read a byte there, and so can a device that reads pageable memory. A
 * mapping without access rights cannot be read; drivers and allocators keep GiBs of them. */
bool ms_host_memory_is_readable(uint64_t address);

/* The range outside of which ms_host_memory_holds is false. */
void ms_host_memory_bounds(uint64_t *begin_out, uint64_t *end_out);
