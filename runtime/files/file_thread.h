/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The file thread. It and the threads that it starts do everything with the program's files:
 * looking, opening, reading, closing. They share a descriptor table that is not the program's:
 *
 *     program's threads    0  1  2  3  4 ...        the program's locks belong to this table
 *     file thread, readers 0  1  2  3 ...           0 to 2: /dev/null; then only files of ours
 *
 * - POSIX locks belong to a table (fcntl(2)): closing a file here drops no lock of the program.
 * - No dup2, closefrom or limit of the program affects our descriptors, and no child inherits one.
 * - Nothing of the program stays open here: descriptors are not copied, or copies closed at once.
 *
 * Without its own table (unshare(2) is denied) the file thread uses high descriptors of the
 * program's table, and closes none while anybody has a lock on the file (ms_mapping_close).
 *
 * The thread starts with the first call and never ends. All its signals are blocked. A forked child
 * has no file thread: the shim is inert there. The thread must not log, since the log's descriptor
 * is in the program's table. A call must not take a claim, call the driver, or wait for a thread
 * that does.
 */
#pragma once

#include <pthread.h>
#include <stdbool.h>

typedef void ms_file_call(void *argument);

/*
 * Runs call(argument) in the file thread, one at a time, and waits for it, some 10 us. In the file
 * thread and the threads that it starts, this is a plain call. Returns false, without the call, if
 * no thread can be started. The caller cannot be cancelled while it waits. For any thread.
 */
bool ms_file_thread_call(ms_file_call *call, void *argument);

/* Like ms_thread_create; the thread shares the file thread's table. */
int ms_file_thread_create(pthread_t *thread_out, void *(*run)(void *), void *argument);

/* True in a child, also one that shares the memory (vfork), if the thread runs in the parent. */
bool ms_file_thread_is_of_parent(void);

/* For the file thread only. */
bool ms_file_thread_has_own_table(void);
