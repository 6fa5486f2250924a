/* SPDX-License-Identifier: Apache-2.0 */
/*
 * System calls with descriptors of the file thread's table (file_thread.h). Not libc's functions:
 * another preload, a sanitizer or this shim, which watch those, would think them the program's.
 */
#pragma once

#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

int ms_file_open(const char *path, int flags);

/* True if since the last call a file was not opened because there was no free descriptor. */
bool ms_file_was_short(void);

/* True if the number is within so many quarters of the process's limit. */
bool ms_file_leaves_room(int descriptor, unsigned of_four);

/*
 * Asks the file system, also where the kernel keeps attributes of files that another machine may
 * change (AT_STATX_FORCE_SYNC). Where the call does not exist, or a sandbox denies it, gets what
 * the kernel keeps.
 */
enum ms_file_told { MS_FILE_UNTOLD /* it failed */, MS_FILE_KEPT, MS_FILE_ASKED };
enum ms_file_told ms_file_stat(int descriptor, struct stat *stat_out);

/* Whether anybody has a POSIX or OFD lock on the file, also this process. */
enum ms_file_locks { MS_FILE_UNLOCKED, MS_FILE_LOCKED, MS_FILE_LOCKS_UNKNOWN };
enum ms_file_locks ms_file_ask_for_locks(int descriptor);

static inline void ms_file_close(int descriptor)
{
    syscall(SYS_close, descriptor);
}

/* What the kernel keeps. */
static inline bool ms_file_stat_cached(int descriptor, struct stat *stat_out)
{
    return syscall(SYS_fstat, descriptor, stat_out) == 0;
}

static inline ssize_t ms_file_read(int descriptor, void *buffer, size_t bytes, uint64_t offset)
{
    return syscall(SYS_pread64, descriptor, buffer, bytes, offset);
}
