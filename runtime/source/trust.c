/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/source/trust.h"

#include <errno.h>
#include <linux/magic.h>
#include <stdatomic.h>
#include <sys/statfs.h>

#include "runtime/source/descriptor.h"
#include "runtime/source/file_thread.h"

#ifndef F_SEAL_WRITE
#define F_SEAL_WRITE 0x0008
#endif

#define SECOND_NS INT64_C(1000000000)
static const int64_t tick_ns = SECOND_NS / 50, coarse_tick_ns = 2 * SECOND_NS + SECOND_NS / 10;

/* Set before the program can have mapped anything. */
static struct timespec began;

__attribute__((constructor)) static void note_beginning(void)
{
    clock_gettime(CLOCK_REALTIME_COARSE, &began);
}

/* --- times */

static bool same_time(struct timespec a, struct timespec b)
{
    return a.tv_sec == b.tv_sec && a.tv_nsec == b.tv_nsec;
}

static int64_t age_ns(const struct timespec *now, struct timespec then)
{
    return (now->tv_sec - then.tv_sec) * SECOND_NS + (now->tv_nsec - then.tv_nsec);
}

bool ms_trust_is_unwritten(const struct stat *then, const struct stat *now)
{
    return then->st_size == now->st_size && same_time(then->st_mtim, now->st_mtim);
}

/* The change time shows a modification time that was set back. Another link count (unlink) is the
 * one innocent reason for a new change time. */
bool ms_trust_is_unchanged(const struct stat *then, const struct stat *now)
{
    return then->st_dev == now->st_dev && then->st_ino == now->st_ino &&
           ms_trust_is_unwritten(then, now) &&
           (same_time(then->st_ctim, now->st_ctim) || then->st_nlink != now->st_nlink);
}

static bool is_coarse(const struct stat *stat)
{
    return stat->st_mtim.tv_nsec == 0 && stat->st_ctim.tv_nsec == 0;
}

/* A modification time may be set to any time, also a future one; a change time in the future is
 * from another machine's clock. */
bool ms_trust_is_settled(const struct stat *stat, const struct timespec *now)
{
    const int64_t tick = is_coarse(stat) ? coarse_tick_ns : tick_ns;
    const int64_t modified = age_ns(now, stat->st_mtim);
    return age_ns(now, stat->st_ctim) > tick && (modified > tick || modified < -tick);
}

/* Times that do not change for a tick are as good as older ones, whichever clock they are from. */
bool ms_trust_wait(int descriptor, struct stat *stat)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (ms_trust_is_settled(stat, &now))
        return true;
    for (int attempt = 0; attempt < 5 && !is_coarse(stat); attempt++) {
        const struct stat before = *stat;
        nanosleep(&(struct timespec){.tv_nsec = tick_ns}, NULL);
        if (!ms_file_stat(descriptor, stat))
            return false;
        if (same_time(before.st_mtim, stat->st_mtim) && same_time(before.st_ctim, stat->st_ctim))
            return true;
    }
    return false;
}

/* --- others */

enum answer { NO, YES, UNKNOWN };

/* Unlike F_GETLK, this also finds this process's own locks. */
static enum answer ask_for_locks(int descriptor)
{
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    if (syscall(SYS_fcntl, descriptor, F_OFD_GETLK, &lock) != 0)
        return UNKNOWN;
    return lock.l_type != F_UNLCK ? YES : NO;
}

bool ms_trust_is_locked(int descriptor)
{
    return ask_for_locks(descriptor) != NO;
}

/* True if it has the flags that ms_mapping_open sets. A descriptor that dup2 put there has not. */
static bool is_ours(int descriptor)
{
    return (syscall(SYS_fcntl, descriptor, F_GETFD) & FD_CLOEXEC) != 0 &&
           (syscall(SYS_fcntl, descriptor, F_GETFL) & O_NONBLOCK) != 0;
}

void ms_trust_close(int descriptor)
{
    if (ms_file_thread_has_own_table() || (is_ours(descriptor) && !ms_trust_is_locked(descriptor)))
        ms_file_close(descriptor);
}

#ifndef ZFS_SUPER_MAGIC
#define ZFS_SUPER_MAGIC 0x2fc12fc1 /* OpenZFS, zfs_super.c */
#endif

bool ms_trust_is_local_type(uint32_t type)
{
    static const uint32_t local[] = {
        EXT4_SUPER_MAGIC,      XFS_SUPER_MAGIC,      BTRFS_SUPER_MAGIC,    ZFS_SUPER_MAGIC,
        F2FS_SUPER_MAGIC,      TMPFS_MAGIC,          RAMFS_MAGIC,          HUGETLBFS_MAGIC,
        OVERLAYFS_SUPER_MAGIC, MSDOS_SUPER_MAGIC,    SQUASHFS_MAGIC,       EROFS_SUPER_MAGIC_V1,
        ISOFS_SUPER_MAGIC,     REISERFS_SUPER_MAGIC, ECRYPTFS_SUPER_MAGIC,
    };
    for (size_t i = 0; i < sizeof(local) / sizeof(local[0]); i++) {
        if (local[i] == type)
            return true;
    }
    return false;
}

/* 0: not known. */
static uint32_t type_of(int descriptor)
{
    struct statfs system;
    return syscall(SYS_fstatfs, descriptor, &system) == 0 ? (uint32_t)system.f_type : 0;
}

bool ms_trust_is_local(int descriptor)
{
    return ms_trust_is_local_type(type_of(descriptor));
}

bool ms_trust_is_overlay(int descriptor)
{
    return type_of(descriptor) == OVERLAYFS_SUPER_MAGIC;
}

/*
 * A read lease is refused while somebody may write, by a descriptor or a mapping. It is given back
 * at once. A process that opens the file for writing meanwhile waits for that; the signal goes to
 * this thread, which blocks it.
 */
enum ms_writers ms_trust_ask_for_writers(int descriptor)
{
    const struct f_owner_ex owner = {F_OWNER_TID, (pid_t)syscall(SYS_gettid)};
    if (!ms_trust_is_local(descriptor) || syscall(SYS_fcntl, descriptor, F_SETOWN_EX, &owner) != 0)
        return MS_WRITERS_UNKNOWN;
    if (syscall(SYS_fcntl, descriptor, F_SETLEASE, F_RDLCK) != 0)
        return errno == EAGAIN ? MS_WRITER : MS_WRITERS_UNKNOWN;
    syscall(SYS_fcntl, descriptor, F_SETLEASE, F_UNLCK);
    return ms_trust_is_overlay(descriptor) ? MS_WRITERS_UNKNOWN : MS_NO_WRITER;
}

bool ms_trust_is_in_memory(int descriptor)
{
    const uint32_t type = type_of(descriptor);
    return type == TMPFS_MAGIC || type == HUGETLBFS_MAGIC;
}

static _Atomic bool was_not_asked;

static bool has_times(const struct stat *stat)
{
    return stat->st_mtim.tv_sec != 0 || stat->st_ctim.tv_sec != 0;
}

bool ms_trust_look(int descriptor, struct stat *stat_out)
{
    struct stat kept;
    if (!ms_file_stat_cached(descriptor, &kept) || !ms_file_stat(descriptor, stat_out))
        return false;
    const bool is_overlay = ms_trust_is_overlay(descriptor);
    if (ms_trust_is_local(descriptor) && !is_overlay)
        return true;
    if (!ms_file_stat_asks() && !is_overlay) {
        atomic_store(&was_not_asked, true);
        return false;
    }
    return has_times(stat_out) && ms_trust_is_unchanged(&kept, stat_out);
}

bool ms_trust_was_not_asked(void)
{
    return atomic_exchange(&was_not_asked, false);
}

bool ms_trust_hides_stores(int descriptor)
{
    if (!ms_trust_is_in_memory(descriptor))
        return false;
    const long seals = syscall(SYS_fcntl, descriptor, F_GET_SEALS);
    return seals < 0 || (seals & F_SEAL_WRITE) == 0;
}

/* Who has deleted a file wants its space as soon as the program has it neither open nor mapped. And
 * the kernel does not count writers of a memfd: a file without a name in memory may have some. */
bool ms_trust_is_in_use(int descriptor, const struct stat *stat)
{
    if (ask_for_locks(descriptor) == YES)
        return true;
    const bool hides_stores = ms_trust_hides_stores(descriptor);
    if (!hides_stores && ms_trust_is_in_memory(descriptor))
        return false; /* sealed */
    return stat->st_nlink == 0 || ms_trust_ask_for_writers(descriptor) == MS_WRITER;
}

/* The upper file's change time is not before the copy-up. */
bool ms_trust_may_be_copy(int descriptor, const struct stat *stat)
{
    return ms_trust_is_overlay(descriptor) && stat->st_ctim.tv_sec >= began.tv_sec - 1;
}
