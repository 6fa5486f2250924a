/* SPDX-License-Identifier: Apache-2.0 */
/* Files that this process, or another one that waits for a lease, is about to change. */
#include <string.h>

#include "runtime/source/file_thread.h"
#include "runtime/source/source_internal.h"

/* Moves the file's sources from one state to another. path_out (may be NULL): the path of one. */
static bool change_state(dev_t device, ino_t inode, enum ms_source_state from,
                         enum ms_source_state to, char *path_out)
{
    bool found = false;
    ms_lock_take(&ms_files.lock);
    for (struct ms_source *file = ms_files.first; file != NULL; file = file->next) {
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

/* --- leases: checked in the file thread, given back in the lease thread */

struct leases {
    bool of_all, is_found;
    dev_t device;
    ino_t inode;
};

static void find_broken(void *argument)
{
    struct leases *leases = argument;
    ms_lock_take(&ms_files.lock);
    for (struct ms_source *file = ms_files.first; file != NULL && !leases->is_found;
         file = file->next) {
        leases->is_found = ms_lease_is_broken(&file->lease, file->descriptor);
        leases->device = file->recorded.st_dev;
        leases->inode = file->recorded.st_ino;
    }
    ms_lock_drop(&ms_files.lock);
}

bool ms_source_find_broken(dev_t *device_out, ino_t *inode_out)
{
    struct leases leases = {.is_found = false};
    ms_file_thread_call(find_broken, &leases);
    *device_out = leases.device;
    *inode_out = leases.inode;
    return leases.is_found;
}

static void drop_leases(void *argument)
{
    const struct leases *leases = argument;
    ms_lock_take(&ms_files.lock);
    for (struct ms_source *file = ms_files.first; file != NULL; file = file->next) {
        if (leases->of_all ||
            (file->recorded.st_dev == leases->device && file->recorded.st_ino == leases->inode))
            ms_lease_drop(&file->lease, file->descriptor);
    }
    ms_lock_drop(&ms_files.lock);
}

void ms_source_drop_leases_of(dev_t device, ino_t inode)
{
    struct leases leases = {.device = device, .inode = inode};
    ms_file_thread_call(drop_leases, &leases);
}

void ms_source_drop_leases(void)
{
    struct leases leases = {.of_all = true};
    ms_file_thread_call(drop_leases, &leases);
}

bool ms_source_close(dev_t device, ino_t inode, char *path_out)
{
    return change_state(device, inode, MS_SOURCE_IS_OPEN, MS_SOURCE_IS_CLOSED, path_out);
}

bool ms_source_is_closed(const struct ms_source *source)
{
    return atomic_load_explicit(&source->state, memory_order_relaxed) == MS_SOURCE_IS_CLOSED;
}

void ms_source_end_close(dev_t device, ino_t inode, bool is_lost)
{
    change_state(device, inode, MS_SOURCE_IS_CLOSED,
                 is_lost ? MS_SOURCE_IS_LOST : MS_SOURCE_IS_OPEN, NULL);
    if (is_lost)
        ms_source_drop_leases_of(device, inode);
}
