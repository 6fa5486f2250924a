/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/source/writers.h"

#include <stdio.h>
#include <sys/inotify.h>

#include "runtime/source/descriptor.h"

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
