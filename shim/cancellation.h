/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The runtime's door: what a thread of the program is while it is inside.
 *
 * It cannot be cancelled. The runtime opens files, reads, sleeps and waits for others, all of which are points of cancellation, with
 * claims, locks and brackets around reads; a thread that ended there would keep them for ever. So a cancellation waits until
 * the call returns, as it does where the driver is asked for the same. Each entry point that comes to the runtime, but for
 * looking something up, is inside from its beginning to its end, the driver's call included: a read is held until
 * that has returned. Entries that go straight to the driver are never inside.
 */
#ifndef METASHARD_SHIM_CANCELLATION_H
#define METASHARD_SHIM_CANCELLATION_H

#include <pthread.h>
#include <stddef.h>

#include "runtime/state/caller.h"

static inline int ms_cancellation_disable(void)
{
    int before;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
    return before;
}

static inline void ms_cancellation_restore(const int *before)
{
    pthread_setcancelstate(*before, NULL);
}

/* Until the end of the enclosing block. */
#define MS_INSIDE                                                              \
    const int door __attribute__((cleanup(ms_cancellation_restore), unused)) = \
        ms_cancellation_disable()

/* The same for a call of the program by the name that messages use. */
#define MS_ENTER(call)  \
    ms_caller = (call); \
    MS_INSIDE

#endif
