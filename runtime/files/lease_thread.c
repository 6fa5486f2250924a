/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/files/lease_thread.h"

#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

#include "runtime/base/lock.h"
#include "runtime/base/thread.h"
#include "runtime/files/descriptor.h"
#include "runtime/files/file_internal.h"
#include "runtime/files/file_thread.h"
#include "runtime/files/kept_files.h"
#include "runtime/files/read_ahead.h"

/* A question of the lease thread to the file thread, and the file that the latter has found. */
struct wanted {
    bool (*is_locked)(struct ms_file *file);
    dev_t device;
    ino_t inode;
    bool is_found;
};

/* Asks only about files with a lease each time: others may be on another machine. */
MS_HOLDS(ms_files.lock) static bool is_deleted_locked(struct ms_file *file)
{
    struct stat now;
    if (file->is_answered || atomic_load(&file->state) != MS_FILE_IS_OPEN)
        return false;
    return atomic_load(&file->is_deleted) ||
           (atomic_load(&file->lease.is_taken) && ms_descriptor_stat(file->descriptor, &now) &&
            ms_file_has_lost_links(file, &now));
}

MS_HOLDS(ms_files.lock) static bool is_broken_locked(struct ms_file *file)
{
    return ms_lease_is_broken(&file->lease, file->descriptor);
}

static void find(void *argument)
{
    struct wanted *wanted = argument;
    ms_lock_take(&ms_files.lock);
    struct ms_file *file = ms_files.first;
    while (file != NULL && !wanted->is_locked(file))
        file = file->next;
    wanted->is_found = file != NULL;
    if (file != NULL) {
        wanted->device = file->recorded.st_dev;
        wanted->inode = file->recorded.st_ino;
    }
    ms_lock_drop(&ms_files.lock);
}

static bool find_one(bool (*is_locked)(struct ms_file *file), dev_t *device_out, ino_t *inode_out)
{
    struct wanted wanted = {.is_locked = is_locked};
    ms_file_thread_call(find, &wanted);
    *device_out = wanted.device;
    *inode_out = wanted.inode;
    return wanted.is_found;
}

bool ms_lease_thread_find_deleted(dev_t *device_out, ino_t *inode_out)
{
    return find_one(is_deleted_locked, device_out, inode_out);
}

/* Gives back the lease of the wanted file, or, with NULL, all leases. */
static void drop_there(void *argument)
{
    const struct wanted *wanted = argument;
    ms_lock_take(&ms_files.lock);
    for (struct ms_file *file = ms_files.first; file != NULL; file = file->next) {
        if (wanted == NULL ||
            (file->recorded.st_dev == wanted->device && file->recorded.st_ino == wanted->inode))
            ms_lease_drop(&file->lease, file->descriptor);
    }
    ms_lock_drop(&ms_files.lock);
}

void ms_lease_thread_give_back(dev_t device, ino_t inode)
{
    struct wanted wanted = {.device = device, .inode = inode};
    ms_file_thread_call(drop_there, &wanted);
}

/* --- the life of the lease thread */

enum { MILLISECOND_NS = 1000 * 1000, PERIOD_MS = 50, SHORT_PERIOD_MS = 10 };

static ms_lease_thread_answer *breaker, *deleted; /* immutable after ms_lease_thread_start */
static struct ms_lock thread_lock = MS_LOCK_INIT(lease_thread); /* guards what follows */
static bool is_running MS_GUARDED_BY(thread_lock);

void ms_lease_thread_start(ms_lease_thread_answer *breaker_, ms_lease_thread_answer *deleted_)
{
    breaker = breaker_;
    deleted = deleted_;
}

/* Looks often while advice is given (read_ahead.h), to notice soon that the CPU uses a file. */
static void pause_between_looks(void)
{
    for (int passed = 0; passed < PERIOD_MS;) {
        const int now = ms_read_ahead_look(ms_lease_any()) ? SHORT_PERIOD_MS : PERIOD_MS;
        nanosleep(&(struct timespec){.tv_nsec = (long)now * MILLISECOND_NS}, NULL);
        passed += now;
    }
}

static void let_go_of_kept(__attribute__((unused)) void *argument)
{
    ms_kept_files_let_go();
}

static void *serve(__attribute__((unused)) void *argument)
{
    dev_t device;
    ino_t inode;
    pthread_setname_np(pthread_self(), "metashard-lease");
    for (;;) {
        if (!atomic_load(&ms_kept_files_any))
            ms_lease_wait();
        pause_between_looks();
        if (atomic_load(&ms_kept_files_any))
            ms_file_thread_call(let_go_of_kept, NULL);
        while (find_one(is_broken_locked, &device, &inode))
            breaker(device, inode);
        while (ms_lease_thread_find_deleted(&device, &inode))
            deleted(device, inode);
    }
    return NULL;
}

void ms_lease_thread_serve(bool is_needed)
{
    bool is_served = true;
    if (!is_needed && !ms_lease_any() && !atomic_load(&ms_kept_files_any))
        return;
    ms_lock_take(&thread_lock);
    if (!is_running && deleted != NULL) {
        pthread_t created;
        is_served = ms_thread_create(&created, serve, NULL) == 0;
        if (is_served)
            pthread_detach(created);
        is_running = is_served;
    }
    ms_lock_drop(&thread_lock);
    if (!is_served)
        ms_file_thread_call(drop_there, NULL);
}
