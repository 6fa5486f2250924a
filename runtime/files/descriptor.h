/* SPDX-License-Identifier: Apache-2.0 */
/*
 * System calls with descriptors of the file thread's table (file_thread.h). Not libc's functions:
 * another preload, a sanitizer or this shim watches those, and would take the calls for the
 * program's.
 */
#pragma once

#include <fcntl.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

int ms_descriptor_open(const char *path, int flags);

/* True if, since the last call, a file could not be opened because no descriptor was free. */
extern _Atomic bool ms_descriptor_is_short;
static inline bool ms_descriptor_was_short(void)
{
    return atomic_exchange(&ms_descriptor_is_short, false);
}

/* True if the descriptor's number is within `of_four` quarters of the process's limit. */
bool ms_descriptor_leaves_room(int descriptor, unsigned of_four);

/*
 * Asks the file system, even where the kernel keeps attributes of files that another machine may
 * change (AT_STATX_FORCE_SYNC). If the call does not exist, or a sandbox denies it, gets the
 * attributes that the kernel keeps.
 */
enum ms_descriptor_told {
    MS_DESCRIPTOR_UNTOLD /* it failed */,
    MS_DESCRIPTOR_KEPT,
    MS_DESCRIPTOR_ASKED
};
enum ms_descriptor_told ms_descriptor_stat(int descriptor, struct stat *stat_out);

/* Whether anybody has a POSIX or OFD lock on the file, also this process. */
enum ms_descriptor_locks {
    MS_DESCRIPTOR_UNLOCKED,
    MS_DESCRIPTOR_LOCKED,
    MS_DESCRIPTOR_LOCKS_UNKNOWN
};
enum ms_descriptor_locks ms_descriptor_ask_for_locks(int descriptor);

static inline void ms_descriptor_close(int descriptor)
{
    syscall(SYS_close, descriptor);
}

/* Sets what the kernel reads beside the requested bytes: nothing (POSIX_FADV_RANDOM), or the bytes
 * that follow (POSIX_FADV_SEQUENTIAL). */
static inline void ms_descriptor_read_ahead(int descriptor, int advice)
{
    syscall(SYS_fadvise64, descriptor, 0L, 0L, advice);
}

/* Gets the attributes that the kernel keeps. */
static inline bool ms_descriptor_stat_cached(int descriptor, struct stat *stat_out)
{
    return syscall(SYS_fstat, descriptor, stat_out) == 0;
}

static inline ssize_t ms_descriptor_read(int descriptor, void *buffer, size_t bytes,
                                         uint64_t offset)
{
    return syscall(SYS_pread64, descriptor, buffer, bytes, offset);
}
