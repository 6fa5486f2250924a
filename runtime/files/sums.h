/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checksums of bytes that the program has copied to a device and that are taken for bytes of a
 * file, though most were not compared: nobody has seen the program read them, and the file is not
 * in the page cache (finding/uring.h).
 *
 *     file     | part | part | part | part | ...      each 64 KiB, at multiples of that
 *                  |      |      `- seen: its bytes were read since, and had this sum
 *                  |      `- sum of the copied bytes
 *                  `- none: the part was compared, or not copied
 *
 * A part that has a sum is checked when its bytes are first read (ms_source_read_check). If the
 * sums differ, the read fails: the program had changed its copy of the bytes.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "runtime/files/file.h"

enum { MS_SUMS_PART = 64 << 10 };

/* The sum of a whole part, as it is kept; never 0. */
uint64_t ms_sums_make(const void *part);

/* Returns the sum of the part with this number, or 0. *is_seen_out: the part was checked. */
uint64_t ms_sums_get(const struct ms_file *file, uint64_t number, bool *is_seen_out);

/* Keeps sums for the parts from first_number on. Skips a sum that is 0, and a part that has one.
 * False if out of memory. In the file thread. */
bool ms_sums_add(struct ms_file *file, uint64_t first_number, const uint64_t *sums, size_t count);

void ms_sums_set_seen(const struct ms_file *file, uint64_t number);

/* True if any part of the file has a sum. */
bool ms_sums_any(const struct ms_file *file);

void ms_sums_cleanup(struct ms_file *file);
