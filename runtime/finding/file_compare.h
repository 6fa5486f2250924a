/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Compares memory of the program with a file. A copy to the device is recorded as a reference to a
 * file only if each byte is the file's. So comparing takes as long as reading the file, while the
 * program waits. Kept threads (files/kept_threads.h) share the work, one for each core and at most
 * 16:
 *
 *     bytes    | 2 MiB | 2 MiB | 2 MiB | 2 MiB | ...      each takes the next piece
 *                 file    read    read    file
 *
 * The file is read, 1 MiB at a time. With a mapping, a file that gets shorter or a disk that fails
 * could end the process (SIGBUS): a lease holds nobody up for longer than lease-break-time, while a
 * stopped process answers nobody. Mapping and pinning the pages would save little. The memory is
 * compared in place if it is of no file and the kernel has just said that it can be loaded; else
 * the kernel copies it.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "runtime/files/file.h"

/*
 * How much is compared. ALL: every byte. CACHED: every byte, and all must be in the page cache, so
 * nothing is read from a disk. SAMPLED: every byte in the page cache, and a sample of the other
 * whole parts, whose sums are kept (files/sums.h).
 */
enum ms_comparing { MS_COMPARING_ALL, MS_COMPARING_CACHED, MS_COMPARING_SAMPLED };

/* True if [address, address + bytes) equals the file from `offset` on, as far as it is compared.
 * Memory that may not be read is not touched, and counts as different. In the file thread. */
bool ms_file_compare(const struct ms_file *file, uint64_t offset, const void *address, size_t bytes,
                     enum ms_comparing compared);
