/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files that are about to change while something on the device still comes from them: what depends
 * on their bytes is materialised first. So a program can convert a checkpoint in place. The same
 * for files that were deleted, so that their space is free.
 */
#pragma once

#include <sys/types.h>

enum ms_file_change {
    /* The program is about to change it, or to open it for that. */
    MS_FILE_CHANGES,
    /* Its last link is removed. Nothing can change it any more, but it takes its space while the
     * shim has it open: it is let go. What a plan gives to other ranks is not read, and is lost.
     * Where there is no room the file is kept, and a line says so, once. */
    MS_FILE_DELETED,
    /* The program is about to take a write lease, which ours would refuse, and an open descriptor,
     * too, on some kernels. The file is let go, and not opened again. Where there is no room our
     * lease alone is given up, and a line says so. */
    MS_FILE_LEASED,
};

/*
 * `call` is the function that the program calls; NULL: another process does it. Everything on the
 * device that comes from the file, through any copies and recorded launches, becomes resident; if
 * out of device memory, a host copy is taken, within METASHARD_SNAPSHOT_BYTES. What a plan gives to
 * other ranks stays remote, and is lost: reading it fails. Returns 0. If the bytes cannot be
 * materialised, logs why and returns the errno that a call which changes the file must fail with,
 * because it would destroy their only copy.
 *
 * A child that shares the memory (vfork), and a signal handler that has interrupted a call of the
 * shim, count as another process: for them it returns 0 at once, and takes no lock. Otherwise the
 * thread does not wait for ever for a claim unless the driver may be called: when the bytes cannot
 * be brought into memory, a host copy of the whole file is taken (ms_source_close_keep).
 *
 * Cheap, and without a turn, for a file that nothing comes from: then a thread with a claim may
 * call it, too, because the driver writes files of its own. For other files, no claim may be held.
 */
int ms_file_writes_prepare(enum ms_file_change change, const char *call, dev_t device, ino_t inode);

/* From now on the lease thread answers what other processes do (source/source_close.h). */
void ms_file_writes_start(void);
