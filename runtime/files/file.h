/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A file that the program had mapped has its own descriptor in the file thread's table
 * (file_thread.h), so unlinking the file loses no bytes, and the program's own descriptors and
 * locks of that file are not touched. Every read compares the file with its record: another size,
 * time or inode means that the file may not have the copied bytes any more, and the read fails
 * loudly.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/types.h>

#include "runtime/files/source.h"

struct ms_file;

static inline struct ms_source *ms_file_source(struct ms_file *file)
{
    return (struct ms_source *)file;
}

static inline void ms_file_take(struct ms_file *file)
{
    ms_source_take(ms_file_source(file));
}

static inline void ms_file_drop(struct ms_file *file)
{
    ms_source_drop(ms_file_source(file));
}

/* The file's attributes from when it became a source. */
const struct stat *ms_file_stat(const struct ms_file *file);

/* --- for the file thread and the threads that it starts; failures are returned, not logged */

struct ms_file_failure {
    const struct ms_file *file;
    enum {
        MS_FAILURE_LOST,
        MS_FAILURE_GIVEN_UP,
        MS_FAILURE_CHANGED,
        MS_FAILURE_UNANSWERED, /* changed, after the kernel has taken the lease away */
        MS_FAILURE_WRITTEN,
        MS_FAILURE_STORED_TO,
        MS_FAILURE_DIFFERS, /* from the copied bytes (sums.h) */
        MS_FAILURE_UNREADABLE
    } kind;
    uint64_t offset; /* where reading failed */
    size_t bytes;
    int error; /* errno; 0: the file ends before these bytes */
    struct stat now;
};

/* True if locks of the program may end when a descriptor of the file is closed. */
bool ms_file_ends_locks(const struct ms_file *file);

/*
 * Brackets each use of the descriptor, in the file thread and the threads that it starts. Opens the
 * file by its path if it is neither open nor copied. False: *failure_out says why the file cannot
 * be opened.
 */
bool ms_file_begin_use(const struct ms_file *file, struct ms_file_failure *failure_out);
void ms_file_end_use(const struct ms_file *file);

/* The file's descriptor, within a use. -1: only the copy is open. */
int ms_file_descriptor(const struct ms_file *file);

/* False: each use opens the file by its path, and closes it. */
bool ms_file_stays_open(const struct ms_file *file);

/* --- for all threads */

/* A file's state before this process changes it, while its bytes are materialised, and after. */
enum ms_file_state {
    MS_FILE_IS_OPEN,
    MS_FILE_IS_CLOSED,
    MS_FILE_IS_LOST,
    MS_FILE_IS_KEPT /* all bytes of the file are in a copy */
};
enum ms_file_state ms_file_state(const struct ms_file *file);

/* False if no source of this file is left, or each was let go. Almost always takes no lock. */
bool ms_file_may_be_of(dev_t device, ino_t inode);

/* Returns a reference to an open source of that file, or NULL. */
struct ms_file *ms_file_find_open(dev_t device, ino_t inode);

const char *ms_file_path(const struct ms_file *file);
