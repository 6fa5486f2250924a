/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/source/writers.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>

#include "runtime/source/descriptor.h"

/* --- closed writers */

static int events = -1;

int ms_writers_watch(int descriptor)
{
    char link[40];
    if (events < 0)
        events = (int)syscall(SYS_inotify_init1, IN_NONBLOCK | IN_CLOEXEC);
    snprintf(link, sizeof(link), "/proc/thread-self/fd/%d", descriptor);
    return events < 0 ? -1 : (int)syscall(SYS_inotify_add_watch, events, link, IN_CLOSE_WRITE);
}

void ms_writers_unwatch(int watch)
{
    syscall(SYS_inotify_rm_watch, events, watch);
}

void ms_writers_look(void (*closed)(int watch))
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
                closed(event->wd);
            at += (long)(sizeof(*event) + event->len);
        }
    }
}

/* --- in this process */

struct search {
    pid_t thread;
    int folder; /* its descriptors, as links to files */
    dev_t device;
    ino_t inode;
};

/* Reads "flags:" and an octal number from the descriptor's fdinfo. An unknown one may write. */
static bool may_write(const struct search *search, const char *number)
{
    char path[320], text[512];
    snprintf(path, sizeof(path), "/proc/self/task/%d/fdinfo/%s", (int)search->thread, number);
    const int info = ms_file_open(path, O_RDONLY);
    if (info < 0)
        return true;
    const ssize_t got = ms_file_read(info, text, sizeof(text) - 1, 0);
    ms_file_close(info);
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
    return fstatat(search->folder, number, &file, 0) == 0 && file.st_ino == search->inode &&
           file.st_dev == search->device && may_write(search, number);
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

bool ms_is_open_for_writing(pid_t thread, dev_t device, ino_t inode)
{
    _Alignas(struct dirent64) char entries[4096];
    char path[64];
    snprintf(path, sizeof(path), "/proc/self/task/%d/fd", (int)thread);
    const struct search search = {.thread = thread,
                                  .folder = ms_file_open(path, O_RDONLY | O_DIRECTORY),
                                  .device = device,
                                  .inode = inode};
    long got = -1;
    bool found = search.folder < 0;
    while (!found && (got = syscall(SYS_getdents64, search.folder, entries, sizeof(entries))) > 0)
        found = any_writes(&search, entries, got);
    if (search.folder >= 0)
        ms_file_close(search.folder);
    return found || got < 0;
}
