/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files that are about to change while something on the device still comes from them: what depends
 * on their bytes is materialised first. So a program can convert a checkpoint in place. The same
 * for files that were deleted, so that their space is free.
 */
#pragma once

#include <sys/types.h>

/*
 * The program is about to change this file, or to open it for that; `call` is the function it
 * calls. Everything on the device that comes from the file, through any copies and recorded
 * launches, becomes resident; if out of device memory, a host copy is taken, within
 * METASHARD_SNAPSHOT_BYTES. What a plan gives to other ranks stays remote, and is lost: reading it
 * fails. Returns 0. If the bytes cannot be materialised, logs why and returns the errno that the
 * call must fail with, because the call would destroy their only copy.
 *
 * A child that shares the memory (vfork), and a signal handler that has interrupted a call of the
 * shim, count as another process: for them it returns 0 at once, and takes no lock. Otherwise the
 * thread does not wait for ever for a claim unless the driver may be called: when the bytes cannot
 * be brought into memory, a host copy of the whole file is taken (ms_source_close_keep).
 *
 * Cheap, and without a turn, for a file that nothing comes from: then a thread with a claim may
 * call it, too, because the driver writes files of its own. For other files, no claim may be held.
 */
int ms_file_writes_prepare(const char *call, dev_t device, ino_t inode);

/*
 * The program has removed the last link of this file. Nothing can change it any more, but it takes
 * its space while the shim has it open. What depends on it is brought into memory, as above, and
 * the file is let go; what a plan gives to other ranks is not read, and is lost. Where there is no
 * room the file is kept, and a line says so, once.
 */
void ms_file_writes_let_go(const char *call, dev_t device, ino_t inode);

/* The same of a file that the lease thread has found without links. */
void ms_file_writes_answer_deletion(dev_t device, ino_t inode);

/*
 * The program is about to take a write lease of this file, which ours would refuse, and an open
 * descriptor, too, on some kernels. What depends on the file is brought into memory, as above, and
 * the file is let go; it is not opened again. Where there is no room our lease alone is given up,
 * and a line says so.
 */
void ms_file_writes_prepare_lease(const char *call, dev_t device, ino_t inode);

/* The same as ms_file_writes_prepare for another process, which waits for the lease
 * (source/source_close.h) and always gets it. */
void ms_file_writes_answer(dev_t device, ino_t inode);
