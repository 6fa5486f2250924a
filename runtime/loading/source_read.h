/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads the bytes that were copied, of a file or a snapshot: a file that may have other bytes by
 * now is not read. Every read of a file is followed by all checks, in this order, since a write
 * before the read shows in what is checked after it:
 *
 *     read ------> sums (files/sums.h) ------> times and size ------> mappings (files/trust.h)
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "runtime/driver/driver.h"
#include "runtime/files/file.h"
#include "runtime/files/source.h"

/*
 * Reads the source's bytes [offset, offset + bytes) into buffer. A snapshot's bytes are in memory:
 * *bytes_out points at them, and buffer is untouched. Fails with CUDA_ERROR_OPERATING_SYSTEM if the
 * file has changed or cannot be read; the reason is logged. With bytes_out NULL, for files only,
 * failures are not logged: the caller only guesses what is in the file.
 */
CUresult ms_source_read(const struct ms_source *source, uint64_t offset, void *buffer, size_t bytes,
                        const void **bytes_out);

/* True if a file's bytes are certainly unchanged; for a snapshot, always. */
bool ms_source_read_is_current(const struct ms_source *source);

/*
 * Checks `bytes`, which were read from `offset` on, against sums of the copied bytes. False if a
 * sample mistook other bytes for these (files/sums.h). Reads the rest of each part of which
 * the range has only a piece. In the file thread and the threads that it starts.
 */
bool ms_source_read_check(const struct ms_file *file, uint64_t offset, const void *bytes,
                          size_t count, struct ms_file_failure *failure_out);

/* Logs one line. Not in the file thread. */
void ms_source_read_log_failure(const struct ms_file_failure *failure);
