/* SPDX-License-Identifier: Apache-2.0 */
/*
 * When the bytes of a file are certainly what they were. What a file system shows, and what not:
 *
 *     write(2), truncate(2)            shows in the times, after a tick of the file system's clock
 *     store through a shared mapping   shows at the first store to a page after its write-back;
 *                                      on tmpfs and hugetlbfs never: nobody must be able to store
 *     copy-up of an overlay            does not show: older mappings are of another file
 *
 * Keeps no state but the start of the process. Only for the file thread (file_thread.h).
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>
#include <time.h>

/* True if the content is the same by size and times. */
bool ms_trust_is_unchanged(const struct stat *then, const struct stat *now);

/* True if the content is the same by size and modification time. */
bool ms_trust_is_unwritten(const struct stat *then, const struct stat *now);

/*
 * True if a write after `now` must change a time: both are older than a tick of their clock, which
 * is taken as 20 ms, or 2 s if neither has a fraction of a second (vfat, ext3, Lustre, HFS+).
 */
bool ms_trust_is_settled(const struct stat *stat, const struct timespec *now);

/* Waits for that, at most 100 ms, and updates *stat. False: do not use the file as a source now. */
bool ms_trust_wait(int descriptor, struct stat *stat);

/*
 * True if the kernel knows all users of files there: on a local file system, by statfs(2)'s number.
 * On network file systems and FUSE another machine may write in spite of a lease.
 */
bool ms_trust_is_local(int descriptor);
bool ms_trust_is_local_type(uint32_t type);

/*
 * True if somebody may be using the file: it has a POSIX or OFD lock, also of this process (as of a
 * database), or a writer, which the kernel reports for local files of this user (F_SETLEASE); or no
 * name, and is not sealed.
 */
bool ms_trust_is_in_use(int descriptor, const struct stat *stat);

/* True if anybody has a POSIX or OFD lock, or this is unknown. */
bool ms_trust_is_locked(int descriptor);

/*
 * Closes a descriptor of a file. In the program's table (file_thread.h) only if it is still ours
 * and no lock would end with it; otherwise it stays open.
 */
void ms_trust_close(int descriptor);

/* True if stores through a mapping never show in the times, and are not sealed (F_SEAL_WRITE). */
bool ms_trust_hides_stores(int descriptor);

/*
 * Asks the kernel whether somebody has the file open for writing, or mapped through a descriptor
 * that was open for writing: a mapping keeps its descriptor's file open. Unknown on file systems of
 * other machines, of other users' files, and where nobody has an overlay's file open: it is mapped
 * as the file of a layer below. Not for a descriptor with a lease, which would be given back.
 */
enum ms_writers { MS_NO_WRITER, MS_WRITER, MS_WRITERS_UNKNOWN };
enum ms_writers ms_trust_ask_for_writers(int descriptor);

bool ms_trust_is_overlay(int descriptor);

/* True on tmpfs and hugetlbfs. Only there a handler of the program (userfaultfd) may give a mapping
 * pages that are not the file's. */
bool ms_trust_is_in_memory(int descriptor);

/*
 * Gets what the file system says of the file. False if a change would not show: on a file system
 * of other machines, which may be below an overlay, the file must have times, and they must be what
 * the kernel keeps: if not, it has changed behind the kernel, whose pages of it may be older. Where
 * nobody can be asked, false there, but not for overlays.
 */
bool ms_trust_look(int descriptor, struct stat *stat_out);

/* True if since the last call a file was refused because nobody can be asked. For any thread. */
bool ms_trust_was_not_asked(void);

/* True on an overlay, if a copy-up may have happened since the process began: then a mapping may be
 * of another file than the descriptor. */
bool ms_trust_may_be_copy(int descriptor, const struct stat *stat);
