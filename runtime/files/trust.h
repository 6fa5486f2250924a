/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Decides whether the bytes of a file are certainly unchanged. How a file system shows changes:
 *
 *     write(2), truncate(2)            shows in the times, after a tick of the file system's clock
 *     store through a shared mapping   shows at the first store to a page after its write-back;
 *                                      on tmpfs and hugetlbfs never: nobody must be able to store
 *     copy-up of an overlay            does not show: older mappings are of another file
 *
 * Functions are for the file thread (file_thread.h) and, unless said otherwise, for the threads
 * that it starts.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>
#include <time.h>

#include "runtime/files/file.h"

/*
 * Returns a mapped file as a source, if it has at least `end` bytes, and a change of it would show;
 * or NULL. Also NULL if somebody may be using the file: it has a POSIX or OFD lock, also of this
 * process (as of a database), or a writer, which the kernel reports for local files of this user
 * (F_SETLEASE); or it has no name, and is not sealed. For any thread.
 */
struct ms_mapping;
struct ms_file *ms_trust_open(struct ms_mapping *mapping, uint64_t end);

/*
 * Like ms_trust_open, for a file that no copy is from yet: takes no lease, so no writer waits. NULL
 * also if the file has other times than `then`; on an overlay, where a descriptor from before a
 * copy-up reads another file; and where stores through a mapping never show. In the file thread
 * itself.
 */
struct ms_file *ms_trust_look(struct ms_mapping *mapping, const struct stat *then);

/* True if a file was refused since the last call because its file system cannot be asked. For any
 * thread. */
bool ms_trust_was_not_asked(void);

/* True if the file is unchanged; to be called after each read. */
bool ms_trust_check(const struct ms_file *file, struct ms_file_failure *failure_out);

/* True unless a store through a mapping of this process may have changed the file unseen. To be
 * called once all bytes were read, in the file thread itself, because it may look at all
 * mappings. */
bool ms_trust_check_mappings(const struct ms_file *file, struct ms_file_failure *failure_out);

/* True if the file is unchanged, and nobody may store to it unseen: a copy may refer to it, so a
 * lease is taken, if there is none. In the file thread itself. */
bool ms_trust_is_sure(struct ms_file *file);

/* True if the file was last changed before this process began. For any thread. */
bool ms_trust_is_older(const struct ms_file *file);

/* True if the last check of the file found these size and times. For any thread. */
bool ms_trust_had_times(const struct ms_file *file, const struct stat *then);

/* For any thread. True if a mapping of the file may be of another file, because the file system, an
 * overlay, may have copied the file up since the process began. */
bool ms_trust_may_be_copy(const struct ms_file *file);

/* True on tmpfs and hugetlbfs: a handler of the program (userfaultfd) may give a mapping pages that
 * are not the file's. */
bool ms_trust_is_in_memory(const struct ms_file *file);

/* --- for trust.c and its unit test */

/* True if the content is the same by size and times. */
bool ms_trust_is_unchanged(const struct stat *then, const struct stat *now);

/*
 * True if a write after `now` must change a time: both are older than a tick of their clock, which
 * is taken as 20 ms, or 2 s if neither has a fraction of a second (vfat, ext3, Lustre, HFS+).
 */
bool ms_trust_is_settled(const struct stat *stat, const struct timespec *now);

/* Waits until the times are settled, at most 100 ms, and updates *stat. False: do not use the file
 * as a source now. */
bool ms_trust_wait(int descriptor, struct stat *stat);

/* True if no other machine writes to a file system with this number of statfs(2). On network file
 * systems and FUSE another machine may write, in spite of a lease. */
bool ms_trust_is_local_type(uint32_t type);
