/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/files/descriptor.h"

#include <errno.h>
#include <stdatomic.h>
#include <sys/resource.h>
#include <sys/sysmacros.h>

_Atomic bool ms_descriptor_is_short;

int ms_descriptor_open(const char *path, int flags)
{
    const int descriptor = (int)syscall(SYS_openat, AT_FDCWD, path, flags | O_CLOEXEC, 0L);
    if (descriptor < 0 && (errno == EMFILE || errno == ENFILE))
        atomic_store(&ms_descriptor_is_short, true);
    return descriptor;
}

bool ms_descriptor_leaves_room(int descriptor, unsigned of_four)
{
    struct rlimit limit;
    return getrlimit(RLIMIT_NOFILE, &limit) != 0 ||
           (rlim_t)descriptor < limit.rlim_cur / 4 * of_four;
}

/* --- what the file system says */

#ifndef SYS_statx
#if defined(__x86_64__)
#define SYS_statx 332
#elif defined(__aarch64__)
#define SYS_statx 291
#endif
#endif
enum { FORCE_SYNC = 0x2000, EMPTY_PATH = 0x1000, BASIC = 0x7ff };

/* struct statx of <linux/stat.h>. Headers older than Linux 4.11 lack it. */
struct answer_time {
    int64_t seconds;
    uint32_t ns;
    int32_t unused;
};
struct answer {
    uint32_t mask, block_bytes;
    uint64_t attributes;
    uint32_t links, user, group;
    uint16_t mode, unused;
    uint64_t inode, bytes, blocks, known_attributes;
    struct answer_time accessed, born, changed, modified;
    uint32_t special_major, special_minor, device_major, device_minor;
    uint64_t more[14];
};
_Static_assert(sizeof(struct answer) == 256, "as the kernel writes it");

static struct timespec time_of(struct answer_time time)
{
    return (struct timespec){.tv_sec = (time_t)time.seconds, .tv_nsec = (long)time.ns};
}

static struct stat convert(const struct answer *answer)
{
    struct stat stat = {.st_dev = makedev(answer->device_major, answer->device_minor)};
    stat.st_ino = (ino_t)answer->inode;
    stat.st_mode = answer->mode;
    stat.st_nlink = answer->links;
    stat.st_uid = answer->user;
    stat.st_gid = answer->group;
    stat.st_size = (off_t)answer->bytes;
    stat.st_mtim = time_of(answer->modified);
    stat.st_ctim = time_of(answer->changed);
    return stat;
}

enum ms_descriptor_told ms_descriptor_stat(int descriptor, struct stat *stat_out)
{
    static _Atomic bool is_denied;
    const bool asks = !atomic_load_explicit(&is_denied, memory_order_relaxed);
    struct answer answer;
    if (asks && syscall(SYS_statx, descriptor, "", EMPTY_PATH | FORCE_SYNC, (unsigned)BASIC,
                        &answer) == 0) {
        *stat_out = convert(&answer);
        return MS_DESCRIPTOR_ASKED;
    }
    if (asks && errno != ENOSYS && errno != EPERM)
        return MS_DESCRIPTOR_UNTOLD;
    atomic_store_explicit(&is_denied, true, memory_order_relaxed);
    return ms_descriptor_stat_cached(descriptor, stat_out) ? MS_DESCRIPTOR_KEPT
                                                           : MS_DESCRIPTOR_UNTOLD;
}

/* --- locks */

/* Unlike F_GETLK, this also finds this process's own locks. */
enum ms_descriptor_locks ms_descriptor_ask_for_locks(int descriptor)
{
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    if (syscall(SYS_fcntl, descriptor, F_OFD_GETLK, &lock) != 0)
        return MS_DESCRIPTOR_LOCKS_UNKNOWN;
    return lock.l_type != F_UNLCK ? MS_DESCRIPTOR_LOCKED : MS_DESCRIPTOR_UNLOCKED;
}
