/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/files/trust.h"

#include <errno.h>
#include <linux/magic.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/statfs.h>

#include "runtime/files/descriptor.h"
#include "runtime/files/file_internal.h"
#include "runtime/files/file_thread.h"
#include "runtime/files/mapping.h"

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

static bool is_unwritten(const struct stat *then, const struct stat *now)
{
    return then->st_size == now->st_size && same_time(then->st_mtim, now->st_mtim);
}

/* The change time shows a modification time that was set back. Another link count (unlink) is the
 * one innocent reason for a new change time. */
bool ms_trust_is_unchanged(const struct stat *then, const struct stat *now)
{
    return then->st_dev == now->st_dev && then->st_ino == now->st_ino && is_unwritten(then, now) &&
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
        if (!ms_descriptor_stat(descriptor, stat))
            return false;
        if (same_time(before.st_mtim, stat->st_mtim) && same_time(before.st_ctim, stat->st_ctim))
            return true;
    }
    return false;
}

/* --- other machines, and writers */

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

/* A file system of unknown type has no property. */
static struct ms_file_system learn_system(int descriptor)
{
    struct statfs system;
    if (syscall(SYS_fstatfs, descriptor, &system) != 0)
        return (struct ms_file_system){.is_local = false};
    const uint32_t type = (uint32_t)system.f_type;
    return (struct ms_file_system){.is_local = ms_trust_is_local_type(type),
                                   .is_overlay = type == OVERLAYFS_SUPER_MAGIC,
                                   .is_in_memory = type == TMPFS_MAGIC || type == HUGETLBFS_MAGIC};
}

/* Whether somebody has the file open for writing, or mapped through a descriptor that was open for
 * writing: a mapping keeps its descriptor's file open. */
enum writers { NO_WRITER, WRITER, WRITERS_UNKNOWN };

/*
 * Asks for a read lease, which the kernel refuses while somebody may write, by a descriptor or a
 * mapping. The lease is given back at once. A process that opens the file for writing meanwhile
 * waits for that; the signal goes to this thread, which blocks it. The answer is unknown on file
 * systems of other machines, for files of other users, and for an overlay's file that nobody has
 * open: its mappings are of the file of a layer below. Not for a descriptor with a lease, which
 * would be given back.
 */
static enum writers ask_for_writers(int descriptor, const struct ms_file_system *system)
{
    const struct f_owner_ex owner = {F_OWNER_TID, (pid_t)syscall(SYS_gettid)};
    if (!system->is_local || syscall(SYS_fcntl, descriptor, F_SETOWN_EX, &owner) != 0)
        return WRITERS_UNKNOWN;
    if (syscall(SYS_fcntl, descriptor, F_SETLEASE, F_RDLCK) != 0)
        return errno == EAGAIN ? WRITER : WRITERS_UNKNOWN;
    syscall(SYS_fcntl, descriptor, F_SETLEASE, F_UNLCK);
    return system->is_overlay ? WRITERS_UNKNOWN : NO_WRITER;
}

/* --- before a file becomes a source */

static _Atomic bool was_not_asked;

static bool has_times(const struct stat *stat)
{
    return stat->st_mtim.tv_sec != 0 || stat->st_ctim.tv_sec != 0;
}

/*
 * Gets the file's attributes from its file system. False if a change would not show. On a file
 * system of other machines, which may be below an overlay, the file must have times, and they must
 * equal those that the kernel keeps: if not, the file has changed behind the kernel, whose pages of
 * it may be older. If that file system cannot be asked, false, but not for overlays.
 */
static bool look(int descriptor, const struct ms_file_system *system, struct stat *stat_out)
{
    struct stat kept;
    if (!ms_descriptor_stat_cached(descriptor, &kept))
        return false;
    const enum ms_descriptor_told told = ms_descriptor_stat(descriptor, stat_out);
    if (told == MS_DESCRIPTOR_UNTOLD || (system->is_local && !system->is_overlay))
        return told != MS_DESCRIPTOR_UNTOLD;
    if (told == MS_DESCRIPTOR_KEPT && !system->is_overlay) {
        atomic_store(&was_not_asked, true);
        return false;
    }
    return has_times(stat_out) && ms_trust_is_unchanged(&kept, stat_out);
}

static bool is_sealed(int descriptor)
{
    const long seals = syscall(SYS_fcntl, descriptor, F_GET_SEALS);
    return seals >= 0 && (seals & F_SEAL_WRITE) != 0;
}

/* A deleted file is in use: whoever deleted it wants the space as soon as the program has it
 * neither open nor mapped. A file without a name in memory is, too: the kernel does not count
 * writers of a memfd. */
static bool is_in_use(int descriptor, struct ms_file_system *system, const struct stat *stat)
{
    if (ms_descriptor_ask_for_locks(descriptor) == MS_DESCRIPTOR_LOCKED)
        return true;
    system->hides_stores = system->is_in_memory && !is_sealed(descriptor);
    if (system->is_in_memory && !system->hides_stores)
        return false;
    return stat->st_nlink == 0 || ask_for_writers(descriptor, system) == WRITER;
}

/* --- once the file is a source */

/* A new link count explains one new change time; the next new time needs its own reason. */
static bool is_as_before(const struct ms_file *file, const struct stat *now)
{
    ms_lock_take(&ms_files.lock);
    const bool is_same = ms_trust_is_unchanged(file->last, now);
    if (is_same)
        *file->last = *now;
    ms_lock_drop(&ms_files.lock);
    return is_same;
}

/* True if somebody had the file open for writing, or has it now. */
static bool could_be_stored_to(const struct ms_file *file)
{
    return ms_file_had_writer(file) || ask_for_writers(file->descriptor, &file->system) == WRITER;
}

/* Nobody changed a byte while the lease was held. New times are recorded for the next check. A
 * lease of an overlay does not keep another machine from changing the file of a layer. In the
 * program's table the lease may be another file's: there only the times count. */
static bool is_held(const struct ms_file *file, const struct stat *now)
{
    if (!ms_file_thread_has_own_table())
        return false;
    /* No source is really const, and checking its lease changes nothing that others see. */
    if (!ms_lease_is_intact((struct ms_lease *)&file->lease, file->descriptor))
        return false;
    if (file->system.is_overlay && !is_unwritten(&file->recorded, now))
        return false;
    ms_lock_take(&ms_files.lock);
    *file->last = *now;
    ms_lock_drop(&ms_files.lock);
    return true;
}

/* True if the kernel has taken the lease: nobody has given it back, so a process has changed the
 * file after lease-break-time. Not for overlays, whose files other machines may change. */
static bool is_lease_gone(const struct ms_file *file)
{
    return ms_file_thread_has_own_table() && !file->system.is_overlay &&
           atomic_load(&file->lease.is_taken);
}

/* Only notes the deletion: bringing the bytes in calls the driver, and waits for claims. */
static void note_deletion(struct ms_file *file, const struct stat *now)
{
    if (ms_file_has_lost_links(file, now) && !atomic_exchange(&file->is_deleted, true))
        ms_lease_wake();
}

static bool check(const struct ms_file *file, struct ms_file_failure *failure_out)
{
    *failure_out = (struct ms_file_failure){.file = file, .kind = MS_FAILURE_LOST};
    if (atomic_load(&file->copy) >= 0)
        return true; /* the file may change only after the last read of it */
    if (!ms_descriptor_stat(file->descriptor, &failure_out->now)) {
        failure_out->error = errno;
        return false;
    }
    note_deletion((struct ms_file *)file, &failure_out->now);
    if (is_held(file, &failure_out->now))
        return true;
    failure_out->kind = is_lease_gone(file) ? MS_FAILURE_UNANSWERED : MS_FAILURE_CHANGED;
    if (!is_as_before(file, &failure_out->now))
        return false;
    failure_out->kind = MS_FAILURE_WRITTEN;
    return !file->system.hides_stores || !could_be_stored_to(file);
}

/* Called after a read: a write before the read shows in the times. Asks for the state first: once
 * the file is given up, its descriptor's number may be another file's. */
bool ms_trust_check(const struct ms_file *file, struct ms_file_failure *failure_out)
{
    *failure_out = (struct ms_file_failure){.file = file, .kind = MS_FAILURE_GIVEN_UP};
    if (atomic_load(&file->state) == MS_FILE_IS_LOST)
        return false;
    if (!ms_file_begin_use(file, failure_out))
        return false;
    const bool is_same = check(file, failure_out);
    ms_file_end_use(file);
    return is_same;
}

/* Asks for stores as ask_who_stores does. */
bool ms_trust_check_mappings(const struct ms_file *file, struct ms_file_failure *failure_out)
{
    bool lasts;
    if (atomic_load(&file->copy) >= 0)
        return true;
    if (!ms_file_begin_use(file, failure_out))
        return false;
    const bool is_known = ms_lease_is_intact((struct ms_lease *)&file->lease, file->descriptor)
                              ? !file->looks_again
                              : ask_for_writers(file->descriptor, &file->system) != WRITERS_UNKNOWN;
    ms_file_end_use(file);
    *failure_out = (struct ms_file_failure){.file = file, .kind = MS_FAILURE_STORED_TO};
    return is_known || !ms_mapping_is_stored_to(file->mapped_device, file->mapped_inode, &lasts);
}

/*
 * Asks whether somebody may store to the file unseen:
 *
 *     while the file has a lease      nobody: no descriptor is open for writing, nor mapped
 *     else                            the kernel, for writers
 *     if it does not know of them     the mappings of this process, of which there may be 65,530
 *
 * An overlay maps the file of a layer. The overlay's lease and writers do not include the mappings
 * of that file, but under a lease nobody gets a descriptor for a new mapping.
 *
 * So mappings are looked at when the file becomes a source, and again when its bytes were read
 * (ms_trust_check_mappings). The first store through a mapping that is made in between changes the
 * file's times; where it might not, every copy looks.
 */
static bool ask_who_stores(struct ms_file *file, bool is_new)
{
    const bool is_leased = ms_lease_is_intact(&file->lease, file->descriptor);
    const bool is_overlay = file->system.is_overlay;
    if (is_leased && !is_overlay)
        return false;
    const enum writers writers =
        is_leased ? WRITERS_UNKNOWN : ask_for_writers(file->descriptor, &file->system);
    if (writers != WRITERS_UNKNOWN)
        return writers == WRITER;
    const bool may_hide = file->system.hides_stores || is_overlay;
    if (!is_new && !file->looks_again && (is_leased || !may_hide))
        return false;
    bool lasts;
    if (ms_mapping_is_stored_to(file->mapped_device, file->mapped_inode, &lasts))
        return true;
    file->looks_again = !lasts;
    return false;
}

/* True if somebody may store to the file through a mapping, and no check of it would show that. */
static bool may_be_stored_to(struct ms_file *file, bool is_new)
{
    struct ms_file_failure failure;
    if (!ms_file_begin_use(file, &failure))
        return true;
    const bool may_be = ask_who_stores(file, is_new);
    ms_file_end_use(file);
    return may_be;
}

/* Asks for a lease once, at the first copy from the file. */
static void take_lease(struct ms_file *file)
{
    if (file->has_asked || file->is_let_go || !file->stays_open || !file->system.is_local)
        return;
    file->has_asked = true;
    ms_lease_take(&file->lease, file->descriptor);
}

bool ms_trust_is_sure(struct ms_file *file)
{
    struct ms_file_failure failure;
    take_lease(file);
    return ms_trust_check(file, &failure) && !may_be_stored_to(file, false);
}

/* --- making a file a source */

static struct ms_file *find_file(const struct stat *stat)
{
    ms_lock_take(&ms_files.lock);
    struct ms_file *file = ms_files.first;
    while (file != NULL && (!ms_trust_is_unchanged(file->last, stat) ||
                            atomic_load(&file->state) != MS_FILE_IS_OPEN ||
                            !ms_counted_try_take(&file->source.counted)))
        file = file->next;
    ms_lock_drop(&ms_files.lock);
    return file;
}

/* Takes the descriptor, also on failure. Only the file thread adds files. */
static struct ms_file *take_file(int descriptor, const struct ms_mapping *mapping, uint64_t end,
                                 bool with_lease)
{
    struct stat stat;
    struct ms_file_failure failure;
    struct ms_file *file = NULL;
    struct ms_file_system system = learn_system(descriptor);
    bool known = false, is_new = false;
    if (look(descriptor, &system, &stat) && (uint64_t)stat.st_size >= end &&
        ms_trust_wait(descriptor, &stat)) {
        file = find_file(&stat);
        known = file != NULL;
        /* A copy-up shows in the change time of the upper file, which is not before it. */
        system.may_be_copy = system.is_overlay && stat.st_ctim.tv_sec >= began.tv_sec - 1;
        if (!known && !is_in_use(descriptor, &system, &stat))
            file = ms_file_create(descriptor, &stat, &system, mapping);
        is_new = file != NULL && !known;
    }
    if (known || file == NULL)
        ms_mapping_close(descriptor);
    if (file != NULL && with_lease)
        take_lease(file);
    /* This also finds writers that could store before the file was watched. */
    const bool is_bad =
        file != NULL &&
        (((known || file->system.hides_stores) && !ms_trust_check(file, &failure)) ||
         may_be_stored_to(file, is_new));
    if (is_new)
        ms_file_end_use(file);
    if (is_bad)
        ms_file_drop(file);
    return is_bad ? NULL : file;
}

/* --- a file that is a source already */

/*
 * Device and inode, as the kernel lists a mapping, name one file. Not on btrfs, where they differ
 * from the file's own, and files of two subvolumes may share them. An overlay's mapping has those
 * of the file below the overlay. There, and on other machines, the mapping must have the path as
 * well.
 */
static bool is_mapped_by(const struct ms_file *file, const struct ms_mapping *mapping)
{
    if (file->mapped_device != mapping->device || file->mapped_inode != mapping->inode)
        return false;
    const bool is_own =
        file->recorded.st_dev == mapping->device && file->recorded.st_ino == mapping->inode;
    return (is_own && file->system.is_local) ||
           ((is_own || file->system.is_overlay) && mapping->path[0] != '\0' &&
            strcmp(file->path, mapping->path) == 0);
}

/* An overlay's lease does not protect the file of a layer. */
static bool is_certain(struct ms_file *file)
{
    return !file->system.is_overlay && ms_lease_is_intact(&file->lease, file->descriptor);
}

/* The source recorded last comes first: older ones may have the file's old content. */
static struct ms_file *find_held(const struct ms_mapping *mapping, uint64_t end)
{
    ms_lock_take(&ms_files.lock);
    struct ms_file *file = ms_files.first;
    while (file != NULL &&
           (!is_mapped_by(file, mapping) || (uint64_t)file->recorded.st_size < end ||
            atomic_load(&file->state) != MS_FILE_IS_OPEN ||
            !ms_counted_try_take(&file->source.counted)))
        file = file->next;
    ms_lock_drop(&ms_files.lock);
    if (file == NULL || is_certain(file) || ms_trust_is_sure(file))
        return file;
    ms_file_drop(file);
    return NULL;
}

struct wanted_file {
    struct ms_mapping *mapping;
    uint64_t end;
    struct ms_file *found;
};

static struct ms_file *open_file(struct ms_mapping *mapping, uint64_t end, bool with_lease)
{
    const int descriptor = ms_mapping_open(mapping);
    return descriptor >= 0 ? take_file(descriptor, mapping, end, with_lease) : NULL;
}

static void find_by_mapping(void *argument)
{
    struct wanted_file *wanted = argument;
    wanted->found = find_held(wanted->mapping, wanted->end);
    if (wanted->found == NULL)
        wanted->found = open_file(wanted->mapping, wanted->end, true);
}

struct ms_file *ms_trust_open(struct ms_mapping *mapping, uint64_t end)
{
    struct wanted_file wanted = {.mapping = mapping, .end = end};
    ms_file_thread_call(find_by_mapping, &wanted);
    return wanted.found;
}

bool ms_trust_was_not_asked(void)
{
    return atomic_exchange(&was_not_asked, false);
}

bool ms_trust_is_older(const struct ms_file *file)
{
    return file->recorded.st_ctim.tv_sec < began.tv_sec;
}

bool ms_trust_had_times(const struct ms_file *file, const struct stat *then)
{
    ms_lock_take(&ms_files.lock);
    const bool had = ms_trust_is_unchanged(then, file->last);
    ms_lock_drop(&ms_files.lock);
    return had;
}

bool ms_trust_may_be_copy(const struct ms_file *file)
{
    return file->system.may_be_copy;
}

bool ms_trust_is_in_memory(const struct ms_file *file)
{
    return file->system.is_in_memory;
}

struct ms_file *ms_trust_look(struct ms_mapping *mapping, const struct stat *then)
{
    struct ms_file *file = open_file(mapping, 0, false);
    if (file == NULL ||
        (!file->system.is_overlay && !file->system.hides_stores && ms_trust_had_times(file, then)))
        return file;
    ms_file_drop(file);
    return NULL;
}
