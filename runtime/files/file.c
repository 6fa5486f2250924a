/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/files/file.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/inotify.h>
#include <time.h>
#include <unistd.h>

#include "runtime/base/heap.h"
#include "runtime/driver/flags.h"
#include "runtime/files/descriptor.h"
#include "runtime/files/direct.h"
#include "runtime/files/file_internal.h"
#include "runtime/files/file_name.h"
#include "runtime/files/file_thread.h"
#include "runtime/files/host_snapshot.h"
#include "runtime/files/lease.h"
#include "runtime/files/mapping.h"
#include "runtime/files/sums.h"

struct ms_files ms_files = {.lock = MS_LOCK_INIT(files)};

/* --- writers that have closed a file (inotify(7)): a mapping keeps its file open, so stores
 * through it are over by then */

static int events = -1;

/* Returns a number for the file, equal for all its descriptors; -1: the file cannot be watched. */
static int watch(int descriptor)
{
    char link[40];
    if (events < 0)
        events = (int)syscall(SYS_inotify_init1, IN_NONBLOCK | IN_CLOEXEC);
    snprintf(link, sizeof(link), "/proc/thread-self/fd/%d", descriptor);
    return events < 0 ? -1 : (int)syscall(SYS_inotify_add_watch, events, link, IN_CLOSE_WRITE);
}

/* `watch` -1: events were lost, so each file may have had a writer. */
MS_HOLDS(ms_files.lock) static void add_closed_writer_locked(int watch)
{
    for (struct ms_file *file = ms_files.first; file != NULL; file = file->next) {
        if (file->system.hides_stores && (file->watch == watch || watch < 0))
            file->was_writable = true;
    }
}

MS_HOLDS(ms_files.lock) static void look_for_closed_locked(void)
{
    union {
        struct inotify_event event;
        char bytes[4096];
    } told;
    long got;
    while (events >= 0 && (got = syscall(SYS_read, events, &told, sizeof(told))) > 0) {
        for (long at = 0; at < got;) {
            const struct inotify_event *event = (const struct inotify_event *)(told.bytes + at);
            if ((event->mask & IN_CLOSE_WRITE) != 0 || (event->mask & IN_Q_OVERFLOW) != 0)
                add_closed_writer_locked(event->wd);
            at += (long)(sizeof(*event) + event->len);
        }
    }
}

bool ms_file_had_writer(const struct ms_file *file)
{
    ms_lock_take(&ms_files.lock);
    look_for_closed_locked();
    const bool was_writable = file->was_writable;
    ms_lock_drop(&ms_files.lock);
    return was_writable;
}

/* --- files */

/* The number of sources whose inode has this hash. */
static _Atomic uint32_t by_inode[1024];

static _Atomic uint32_t *count_of(dev_t device, ino_t inode)
{
    const uint64_t mixed =
        ((uint64_t)inode ^ (uint64_t)device << 32) * UINT64_C(0x9e3779b97f4a7c15);
    return &by_inode[mixed >> 54];
}

MS_HOLDS(ms_files.lock) static bool is_watched_for_another_locked(const struct ms_file *file)
{
    const struct ms_file *other = ms_files.first;
    while (other != NULL && (other == file || other->watch != file->watch))
        other = other->next;
    return other != NULL;
}

/* The file system may take long to free the bytes of a deleted file: no lock is held meanwhile. */
void ms_file_let_go(struct ms_file *file)
{
    ms_lock_take(&ms_files.lock);
    const bool is_done = file->is_let_go;
    if (!is_done && file->watch >= 0 && !is_watched_for_another_locked(file))
        syscall(SYS_inotify_rm_watch, events, file->watch);
    ms_lock_drop(&ms_files.lock);
    if (is_done)
        return;
    if (file->stays_open) { /* else ms_file_end_use closes the descriptor */
        ms_lease_drop(&file->lease, file->descriptor);
        ms_mapping_close(file->descriptor);
    }
    const int direct = atomic_exchange(&file->direct, MS_DIRECT_REFUSED);
    if (direct >= 0)
        ms_descriptor_close(direct);
    ms_lock_take(&ms_files.lock);
    file->is_let_go = true;
    file->watch = -1;
    atomic_fetch_sub(&ms_hot.files, 1);
    ms_lock_drop(&ms_files.lock);
}

static void close_file(void *argument)
{
    struct ms_file *file = argument;
    ms_file_let_go(file);
    if (atomic_load(&file->copy) >= 0) {
        ms_descriptor_close(atomic_load(&file->copy));
        ms_host_snapshot_count(-file->recorded.st_size, MS_SNAPSHOT_ANY);
    }
}

static void destroy_file(struct ms_counted *counted)
{
    struct ms_file *file = (struct ms_file *)counted;
    ms_lock_take(&ms_files.lock);
    struct ms_file **link = &ms_files.first;
    while (*link != file)
        link = &(*link)->next;
    *link = file->next;
    atomic_fetch_sub(count_of(file->recorded.st_dev, file->recorded.st_ino), 1);
    ms_lock_drop(&ms_files.lock);
    ms_file_thread_call(close_file, file);
    if (atomic_load(&file->name) != NULL)
        ms_file_name_drop(file->name);
    ms_sums_cleanup(file);
    ms_heap_free(file);
}

/* Sources stay open within half of the limit of descriptors; the rest is for short uses. A file
 * that cannot be opened again by its path stays open all the same. */
static bool stays_open(int descriptor, const char *path, const struct stat *stat)
{
    struct stat now;
    if (!ms_file_thread_has_own_table() || ms_descriptor_leaves_room(descriptor, 2))
        return true;
    const int again = ms_mapping_open_again(path, stat, &now);
    if (again >= 0)
        ms_descriptor_close(again);
    return again < 0;
}

struct ms_file *ms_file_create(int descriptor, const struct stat *stat,
                               const struct ms_file_system *system,
                               const struct ms_mapping *mapping)
{
    struct ms_file *file = ms_heap_zalloc(sizeof(*file));
    if (file == NULL)
        return NULL;
    ms_counted_init(&file->source.counted, destroy_file);
    file->source.kind = MS_SOURCE_FILE;
    file->descriptor = descriptor;
    file->direct = MS_DIRECT_NOT_OPENED;
    file->copy = -1;
    file->stays_open = stays_open(descriptor, mapping->path, stat);
    file->users = 1;
    file->recorded = *stat;
    file->own_last = *stat;
    file->last = &file->own_last;
    file->system = *system;
    file->mapped_device = mapping->device;
    file->mapped_inode = mapping->inode;
    snprintf(file->path, sizeof(file->path), "%s", mapping->path);
    ms_lock_take(&ms_files.lock);
    file->watch = system->hides_stores ? watch(descriptor) : -1;
    file->next = ms_files.first;
    ms_files.first = file;
    atomic_fetch_add(count_of(stat->st_dev, stat->st_ino), 1);
    atomic_fetch_add(&ms_hot.files, 1);
    ms_lock_drop(&ms_files.lock);
    return file;
}

bool ms_file_may_be_of(dev_t device, ino_t inode)
{
    if (atomic_load(count_of(device, inode)) == 0)
        return false;
    ms_lock_take(&ms_files.lock);
    const struct ms_file *file = ms_files.first;
    while (file != NULL &&
           (file->recorded.st_dev != device || file->recorded.st_ino != inode || file->is_let_go))
        file = file->next;
    ms_lock_drop(&ms_files.lock);
    return file != NULL;
}

struct ms_file *ms_file_find_open(dev_t device, ino_t inode)
{
    ms_lock_take(&ms_files.lock);
    struct ms_file *file = ms_files.first;
    while (file != NULL && (file->recorded.st_dev != device || file->recorded.st_ino != inode ||
                            atomic_load(&file->state) != MS_FILE_IS_OPEN ||
                            !ms_counted_try_take(&file->source.counted)))
        file = file->next;
    ms_lock_drop(&ms_files.lock);
    return file;
}

/* --- descriptors that are not kept */

static bool open_again(struct ms_file *file, struct ms_file_failure *failure_out)
{
    struct stat now;
    const int descriptor = ms_mapping_open_again(file->path, &file->recorded, &now);
    if (descriptor >= 0) {
        int none = -1;
        if (!atomic_compare_exchange_strong(&file->descriptor, &none, descriptor))
            ms_descriptor_close(descriptor); /* another thread has opened the file meanwhile */
        return true;
    }
    *failure_out =
        (struct ms_file_failure){.file = file,
                                 .kind = errno != 0 ? MS_FAILURE_LOST : MS_FAILURE_CHANGED,
                                 .error = errno,
                                 .now = now};
    return false;
}

bool ms_file_begin_use(const struct ms_file *file, struct ms_file_failure *failure_out)
{
    struct ms_file *used = (struct ms_file *)file; /* no source is really const */
    if (file->stays_open)
        return true;
    ms_lock_take(&ms_files.lock);
    used->users++;
    const bool is_open = file->descriptor >= 0 || atomic_load(&file->copy) >= 0;
    ms_lock_drop(&ms_files.lock);
    if (is_open || open_again(used, failure_out))
        return true;
    ms_file_end_use(file);
    return false;
}

void ms_file_end_use(const struct ms_file *file)
{
    struct ms_file *used = (struct ms_file *)file;
    if (file->stays_open)
        return;
    ms_lock_take(&ms_files.lock);
    const int descriptor = --used->users == 0 ? atomic_exchange(&used->descriptor, -1) : -1;
    ms_lock_drop(&ms_files.lock);
    if (descriptor >= 0)
        ms_descriptor_close(descriptor);
}

int ms_file_descriptor(const struct ms_file *file)
{
    return atomic_load(&file->descriptor);
}

bool ms_file_stays_open(const struct ms_file *file)
{
    return file->stays_open;
}

const struct stat *ms_file_stat(const struct ms_file *file)
{
    return &file->recorded;
}

bool ms_file_ends_locks(const struct ms_file *file)
{
    return !ms_file_thread_has_own_table() &&
           ms_descriptor_ask_for_locks(file->descriptor) != MS_DESCRIPTOR_UNLOCKED;
}

enum ms_file_state ms_file_state(const struct ms_file *file)
{
    return atomic_load(&file->state);
}

const char *ms_file_path(const struct ms_file *file)
{
    return file->path;
}
