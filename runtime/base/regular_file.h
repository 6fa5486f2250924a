/* SPDX-License-Identifier: Apache-2.0 */
/* Opening files by names that others have chosen. */
#pragma once

#include <sys/stat.h>

/*
 * Opens a file for reading, but only if the path leads to a regular file: opening a device or a
 * pipe has side effects. Returns the descriptor, or -1 with the reason in errno; errno is 0 if the
 * path leads to something else.
 */
int ms_regular_file_open(const char *path, struct stat *stat_out);
