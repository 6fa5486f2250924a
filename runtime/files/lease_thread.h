/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The lease thread looks 20 times a second for other processes that wait for a lease, and for
 * deleted files, as long as there are leases (lease.h) or files are kept (kept_files.h). It also
 * looks whether the program reads a file by the CPU (read_ahead.h). It asks the file thread, and
 * uses the program's table of descriptors, because it calls the driver. Once started, it never
 * ends.
 */
#pragma once

#include <stdbool.h>
#include <sys/types.h>

/* The lease thread calls this when another process waits to change the file. It materialises the
 * bytes that come from the file, and gives the lease back (ms_lease_thread_give_back). */
typedef void ms_lease_thread_answer(dev_t device, ino_t inode);

/*
 * Called once, before any lease. The lease thread also calls `deleted`, for a file that has lost
 * its last link and whose deletion is not answered. It asks the file system about files with a
 * lease; deletions of other files are found by checks.
 */
void ms_lease_thread_start(ms_lease_thread_answer *breaker, ms_lease_thread_answer *deleted);

/* Starts the lease thread if it is needed, or there are leases. Gives all leases back if the thread
 * cannot start. For threads of the program. */
void ms_lease_thread_serve(bool is_needed);

/* Gives back the lease of a file. From then on only the file's times show a change. */
void ms_lease_thread_give_back(dev_t device, ino_t inode);

/* For lease_thread.c and unit tests: finds a file whose deletion is not answered. */
bool ms_lease_thread_find_deleted(dev_t *device_out, ino_t *inode_out);
