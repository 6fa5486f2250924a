/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A file's bytes as they are now: nothing says that these are the bytes that were copied. Who needs
 * that, checks the file after the read (trust.h), or reads by loading/source_read.h. In the file
 * thread and the threads that it starts; failures are returned, not logged.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "runtime/files/file.h"

/* Reads as pread does, by any descriptor of the file; reads the copy instead, once there is one
 * (ms_change_keep). */
ssize_t ms_file_read_by(const struct ms_file *file, int descriptor, void *buffer, size_t bytes,
                        uint64_t offset);

/* Reads all bytes of the range. */
bool ms_file_read_now(const struct ms_file *file, uint64_t offset, void *buffer, size_t bytes,
                      struct ms_file_failure *failure_out);

/* Says why bytes are missing; `error` is the errno of the read, 0 at the end of the file. Reports a
 * file that has become shorter as changed: that says more than that bytes are missing. */
void ms_file_read_explain(const struct ms_file *file, uint64_t offset, size_t bytes, int error,
                          struct ms_file_failure *failure_out);
