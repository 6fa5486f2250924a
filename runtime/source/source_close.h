/* SPDX-License-Identifier: Apache-2.0 */
/* Files that are about to change, or were deleted, while deferred bytes may come from them. */
#pragma once

#include <stdbool.h>
#include <sys/types.h>

/*
 * For a file that this process is about to change, or that was deleted; one file is closed at a
 * time. ms_source_close closes the file's sources: no reference is given out from then on. It
 * returns false if the file has none; path_out has MS_PATH_BYTES. With is_deleted it closes only
 * sources whose file has no link, because a new file may have the inode; the deletion of these is
 * not found again, whatever becomes of them.
 *
 * ms_source_close_end with is_lost gives the bytes up: reads fail from then on, and lease and
 * descriptor are closed, so another file may get the inode. Otherwise the sources are as before.
 */
bool ms_source_close(dev_t device, ino_t inode, bool is_deleted, char *path_out);
void ms_source_close_end(dev_t device, ino_t inode, bool is_lost);

/*
 * Copies all of a closed file whose bytes cannot be brought into memory, within
 * METASHARD_SNAPSHOT_BYTES. From then on its sources read the copy, and the file may change. Needs
 * no driver and no claim. Returns false if some source could not be copied.
 */
bool ms_source_close_keep(dev_t device, ino_t inode);

/* The lease thread calls this when another process waits to change the file. It materialises the
 * bytes that come from the file, and gives the lease back (ms_source_close_lease). */
typedef void ms_source_close_answer(dev_t device, ino_t inode);

/*
 * Called once, before any lease. The lease thread also calls `deleted`, for a file that has lost
 * its last link and whose deletion is not answered. It asks the file system about files with a
 * lease; deletions of other files are found by checks.
 */
void ms_source_close_start(ms_source_close_answer *breaker, ms_source_close_answer *deleted);

/* Starts the lease thread if it is needed, or there are leases. Gives all leases back if the thread
 * cannot start. For threads of the program. */
void ms_source_close_serve(bool is_needed);

/* Gives back the lease of a file. From then on only the file's times show a change. */
void ms_source_close_lease(dev_t device, ino_t inode);

/* For source_close.c and unit tests: finds a file whose deletion is not answered. */
bool ms_source_close_find_deleted(dev_t *device_out, ino_t *inode_out);
