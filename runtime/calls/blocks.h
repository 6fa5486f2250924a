/* SPDX-License-Identifier: Apache-2.0 */
/* Blocks: a caching allocator reports the parts of allocations that it hands out and takes back.
 * The content of a returned block is dead at once. Its memory goes only after a wait for the device
 * (evict.c), because queued work may still use it. */
#pragma once

#include <stdint.h>

#include "runtime/driver/driver.h"

/*
 * A caching allocator has handed out a block of so many bytes, a part of an allocation; or, if
 * bytes is not above 0, it has taken back the block that begins at the address. The first block
 * makes the allocation carved: its blocks are units of their own, and bytes in no block are dead.
 * Queued work may still use a block that was taken back. Does nothing if the address lies in no
 * allocation.
 */
void ms_block_report(CUdeviceptr address, int64_t bytes);
