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

static inline int ms_file_open(const char *path, int flags)
{
    return (int)syscall(SYS_openat, AT_FDCWD, path, flags | O_CLOEXEC, 0);
}

static inline void ms_file_close(int descriptor)
{
    syscall(SYS_close, descriptor);
}

static inline bool ms_file_stat(int descriptor, struct stat *stat_out)
{
    return syscall(SYS_fstat, descriptor, stat_out) == 0;
}

static inline ssize_t ms_file_read(int descriptor, void *buffer, size_t bytes, uint64_t offset)
{
    return syscall(SYS_pread64, descriptor, buffer, bytes, offset);
}
