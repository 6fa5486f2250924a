/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files that the program reads past the page cache (O_DIRECT). Only the disk has the bytes to
 * compare a copy with. So the shim looks at such a file before the program reads it, and again when
 * the program copies the bytes:
 *
 *     recorded ----- read ----- copied ----- used
 *        |                         `--------------  the file is a source (files/trust.h)
 *        `- it could be one, and had the same times as when it is copied
 *
 * The program has read the file's bytes if both looks find the same times; a checksum tells whether
 * the memory has changed since (reads.h). Between the two looks there is no lease, and the file is
 * open for half a second after a read (files/kept_files.h): a file that is read and not copied is
 * in nobody's way.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "runtime/files/file.h"

/*
 * Called before the program reads from the descriptor. Returns a number for the file as it is now,
 * if the descriptor reads past the page cache and the file can be trusted. Otherwise 0, also in a
 * handler that has interrupted the shim, and where stores do not show in the times. The last 64
 * files are known.
 */
uint32_t ms_held_files_hold(int descriptor);

/* True if the source's file has that number, and the last check found it unchanged since. For any
 * thread. */
bool ms_held_files_has(uint32_t number, const struct ms_file *file);
