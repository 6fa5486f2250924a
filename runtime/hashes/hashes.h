/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Hashes of what the program has in device memory, for metashard-verify (tools/verify): written to
 * the folder METASHARD_HASHES at each mark and when the process ends, before its memory goes.
 *
 * A process whose hashes are to be compared runs twice: once as usual, and once with
 * METASHARD_HASHES_LIKE, which names the folder of the first run. Then nothing is deferred and
 * every call goes to the driver. Its hashes leave out the bytes that the first run could not read,
 * because by the plan they are other ranks'.
 *
 * Nobody can compare bytes that the program has never written, such as the padding of a tensor:
 * without the shim they are what the memory held before. So in both runs all memory begins as
 * MS_UNWRITTEN_BYTE: where the driver has allocated it; when a caching allocator hands it out,
 * after all work that is queued; and when what was never written comes into memory. A write that
 * the shim has lost shows as a difference.
 *
 * Each process has a file. Its name is the rank, if a launcher gives one, and a number for each
 * process of that rank. It is text, with tabs between fields:
 *
 *     metashard-hashes  1  PID
 *     mark    NAME
 *     thread  THREAD  BLOCKS  SEQUENCE
 *     block   KIND  THREAD  BYTES  NUMBER  ADDRESS  ERROR  HASH  LEFT_OUT  NAME
 *     done    BLOCKS
 *     end     UNFILLED
 *
 * LEFT_OUT is "-", or ranges with commas between them: 4096-8192,12288-16384. UNFILLED blocks were
 * handed out during a capture, or while work was queued that did not end in time.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "runtime/driver/driver.h"
#include "runtime/driver/flags.h"
#include "runtime/hashes/live_blocks.h"

enum { MS_UNWRITTEN_BYTE = 0xcb };

/* METASHARD_HASHES_LIKE: nothing is deferred. Immutable after ms_hashes_start. */
extern bool ms_hashes_is_reference;

/* Reads the settings, and makes this process's file. */
void ms_hashes_start(void);

/* The program has got memory from cuMemAlloc, or from a pool in the order of a stream (NULL: none).
 * */
void ms_hashes_allocated(CUdeviceptr address, size_t bytes, CUstream stream);

static inline void ms_hashes_freed(CUdeviceptr address)
{
    if (ms_is_hashed())
        ms_live_remove(MS_LIVE_WHOLE, address);
}

/* A caching allocator has handed out a part, or taken it back (size <= 0). */
void ms_hashes_part(CUdeviceptr address, int64_t size);

/*
 * Writes the hashes of all blocks. The program should do nothing else meanwhile: it waits for the
 * device. Returns NULL, or what is wrong. Without METASHARD_HASHES it does nothing.
 */
const char *ms_hashes_mark(const char *name);

/* Before a context is destroyed that has live blocks; and when it is gone. */
void ms_hashes_context_ends(CUcontext context);
