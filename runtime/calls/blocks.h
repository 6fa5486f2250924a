/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Blocks: what a caching allocator reports about the parts that it hands out. A freed block's
 * content is dead at once, but its memory is not: queued work may still use it. So the memory is
 * freed only after a wait for the device (evict.c).
 */
#pragma once

#include <stdint.h>

#include "runtime/driver/driver.h"

/*
 * A caching allocator has handed out a block of so many bytes, a part of an allocation; or, if
 * bytes is not above 0, it has taken back the block that begins there. The first block makes the
 * allocation carved: its blocks are units of their own, and bytes in no block are dead. Queued work
 * may still use a block that was taken back. Does nothing if the shim owns no allocation there.
 */
void ms_block_report(CUdeviceptr address, int64_t bytes);
