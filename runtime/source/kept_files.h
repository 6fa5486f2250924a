/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files that stay open for a moment though nothing comes from them: the next copy is likely from
 * them, and opening one again takes longer than asking for its times. A file that nobody has asked
 * for within half a second is let go, with its lease, by the lease thread (source_close.h), unless
 * deferred bytes come from it.
 *
 * For the file thread alone, but for ms_kept_files_any.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <time.h>

#include "runtime/base/clock.h"
#include "runtime/source/source.h"

/* A place for one file, in a struct of its owner. Zeroed: none. */
struct ms_kept_file {
    struct ms_source *source; /* a reference, or NULL: it may have been let go since */
    uint64_t used_ns;
    struct ms_kept_file *next, **link; /* in the list of all that keep one */
};

/* Takes the reference in place of the one before; NULL: keeps none. */
void ms_kept_files_set(struct ms_kept_file *kept, struct ms_source *source);

/* The file is asked for: it is kept from now on. */
static inline void ms_kept_files_use(struct ms_kept_file *kept)
{
    kept->used_ns = ms_clock_ns(CLOCK_MONOTONIC);
}

/* Lets go of those that nobody has asked for. */
void ms_kept_files_let_go(void);

/* True if there is any. For any thread. */
extern _Atomic bool ms_kept_files_any;
