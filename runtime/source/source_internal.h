/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a source is, for the files that make up source.h: source.c (what there is), source_find.c (what an address is of),
 * source_read.c (reading, and whether a file is still what it was), source_close.c (files that are about to change, and their
 * leases).
 */
#ifndef METASHARD_RUNTIME_SOURCE_SOURCE_INTERNAL_H
#define METASHARD_RUNTIME_SOURCE_SOURCE_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/stat.h>

#include "runtime/base/counted.h"
#include "runtime/config/config.h"
#include "runtime/source/lease.h"
#include "runtime/source/source.h"

/* A file that this process changes: before, while what comes from it is brought in, and from then on. */
enum ms_source_state { MS_SOURCE_IS_OPEN, MS_SOURCE_IS_CLOSED, MS_SOURCE_IS_LOST };

struct ms_source {
    struct ms_counted counted; /* first: lineage.h */
    bool is_file;
    _Atomic(enum ms_source_state) state; /* changed under ms_files.lock */

    /* file */
    int descriptor;
    bool hides_stores; /* ms_trust_hides_stores; then it is watched, for closed writers */
    int watch;         /* -1: it cannot be */
    bool was_writable; /* since it was recorded, for somebody; guarded by ms_files.lock */
    struct ms_lease lease;
    _Atomic bool
        is_unwritten; /* since it can be found by its inode, nobody here has had it open for writing unseen */
    struct stat recorded;
    struct stat *last, own_last; /* as it was at the last look, which ms_files.lock guards */
    char path[MS_PATH_BYTES];
    struct ms_source *next; /* in the list of open files, guarded by ms_files.lock */

    /* snapshot */
    size_t bytes;
    unsigned char data[];
};

/* Guards the list of open files. One without references is about to leave it. Held across nothing that waits. */
extern struct ms_files {
    pthread_mutex_t lock;
    struct ms_source *first;
} ms_files;

/* A file that is in the list from then on. Takes the descriptor. NULL: memory is out. */
struct ms_source *ms_source_create_file(int descriptor, const struct stat *stat, const char *path);

/* A snapshot whose bytes are not written yet. NULL: beyond the limit, or memory is out. */
struct ms_source *ms_source_create_snapshot(size_t bytes);

#endif
