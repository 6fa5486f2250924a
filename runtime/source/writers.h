/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who could write to a file and has closed it again (inotify(7)): a store through a mapping is over by then, at the latest
 * when it was unmapped. For file systems whose times do not show stores. To be called in the file thread and in those that
 * it starts, and never at the same time.
 */
#ifndef METASHARD_RUNTIME_SOURCE_WRITERS_H
#define METASHARD_RUNTIME_SOURCE_WRITERS_H

#include <stdbool.h>
#include <sys/types.h>

/* A number for the file, the same for each of its descriptors; -1 where it cannot be watched. */
int ms_writers_watch(int descriptor);
void ms_writers_unwatch(int watch);

/* Calls `closed` for each writer that has closed its file since the last look; with -1 for any number of any files. */
void ms_writers_look(void (*closed)(int watch));

/*
 * True when a descriptor of that thread of the program is open for writing to that file, or nobody can tell. Looks at all
 * descriptors (/proc/self/task/TID/fd, proc(5)), which costs some microseconds for each. Does not see one that is on
 * its way in a socket, or in another table of descriptors (CLONE_FILES). To be called in the file thread.
 */
bool ms_is_open_for_writing(pid_t thread, dev_t device, ino_t inode);

#endif
