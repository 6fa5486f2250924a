/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files that the program reads past the page cache (O_DIRECT). When it copies from there, the bytes
 * are nowhere to be compared with but on the disk. So such a file becomes a source before it is
 * read, and stays one:
 *
 *     held ----- read ----- copied ----- used      the file is trusted all the time (trust.h)
 *
 * Then what was read is the file's, as long as nobody changes the memory. A checksum of it tells
 * (reads.h).
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "runtime/source/source.h"

/*
 * Before the program reads from the descriptor: if it reads past the page cache, and the file can
 * be trusted, returns a number for the file as it is held from now on. Otherwise 0, also in a
 * handler that has interrupted the shim. The last 64 files are held.
 */
uint32_t ms_held_files_hold(int descriptor);

/* True if the source has been held by that number ever since. For any thread. */
bool ms_held_files_has(uint32_t number, const struct ms_source *file);
