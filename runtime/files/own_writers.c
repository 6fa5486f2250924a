/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/files/own_writers.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "runtime/files/descriptor.h"
#include "runtime/files/file_internal.h"
#include "runtime/files/file_thread.h"

struct search {
    pid_t thread;
    int folder; /* the thread's descriptors, as links to files */
    const struct stat *file;
    bool is_found;
};

/* Reads "flags:" and an octal number from the descriptor's fdinfo. True also if that fails. */
static bool may_write(const struct search *search, const char *number)
{
    char path[320], text[512];
    snprintf(path, sizeof(path), "/proc/self/task/%d/fdinfo/%s", (int)search->thread, number);
    const int info = ms_descriptor_open(path, O_RDONLY);
    if (info < 0)
        return true;
    const ssize_t got = ms_descriptor_read(info, text, sizeof(text) - 1, 0);
    ms_descriptor_close(info);
    text[got > 0 ? got : 0] = '\0';
    const char *found = strstr(text, "flags:");
    if (found == NULL)
        return true;
    const unsigned long flags = strtoul(found + strlen("flags:"), NULL, 8);
    return (flags & O_PATH) == 0 && (flags & O_ACCMODE) != O_RDONLY;
}

static bool writes(const struct search *search, const char *number)
{
    struct stat file;
    return fstatat(search->folder, number, &file, 0) == 0 && file.st_ino == search->file->st_ino &&
           file.st_dev == search->file->st_dev && may_write(search, number);
}

static bool any_writes(const struct search *search, const char *entries, long bytes)
{
    bool found = false;
    for (long at = 0; at < bytes && !found;) {
        const struct dirent64 *entry = (const struct dirent64 *)(entries + at);
        found = entry->d_name[0] != '.' && writes(search, entry->d_name);
        at += entry->d_reclen;
    }
    return found;
}

/*
 * Finds whether the thread has the file open for writing, or this is unknown. Checks all
 * descriptors (/proc/self/task/TID/fd, proc(5)), some microseconds for each. Misses descriptors in
 * transit in a socket, or in another table (CLONE_FILES).
 */
static void look_for_writers(void *argument)
{
    _Alignas(struct dirent64) char entries[4096];
    char path[64];
    long got = -1;
    struct search *search = argument;
    snprintf(path, sizeof(path), "/proc/self/task/%d/fd", (int)search->thread);
    search->folder = ms_descriptor_open(path, O_RDONLY | O_DIRECTORY);
    bool found = search->folder < 0;
    while (!found && (got = syscall(SYS_getdents64, search->folder, entries, sizeof(entries))) > 0)
        found = any_writes(search, entries, got);
    if (search->folder >= 0)
        ms_descriptor_close(search->folder);
    search->is_found = found || got < 0;
}

bool ms_own_writers_any(struct ms_file *file)
{
    if (atomic_load(&file->is_unwritten) || atomic_load(&file->lease.is_taken))
        return false;
    struct search search = {.thread = (pid_t)syscall(SYS_gettid),
                            .file = &file->recorded,
                            .is_found = true};
    ms_file_thread_call(look_for_writers, &search);
    if (!search.is_found)
        atomic_store(&file->is_unwritten, true);
    return search.is_found;
}
