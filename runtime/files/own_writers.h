/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Descriptors of this process by which the program can write to a file, perhaps opened by a call
 * that the shim did not see. A file with one is not trusted. Later opens for writing are
 * intercepted (calls/file_writes.h), so a file without one is looked at once; a file with a lease
 * has none.
 */
#pragma once

#include <stdbool.h>

#include "runtime/files/file.h"

/* True if the calling thread has the file open for writing, or this is unknown. For threads of the
 * program. */
bool ms_own_writers_any(struct ms_file *file);
