/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/files/change.h"

#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "runtime/base/lock.h"
#include "runtime/files/descriptor.h"
#include "runtime/files/file_internal.h"
#include "runtime/files/file_read.h"
#include "runtime/files/file_thread.h"
#include "runtime/files/host_snapshot.h"
#include "runtime/files/trust.h"

/* Moves the file's sources to another state. path_out (may be NULL): the path of one source. */
static bool change_state(dev_t device, ino_t inode, enum ms_file_state from, enum ms_file_state to,
                         char *path_out)
{
    bool found = false;
    ms_lock_take(&ms_files.lock);
    for (struct ms_file *file = ms_files.first; file != NULL; file = file->next) {
        if (file->recorded.st_dev != device || file->recorded.st_ino != inode ||
            atomic_load(&file->state) != from)
            continue;
        atomic_store(&file->state, to);
        if (path_out != NULL)
            memcpy(path_out, file->path, sizeof(file->path));
        found = true;
    }
    ms_lock_drop(&ms_files.lock);
    return found;
}

/* A file that is about to change. */
struct wanted {
    dev_t device;
    ino_t inode;
    bool is_found; /* or the work is done */
};

/* --- a copy of a whole file, made in the file thread */

enum { COPIED_AT_ONCE = 64 << 10 };

static bool copy_bytes(const struct ms_file *file, int copy)
{
    static unsigned char buffer[COPIED_AT_ONCE]; /* for the file thread */
    const uint64_t end = (uint64_t)file->recorded.st_size;
    struct ms_file_failure failure;
    ms_descriptor_read_ahead(file->descriptor, POSIX_FADV_SEQUENTIAL); /* all is wanted */
    for (uint64_t at = 0; at < end;) {
        const size_t bytes = end - at < COPIED_AT_ONCE ? (size_t)(end - at) : COPIED_AT_ONCE;
        if (!ms_file_read_now(file, at, buffer, bytes, &failure) ||
            syscall(SYS_pwrite64, copy, buffer, bytes, at) != (ssize_t)bytes)
            return false;
        at += bytes;
    }
    return ms_trust_check(file, &failure) && ms_trust_check_mappings(file, &failure);
}

static int make_copy(const struct ms_file *file)
{
    const size_t bytes = (size_t)file->recorded.st_size;
    /* In the program's table the program could close or replace the copy. */
    if (!ms_file_thread_has_own_table() ||
        !ms_host_snapshot_count((int64_t)bytes, MS_SNAPSHOT_LIMITED))
        return -1;
    const int copy = (int)syscall(SYS_memfd_create, "metashard", (unsigned)MFD_CLOEXEC);
    if (copy >= 0 && copy_bytes(file, copy))
        return copy;
    if (copy >= 0)
        ms_descriptor_close(copy);
    ms_host_snapshot_count(-(int64_t)bytes, MS_SNAPSHOT_ANY);
    return -1;
}

/* Nobody reads the file itself any more after keep has returned true: then it may change. */
static bool keep(struct ms_file *file)
{
    const int copy = make_copy(file);
    if (copy < 0)
        return false;
    atomic_store(&file->copy, copy);
    while (atomic_load(&file->under_read) > 0)
        nanosleep(&(struct timespec){.tv_nsec = 1000 * 1000}, NULL);
    ms_lock_take(&ms_files.lock);
    atomic_store(&file->state, MS_FILE_IS_KEPT);
    ms_lock_drop(&ms_files.lock);
    return true;
}

/* Returns a reference to a source of the wanted file that `is` accepts, or NULL. */
static struct ms_file *take_one(const struct wanted *wanted, bool (*is)(const struct ms_file *file))
{
    ms_lock_take(&ms_files.lock);
    struct ms_file *file = ms_files.first;
    while (file != NULL &&
           (file->recorded.st_dev != wanted->device || file->recorded.st_ino != wanted->inode ||
            !is(file) || !ms_counted_try_take(&file->source.counted)))
        file = file->next;
    ms_lock_drop(&ms_files.lock);
    return file;
}

static bool is_closed(const struct ms_file *file)
{
    return atomic_load(&file->state) == MS_FILE_IS_CLOSED;
}

static void keep_all(void *argument)
{
    struct wanted *wanted = argument;
    struct ms_file *file;
    wanted->is_found = true;
    while (wanted->is_found && (file = take_one(wanted, is_closed)) != NULL) {
        wanted->is_found = keep(file);
        ms_file_drop(file);
    }
}

bool ms_change_keep(dev_t device, ino_t inode)
{
    struct wanted wanted = {.device = device, .inode = inode};
    ms_file_thread_call(keep_all, &wanted);
    return wanted.is_found;
}

/* Nobody reads the file itself any more. */
static bool is_useless(const struct ms_file *file)
{
    const int state = atomic_load(&file->state);
    return (state == MS_FILE_IS_LOST || state == MS_FILE_IS_KEPT) && !file->is_let_go;
}

static void let_go_of_useless(void *argument)
{
    struct ms_file *file;
    while ((file = take_one(argument, is_useless)) != NULL) {
        ms_file_let_go(file);
        ms_file_drop(file);
    }
}

/* Asks by the descriptor: the inode of a deleted file may be that of a new source. */
static bool is_gone(struct ms_file *file)
{
    struct ms_file_failure failure;
    struct stat now;
    if (!ms_file_begin_use(file, &failure))
        return true;
    const bool is_gone =
        ms_descriptor_stat(file->descriptor, &now) && ms_file_has_lost_links(file, &now);
    ms_file_end_use(file);
    return is_gone;
}

static bool is_unanswered(const struct ms_file *file)
{
    return is_closed(file) && !file->is_answered;
}

/* A file system may take long to answer: no lock is held meanwhile. */
static void reopen_others(void *argument)
{
    struct wanted *wanted = argument;
    struct ms_file *file;
    while ((file = take_one(wanted, is_unanswered)) != NULL) {
        const bool is_done = is_gone(file);
        ms_lock_take(&ms_files.lock);
        file->is_answered = is_done;
        if (!is_done)
            atomic_store(&file->state, MS_FILE_IS_OPEN);
        ms_lock_drop(&ms_files.lock);
        ms_file_drop(file);
    }
    file = take_one(wanted, is_closed);
    wanted->is_found = file != NULL;
    if (file != NULL)
        ms_file_drop(file);
}

bool ms_change_begin(dev_t device, ino_t inode, bool is_deleted, char *path_out)
{
    struct wanted wanted = {.device = device, .inode = inode, .is_found = true};
    if (!change_state(device, inode, MS_FILE_IS_OPEN, MS_FILE_IS_CLOSED, path_out))
        return false;
    if (is_deleted)
        ms_file_thread_call(reopen_others, &wanted);
    return wanted.is_found;
}

void ms_change_end(dev_t device, ino_t inode, bool is_lost)
{
    change_state(device, inode, MS_FILE_IS_CLOSED, is_lost ? MS_FILE_IS_LOST : MS_FILE_IS_OPEN,
                 NULL);
    struct wanted wanted = {.device = device, .inode = inode};
    if (is_lost)
        ms_file_thread_call(let_go_of_useless, &wanted);
}
