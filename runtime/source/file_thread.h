/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The file thread: everything that the shim does with files of the program (looking, opening, reading, closing) is
 * done there, and in threads that it starts. They share a descriptor table that is not the program's:
 *
 *     program's threads    0  1  2  3  4 ...        the program's locks belong to this table
 *     file thread, readers 0  1  2  3 ...           0 to 2: /dev/null; then files of ours, nothing else
 *
 * - POSIX locks belong to a table (fcntl(2)): what is closed here drops none that the program holds on the same file.
 * - No dup2, closefrom or limit of the program meets a descriptor of ours, and no child inherits one.
 * - Nothing of the program is held open here: its copies are not made, or closed at once.
 *
 * Where no table of its own can be had (unshare(2) is denied) all is done here all the same, with descriptors among the
 * program's: high ones, and not closed while anybody has a lock on the file (ms_trust_close).
 *
 * The thread starts with the first call, and lasts. All its signals are blocked. A forked child has none, as
 * everything of the shim is inert there. Nothing may be logged in it: the log's descriptor is the program's. Nor may
 * a call take a claim, call the driver, or wait for a thread that does.
 */
#ifndef METASHARD_RUNTIME_SOURCE_FILE_THREAD_H
#define METASHARD_RUNTIME_SOURCE_FILE_THREAD_H

#include <pthread.h>
#include <stdbool.h>

typedef void ms_file_call(void *argument);

/*
 * Runs call(argument) in the file thread, one at a time, and waits for it, some 10 us. From the thread itself, and from
 * those that it starts: a plain call. False when there is no thread and none can be made; then nothing was called.
 * Whoever waits is not cancelled before it is done. Usable from any thread.
 */
bool ms_file_thread_call(ms_file_call *call, void *argument);

/* As ms_thread_create: a thread that shares the file thread's table. */
int ms_file_thread_create(pthread_t *thread_out, void *(*run)(void *), void *argument);

/* Only meaningful in the file thread. */
bool ms_file_thread_has_own_table(void);

#endif
