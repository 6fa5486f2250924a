/* SPDX-License-Identifier: Apache-2.0 */
/* Opening files by names that others have chosen. */
#pragma once

#include <sys/stat.h>

/*
 * Opens a file for reading. Looks at what the path leads to first, and opens that only if it is a
 * regular file: opening a device or a pipe has side effects. Returns the descriptor, or -1 with the
 * reason in errno: 0 if it is something else than a file.
 */
int ms_regular_file_open(const char *path, struct stat *stat_out);
