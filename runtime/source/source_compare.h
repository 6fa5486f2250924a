/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Comparing memory of the program with a file. What a loader has read and copies to the device is a
 * reference to its file only if each byte is the file's, so this takes as long as reading the file,
 * while the program waits. Threads that are kept (kept_threads.h) share the work, one for each core
 * and at most 16:
 *
 *     bytes    | 2 MiB | 2 MiB | 2 MiB | 2 MiB | ...      each takes the next piece
 *                 file    read    read    file
 *
 * The file is read, 1 MiB at a time: a mapping would let who makes the file shorter, or a disk that
 * fails, end the process (SIGBUS), and to map it takes as long. The memory is compared where it
 * lies, if it is of no file and the kernel has just said that it can be loaded; else the kernel
 * copies it.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "runtime/source/source.h"

/*
 * What of a file is compared: all of it; all, and all of it must be in the page cache, so nothing
 * is read from a disk; or what is in the page cache, and of whole parts of the rest a sample: then
 * sums of these are kept (source_sums.h).
 */
enum ms_comparing { MS_COMPARING_ALL, MS_COMPARING_CACHED, MS_COMPARING_SAMPLED };

/* True if [address, address + bytes) holds what the file holds from offset on, as far as it is
 * compared. Memory that may not be read is not touched, and not the same. In the file thread. */
bool ms_source_compare(const struct ms_source *file, uint64_t offset, const void *address,
                       size_t bytes, enum ms_comparing compared);
