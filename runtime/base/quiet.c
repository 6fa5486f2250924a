/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/base/quiet.h"

#include <errno.h>
#include <pthread.h>
#include <time.h>

static const int caused[] = {SIGPIPE, SIGXFSZ};
enum { CAUSED = sizeof(caused) / sizeof(caused[0]) };

static void make_set(sigset_t *set)
{
    sigemptyset(set);
    for (int i = 0; i < CAUSED; i++)
        sigaddset(set, caused[i]);
}

void ms_quiet_begin(struct ms_quiet *quiet)
{
    sigset_t set;
    make_set(&set);
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &quiet->cancel_state);
    pthread_sigmask(SIG_BLOCK, &set, &quiet->mask_before);
    sigpending(&quiet->pending_before);
}

/* The kernel sends the signal to the writing thread; sigtimedwait takes a thread's own first. */
static void take_away(int signal)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, signal);
    while (sigtimedwait(&set, NULL, &(struct timespec){0}) < 0 && errno == EINTR)
        ;
}

static void take_all_away(const struct ms_quiet *quiet)
{
    sigset_t pending;
    sigpending(&pending);
    for (int i = 0; i < CAUSED; i++) {
        if (sigismember(&pending, caused[i]) && !sigismember(&quiet->pending_before, caused[i]))
            take_away(caused[i]);
    }
}

void ms_quiet_end(const struct ms_quiet *quiet, bool has_failed)
{
    const int saved_errno = errno;
    if (has_failed)
        take_all_away(quiet);
    pthread_sigmask(SIG_SETMASK, &quiet->mask_before, NULL);
    pthread_setcancelstate(quiet->cancel_state, NULL);
    errno = saved_errno;
}
