/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files that the program reads past the page cache (O_DIRECT). When it copies from there, the bytes
 * are nowhere to be compared with but on the disk. So the shim looks at such a file before it is
 * read, and again when bytes are copied from there:
 *
 *     recorded ----- read ----- copied ----- used
 *        |                         `--------------  the file is a source (trust.h)
 *        `- it could be one, and had the same times as when it is copied
 *
 * Then what was read is the file's, as long as nobody changes the memory. A checksum of it tells
 * (reads.h). Between the two looks nothing is open, and there is no lease: a file of which nothing
 * is copied is in nobody's way.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "runtime/source/source.h"

/*
 * Before the program reads from the descriptor: if it reads past the page cache, and the file can
 * be trusted, returns a number for the file as it is now. Otherwise 0, also in a handler that has
 * interrupted the shim, and where stores do not show in the times. The last 64 files are known.
 */
uint32_t ms_held_files_hold(int descriptor);

/* True if the source is the file that has that number, and unchanged since, as it was looked at
 * last. For any thread. */
bool ms_held_files_has(uint32_t number, const struct ms_source *file);
