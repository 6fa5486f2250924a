/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files that stay open for a moment though no deferred bytes come from them: the next copy is
 * likely from the same file, and opening a file takes longer than asking for its times. The lease
 * thread (lease_thread.h) lets a file go, with its lease, if nobody has asked for it within half a
 * second and no deferred bytes come from it.
 *
 * For the file thread alone, but for ms_kept_files_use and ms_kept_files_any.
 */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <time.h>

#include "runtime/base/clock.h"
#include "runtime/files/file.h"

/* A place for one file, in a struct of its owner. Zeroed: none. */
struct ms_kept_file {
    struct ms_file *file; /* a reference, or NULL: it may have been let go since */
    _Atomic uint64_t used_ns;
    struct ms_kept_file *next, **link; /* in the list of all places that keep a file */
};

/* Takes the reference, and drops the reference before. NULL: keeps no file. */
void ms_kept_files_set(struct ms_kept_file *kept, struct ms_file *file);

/* The file is asked for: it is kept from now on, if it is still there. For any thread. */
static inline void ms_kept_files_use(struct ms_kept_file *kept)
{
    atomic_store_explicit(&kept->used_ns, ms_clock_ns(CLOCK_MONOTONIC), memory_order_relaxed);
}

/* Lets go of files that nobody has asked for within half a second. */
void ms_kept_files_let_go(void);

/* True if any file is kept. For any thread. */
extern _Atomic bool ms_kept_files_any;
