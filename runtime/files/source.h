/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sources: the bytes behind deferred data that are not a simple pattern. A source is either a
 * *file* that the program had mapped, or a *snapshot*: a host copy, taken because the program may
 * change its buffer. Reference-counted; immutable after creation; usable from any thread.
 *
 * A file source has its own descriptor in the file thread's table (file_thread.h), so unlinking the
 * file loses no bytes, and the program's own descriptors and locks of that file are not touched.
 * Every read compares the file with its record: another size, time or inode means that the file may
 * not have the copied bytes any more, and the read fails loudly.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/types.h>

#include "runtime/base/counted.h"

struct ms_source;

/* The file's attributes from when it became a source. */
const struct stat *ms_source_stat(const struct ms_source *file);

void ms_source_take(struct ms_source *source);
void ms_source_drop(struct ms_source *source);

bool ms_source_is_file(const struct ms_source *source);

/* --- for the file thread and the threads that it starts; failures are returned, not logged */

struct ms_source_failure {
    const struct ms_source *file;
    enum {
        MS_SOURCE_LOST,
        MS_SOURCE_GIVEN_UP,
        MS_SOURCE_CHANGED,
        MS_SOURCE_UNANSWERED, /* changed, after the kernel has taken the lease away */
        MS_SOURCE_WRITTEN,
        MS_SOURCE_STORED_TO,
        MS_SOURCE_DIFFERS, /* from the copied bytes (sums.h) */
        MS_SOURCE_UNREADABLE
    } kind;
    uint64_t offset; /* where reading failed */
    size_t bytes;
    int error; /* errno; 0: the file ends before these bytes */
    struct stat now;
};

/* True if locks of the program may end when a descriptor of the file is closed. */
bool ms_source_ends_locks(const struct ms_source *file);

/*
 * Brackets each use of the descriptor, in the file thread and the threads that it starts. Opens the
 * file by its path if it is neither open nor copied. False: *failure_out says why the file cannot
 * be opened.
 */
bool ms_source_begin_use(const struct ms_source *file, struct ms_source_failure *failure_out);
void ms_source_end_use(const struct ms_source *file);

/* The file's descriptor, within a use. -1: only the copy is open. */
int ms_source_descriptor(const struct ms_source *file);

/* False: each use opens the file by its path, and closes it. */
bool ms_source_stays_open(const struct ms_source *file);

/* --- for all threads */

/* A file's state before this process changes it, while its bytes are materialised, and after. */
enum ms_source_state {
    MS_SOURCE_IS_OPEN,
    MS_SOURCE_IS_CLOSED,
    MS_SOURCE_IS_LOST,
    MS_SOURCE_IS_KEPT /* all bytes of the file are in a copy */
};
enum ms_source_state ms_source_state(const struct ms_source *source);

/* False if no source of this file is left, or each was let go. Almost always takes no lock. */
bool ms_source_may_be_of(dev_t device, ino_t inode);

/* Returns a reference to an open source of that file, or NULL. */
struct ms_source *ms_source_find_open(dev_t device, ino_t inode);

const char *ms_source_path(const struct ms_source *source); /* "" for a snapshot */
