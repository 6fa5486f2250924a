/* SPDX-License-Identifier: Apache-2.0 */
/*
 * When the bytes of a file are certainly what they were. What a file system tells, and what it does not:
 *
 *     write(2), truncate(2)            shows in the times, once a tick of the file system's clock is over
 *     store through a shared mapping   shows when a page is first stored to after it was written back; on tmpfs and
 *                                      hugetlbfs never: there must be nobody who can store
 *     copy-up of an overlay            does not show: mappings made before keep other bytes, in another file
 *
 * Holds no state but when the process began. To be called in the file thread (file_thread.h).
 */
#ifndef METASHARD_RUNTIME_SOURCE_TRUST_H
#define METASHARD_RUNTIME_SOURCE_TRUST_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>
#include <time.h>

/* True when the content is the same, as far as size and times tell. */
bool ms_trust_is_unchanged(const struct stat *then, const struct stat *now);

/*
 * True when a write from `now` on must change a time: both are older than a tick of the clock that they come from. That is
 * taken to be 20 ms, or 2 s where neither has a part of a second (vfat, ext3, Lustre, HFS+).
 */
bool ms_trust_is_settled(const struct stat *stat, const struct timespec *now);

/* Waits for that, 100 ms at most, and updates *stat. False: do not take the file for a source now. */
bool ms_trust_wait(int descriptor, struct stat *stat);

/*
 * Whether the kernel knows of everybody who uses files there: a local file system, by statfs(2)'s number. On a network file
 * system, and in FUSE, a lease is granted or refused for other reasons, and another machine writes in spite of it.
 */
bool ms_trust_is_local(int descriptor);
bool ms_trust_is_local_type(uint32_t type);

/*
 * Whether somebody may be at work on the file: it has a POSIX or OFD lock of anybody's, this process included (a database in
 * use), or is open for writing somewhere, as far as the kernel tells: it does so of local files that belong to this user
 * (F_SETLEASE).
 */
bool ms_trust_is_in_use(int descriptor, const struct stat *stat);

/* A POSIX or OFD lock of anybody's; true also where that cannot be told. */
bool ms_trust_is_locked(int descriptor);

/*
 * Closes a descriptor of a file. In the program's table (file_thread.h) only if it is still ours, and no lock would end with it;
 * otherwise it stays open for good.
 */
void ms_trust_close(int descriptor);

/* On a file system where a store through a mapping never shows in the times, and nothing forbids it (F_SEAL_WRITE). */
bool ms_trust_hides_stores(int descriptor);

/* Open for writing somewhere, as in ms_trust_is_in_use. */
bool ms_trust_has_writer(int descriptor);

/* On an overlay, and perhaps copied up since the process began: a mapping may be of another file than what is opened. */
bool ms_trust_may_be_copy(int descriptor, const struct stat *stat);

#endif
