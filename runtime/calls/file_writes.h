/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files that are about to change while something on the device still comes from them: what depends on their bytes is
 * brought into memory first. A checkpoint may so be converted in place.
 */
#ifndef METASHARD_RUNTIME_CALLS_FILE_WRITES_H
#define METASHARD_RUNTIME_CALLS_FILE_WRITES_H

#include <sys/types.h>

/*
 * The program is about to change this file, or to open it for that; `call` is what it calls. Everything on the device that
 * comes from the file, by whatever copies and recorded launches, becomes resident; where device memory is out, a host
 * copy is taken, within METASHARD_SNAPSHOT_BYTES. What a plan gives to other ranks stays remote, and is lost: reading it
 * fails. Returns 0; or, where the bytes cannot be brought in, the errno that the call must fail with, and one line in
 * the log says why: what the call would destroy is all that there is of them.
 *
 * For a file that nothing comes from it is cheap, takes no turn, and may be called with a claim: the
 * driver writes to files of its own. For others, only a thread that holds no claim calls it.
 */
int ms_prepare_file_write(const char *call, dev_t device, ino_t inode);

/* The same for another process, which waits for our lease (source/lease.h) and gets it in any case. */
void ms_answer_file_write(dev_t device, ino_t inode);

#endif
