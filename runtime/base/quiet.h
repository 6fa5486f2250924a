/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writing without a signal to the program. A write to a pipe that nobody reads is a SIGPIPE, and one beyond
 * RLIMIT_FSIZE a SIGXFSZ; both end a program that does not expect them. Their dispositions are the program's, so they are
 * blocked in this thread alone, and the one that our write has caused is taken away again. A signal of the program
 * that was pending before stays pending.
 */
#ifndef METASHARD_RUNTIME_BASE_QUIET_H
#define METASHARD_RUNTIME_BASE_QUIET_H

#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

/* A bracket around writes. Within it the thread cannot be cancelled either. */
struct ms_quiet {
    sigset_t mask_before, pending_before;
    int cancel_state;
};
void ms_quiet_begin(struct ms_quiet *quiet);

/* has_failed: a write within the bracket did, so a signal of it may be pending. errno stays. */
void ms_quiet_end(const struct ms_quiet *quiet, bool has_failed);

/* write(2), within such a bracket. */
ssize_t ms_quiet_write(int descriptor, const void *bytes, size_t count);

#endif
