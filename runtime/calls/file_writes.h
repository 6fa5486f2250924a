/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files that are about to change while something on the device still comes from them: what depends
 * on their bytes is materialised first. So a program can convert a checkpoint in place.
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
 * Cheap, and without a turn, for a file that nothing comes from: then a thread with a claim may
 * call it, too, because the driver writes files of its own. For other files, no claim may be held.
 */
int ms_prepare_file_write(const char *call, dev_t device, ino_t inode);

/* The same for another process, which waits for the lease (source/lease.h) and always gets it. */
void ms_answer_file_write(dev_t device, ino_t inode);
