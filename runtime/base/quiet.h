/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writing without a signal to the program. A write to a pipe that nobody reads raises SIGPIPE, and
 * a write beyond RLIMIT_FSIZE raises SIGXFSZ; both end a program that does not expect them. Their
 * dispositions belong to the program, so the bracket blocks both signals in this thread only, and
 * consumes a signal that our write caused. A signal that was pending before stays pending.
 */
#pragma once

#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>
#include <unistd.h>

/* A bracket around writes. Within it the thread cannot be cancelled either. */
struct ms_quiet {
    sigset_t mask_before, pending_before;
    int cancel_state;
};
void ms_quiet_begin(struct ms_quiet *quiet);

/* has_failed: a write within the bracket failed, so its signal may be pending. Keeps errno. */
void ms_quiet_end(const struct ms_quiet *quiet, bool has_failed);

/* write(2) within a bracket of its own. */
static inline ssize_t ms_quiet_write(int descriptor, const void *bytes, size_t count)
{
    struct ms_quiet quiet;
    ms_quiet_begin(&quiet);
    const ssize_t written = write(descriptor, bytes, count);
    ms_quiet_end(&quiet, written != (ssize_t)count);
    return written;
}
