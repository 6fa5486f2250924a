/* SPDX-License-Identifier: Apache-2.0 */
/* Opening files by names that others have chosen, and telling them apart. */
#pragma once

#include <stdbool.h>
#include <sys/stat.h>

/* True if the attributes are those of one file that nobody has written in between. */
static inline bool ms_regular_file_is_same(const struct stat *a, const struct stat *b)
{
    return a->st_ino == b->st_ino && a->st_dev == b->st_dev && a->st_size == b->st_size &&
           a->st_mtim.tv_sec == b->st_mtim.tv_sec && a->st_mtim.tv_nsec == b->st_mtim.tv_nsec;
}

/*
 * Opens a file for reading, but only if the path leads to a regular file: opening a device or a
 * pipe has side effects. Returns the descriptor, or -1 with the reason in errno; errno is 0 if the
 * path leads to something else.
 */
int ms_regular_file_open(const char *path, struct stat *stat_out);
