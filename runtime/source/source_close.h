/* SPDX-License-Identifier: Apache-2.0 */
/* Files that are about to change, or were deleted, while something may still come from them. */
#pragma once

#include <stdbool.h>
#include <sys/types.h>

/*
 * For a file that this process is about to change, or that was deleted; one file is closed at a
 * time. ms_source_close: from now on no reference is given out, and its sources are
 * closed; returns false if there are none; path_out has MS_PATH_BYTES. is_deleted: only sources
 * without a link, because the inode of a file that is gone may be a new one's; their deletion is
 * not found again, whatever becomes of them. ms_source_close_end: if is_lost, the bytes are lost,
 * reading fails from now on, and the file is let go: no lease and no descriptor is left, so its
 * inode may be another file's. Otherwise the sources are as before.
 */
bool ms_source_close(dev_t device, ino_t inode, bool is_deleted, char *path_out);
void ms_source_close_end(dev_t device, ino_t inode, bool is_lost);

/*
 * For a closed file whose bytes cannot be brought into memory: copies all of it, within
 * METASHARD_SNAPSHOT_BYTES. From then on its sources are read from the copy, and the file may
 * change. Needs no driver and no claim. Returns false if that cannot be done for all its sources.
 */
bool ms_source_close_keep(dev_t device, ino_t inode);

/*
 * Called on the lease thread when another process waits to change the file: materialises what comes
 * from it, and gives the lease back (ms_source_close_lease).
 */
typedef void ms_source_close_answer(dev_t device, ino_t inode);

/*
 * Called once, before any lease. `deleted` is called on the lease thread, too, for a file that has
 * lost its last link, and whose deletion nobody has answered: of files with a lease by asking the
 * file system, of others if a check has shown it.
 */
void ms_source_close_start(ms_source_close_answer *breaker, ms_source_close_answer *deleted);

/* Starts the lease thread if it is needed, or there are leases. If that fails, gives all leases
 * back. On a thread of the program. */
void ms_source_close_serve(bool is_needed);

/* Gives back the lease of a file. Without it only the file's times show a change. */
void ms_source_close_lease(dev_t device, ino_t inode);

/* For source_close.c and unit tests: finds a file whose deletion is not answered. */
bool ms_source_close_find_deleted(dev_t *device_out, ino_t *inode_out);
