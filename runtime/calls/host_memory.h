/* SPDX-License-Identifier: Apache-2.0 */
/* Tracked memory: host memory that kernels can read (pinned, registered, mapped and managed). The
 * host can write a pointer there at any time without a call that the shim sees, so a kernel that
 * gets such memory may reach anything. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "runtime/base/range.h"
#include "runtime/state/format.h"

/* Tracks [alias, alias + bytes), where the device reaches the memory at `address`; the two are
 * mostly equal. Once a range cannot be stored, every address counts as tracked. */
void ms_host_memory_add_alias(uint64_t address, uint64_t alias, size_t bytes);
static inline void ms_host_memory_add(uint64_t address, size_t bytes)
{
    ms_host_memory_add_alias(address, address, bytes);
}

/* Ends the tracking of all ranges that were added for this `address`. */
void ms_host_memory_forget(uint64_t address);

/* Ends the tracking of [address, address + bytes), and of nothing else. */
void ms_host_memory_cut(uint64_t address, size_t bytes);

/* Kernels may reach tracked memory without an argument: a global variable of some module is tracked
 * memory (MS_REASON_GLOBALS), or a copy put an address of such memory on the device
 * (MS_REASON_UNBOUNDED). */
void ms_host_memory_add_reach(enum ms_reason why);

/* Why kernels may reach tracked memory without an argument; MS_REASON_CALL: they may not. */
enum ms_reason ms_host_memory_reach(void);

bool ms_host_memory_holds(uint64_t address);

/* The untracked gap around an address; empty if the address is tracked. */
struct ms_range ms_host_memory_gap(uint64_t address);

/* True if this process, and so a device that reads pageable memory, can read a byte at the address.
 * False for a mapping without access rights, of which drivers and allocators keep GiBs. */
bool ms_host_memory_is_readable(uint64_t address);

/* The range outside of which ms_host_memory_holds is false. */
void ms_host_memory_bounds(uint64_t *begin_out, uint64_t *end_out);
