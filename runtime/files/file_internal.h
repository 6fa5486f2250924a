/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The struct of a file, for the files of this folder that see inside: file.c (its life),
 * trust.c (is it unchanged), own_writers.c, file_read.c, direct.c, sums.c, change.c (files that are
 * about to change), lease_thread.c.
 *
 * New code in these files follows these rules. System calls with a descriptor are for the file
 * thread and the threads that it starts, within a use (ms_file_begin_use). A file leaves the list
 * while its last reference is dropped, so who finds it there takes a reference by
 * ms_counted_try_take, or is done with it before the lock is dropped. A descriptor may be closed,
 * and its number be another file's, as soon as a source is let go: what was read counts only after
 * ms_trust_check.
 */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/stat.h>

#include "runtime/base/lock.h"
#include "runtime/base/pages.h"
#include "runtime/config/config.h"
#include "runtime/files/file.h"
#include "runtime/files/lease.h"

/* Which changes the file system shows (trust.h). Immutable once the file can be found. */
struct ms_file_system {
    bool is_local; /* the kernel knows all users of files there: no other machine writes */
    bool is_overlay;
    bool is_in_memory; /* tmpfs and hugetlbfs: only there a handler of the program (userfaultfd) may
                        * give a mapping pages that are not the file's */
    bool hides_stores; /* stores through a mapping never show in the times, and no seal
                        * (F_SEAL_WRITE) forbids them: the file is watched for closed writers */
    bool may_be_copy;  /* the overlay may have copied the file up since the process began: then a
                        * mapping may be of another file than the descriptor */
};

struct ms_file {
    struct ms_source source;           /* must be first: ms_file_source */
    _Atomic(enum ms_file_state) state; /* changed under ms_files.lock */
    _Atomic int descriptor;            /* -1: ms_file_begin_use opens the file */
    bool stays_open;    /* false: closed after each use; immutable once the file can be found */
    _Atomic int direct; /* descriptor that reads past the page cache (direct.h) */
    uint32_t users;     /* uses of a file that does not stay open; guarded by ms_files.lock */
    _Atomic int copy;   /* a descriptor of the shim's copy of all bytes; -1: none */
    _Atomic unsigned under_read; /* reads of the file itself in progress */
    struct ms_file_system system;
    int watch;               /* -1: the file is not watched */
    bool was_writable;       /* a writer may have closed it since; guarded by ms_files.lock */
    _Atomic bool is_deleted; /* a check has found that no link is left */
    bool is_answered;        /* the deletion was answered; guarded by ms_files.lock */
    bool is_let_go;          /* its descriptor is closed; guarded by ms_files.lock */
    bool has_asked;          /* for a lease; only the file thread uses it */
    struct ms_lease lease;
    /* A check found no descriptor of this process that can write; later opens are intercepted. */
    _Atomic bool is_unwritten;
    struct stat recorded;
    dev_t mapped_device; /* as the kernel lists its mappings */
    ino_t mapped_inode;
    bool looks_again; /* each copy looks at the mappings: mprotect may make one writable */
    struct ms_pages sum_pages;
    _Atomic uint64_t *_Atomic sums; /* in sum_pages (sums.h); NULL: none */
    struct stat *last, own_last;    /* from the last check; guarded by ms_files.lock */
    char path[MS_PATH_BYTES];
    struct ms_file_name *_Atomic name; /* a reference; NULL: nobody has asked for it */
    struct ms_file *next;              /* in the list of open files, guarded by ms_files.lock */
};

_Static_assert(offsetof(struct ms_file, source) == 0, "ms_file_source casts");

/* True if the file had a link when it became a source, and has none now. */
static inline bool ms_file_has_lost_links(const struct ms_file *file, const struct stat *now)
{
    return now->st_nlink == 0 && file->recorded.st_nlink > 0;
}

/* The open files. A file without references is about to leave the list. The lock is never held
 * across a wait. */
extern struct ms_files {
    struct ms_lock lock;
    struct ms_file *first;
} ms_files;

/* Adds a file to the list, with a use begun (ms_file_end_use), and owns the descriptor from then
 * on. Returns NULL if out of memory. */
struct ms_mapping;
struct ms_file *ms_file_create(int descriptor, const struct stat *stat,
                               const struct ms_file_system *system,
                               const struct ms_mapping *mapping);

/* True if a writer has closed the watched file since it was recorded. */
bool ms_file_had_writer(const struct ms_file *file);

/* Closes the file's descriptor and gives its lease back, once. In the file thread. A thread that
 * still reads may then read another file, which ms_trust_check notices. */
void ms_file_let_go(struct ms_file *file);
