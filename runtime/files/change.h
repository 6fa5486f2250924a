/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files that are about to change, or were deleted, while deferred bytes may come from them. While
 * a file is closed its bytes are brought into memory, and nothing new refers to it:
 *
 *     open --- begin ---> closed --- end, is_lost ---> lost: reads fail
 *          <--- end -----        --- keep -----------> kept: reads get the copy
 *
 * The file may change once its sources are lost or kept. The state changes under ms_files.lock,
 * which is not held while the file thread asks a file system, or copies.
 */
#pragma once

#include <stdbool.h>
#include <sys/types.h>

/*
 * For a file that this process is about to change, or that was deleted; one file is closed at a
 * time. ms_change_begin closes the file's sources: no reference is given out from then on. It
 * returns false if the file has none; path_out has MS_PATH_BYTES. With is_deleted it closes only
 * sources whose file has no link, because a new file may have the inode; the deletion of these is
 * not found again, whatever becomes of them.
 *
 * ms_change_end with is_lost gives the bytes up: reads fail from then on, and lease and
 * descriptor are closed, so another file may get the inode. Otherwise the sources are as before.
 */
bool ms_change_begin(dev_t device, ino_t inode, bool is_deleted, char *path_out);
void ms_change_end(dev_t device, ino_t inode, bool is_lost);

/*
 * Copies all of a closed file whose bytes cannot be brought into memory, within
 * METASHARD_SNAPSHOT_BYTES. From then on its sources read the copy, and the file may change. Needs
 * no driver and no claim. Returns false if some source could not be copied.
 */
bool ms_change_keep(dev_t device, ino_t inode);
