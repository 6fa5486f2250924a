/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writers that have closed a file (inotify(7)): stores through a mapping are over by then, at the
 * latest when it is unmapped. For file systems whose times do not show stores. Only for the file
 * thread and those that it starts, one at a time.
 */
#pragma once

#include <stdbool.h>
#include <sys/types.h>

/* Returns a number for the file, equal for all its descriptors; -1: it cannot be watched. */
int ms_writers_watch(int descriptor);
void ms_writers_unwatch(int watch);

/* Calls `closed` for each file that a writer has closed since the last call; -1: any may be. */
void ms_writers_look(void (*closed)(int watch));

/*
 * True if that thread of the program has a descriptor open for writing to that file, or this is
 * unknown. Checks all descriptors (/proc/self/task/TID/fd, proc(5)), some microseconds for each.
 * Misses one in transit in a socket, or in another table (CLONE_FILES). For the file thread.
 */
bool ms_is_open_for_writing(pid_t thread, dev_t device, ino_t inode);
