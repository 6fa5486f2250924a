/* SPDX-License-Identifier: Apache-2.0 */
/* Files that are about to change, or were deleted, while bytes on the device still come from them.
 * The shim materialises these bytes first. So a program can convert a checkpoint in place, and the
 * space of a deleted file becomes free. */
#pragma once

#include <sys/types.h>

enum ms_file_change {
    /* The program is about to change the file, or to open it for writing. */
    MS_FILE_CHANGES,
    /*
     * The file's last link is removed. Nothing can change the file any more, but it takes its space
     * while the shim has it open, so the shim lets it go. Bytes that a plan gives to other ranks
     * are not read, and are lost. If there is no room for the other bytes, the shim keeps the file
     * and logs so, once.
     */
    MS_FILE_DELETED,
    /* The program is about to take a write lease, which the shim's lease would prevent, and on some
     * kernels an open descriptor, too. The shim lets the file go, and does not open it again. If
     * there is no room for the bytes, the shim gives up its lease alone, and logs so. */
    MS_FILE_LEASED,
};

/*
 * Prepares a change of the file. `call` is the function that the program calls; NULL: another
 * process makes the change. Everything on the device that comes from the file, through any copies
 * and recorded launches, becomes resident. If device memory runs out, the shim takes a host copy,
 * within METASHARD_SNAPSHOT_BYTES. Bytes that a plan gives to other ranks stay remote and are lost:
 * reading them fails. Returns 0. If the bytes cannot be materialised, logs why and returns the
 * errno with which the program's call must fail, because the change would destroy their only copy.
 *
 * A child that shares the memory (vfork), and a signal handler that has interrupted a call of the
 * shim, count as another process: for them the function returns 0 at once, and takes no lock. Other
 * threads wait for ever for a claim only if they may call the driver. When the bytes cannot be
 * brought into memory, the shim takes a host copy of the whole file (ms_change_keep).
 *
 * Cheap, and without the turn, for a file that nothing comes from. A thread with a claim may call
 * the function for such files, because the driver writes files of its own; for other files, no
 * claim may be held.
 */
int ms_file_writes_prepare(enum ms_file_change change, const char *call, dev_t device, ino_t inode);

/* From now on the lease thread answers changes by other processes (files/lease_thread.h). */
void ms_file_writes_start(void);
