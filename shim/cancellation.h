/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Cancellation of threads inside the shim.
 *
 * A thread inside the shim cannot be cancelled. The runtime opens files, reads, sleeps and waits,
 * all of which are cancellation points, while it holds claims, locks and reads; a thread that ended
 * there would hold them for ever. A cancellation therefore waits until the call returns, as it does
 * in the driver's own calls. Each entry point that calls the runtime is inside from beginning to
 * end, including the driver's call, until whose return the shim may hold a read. Entries that go
 * straight to the driver are never inside.
 *
 * For a suspension (quiesce.h), a call is under way while it is inside.
 *
 * A signal handler can see that it has interrupted such a call: ms_calls_inside (caller.h).
 */
#pragma once

#include <pthread.h>
#include <stddef.h>

#include "runtime/driver/quiesce.h"
#include "runtime/state/caller.h"

static inline int ms_cancellation_disable(void)
{
    int before;
    const bool is_outermost = ms_calls_inside++ == 0;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
    if (is_outermost && ms_counts_calls())
        ms_quiesce_enter();
    return before;
}

static inline void ms_cancellation_restore(const int *before)
{
    if (ms_quiesce_is_counted && ms_calls_inside == 1)
        ms_quiesce_leave();
    pthread_setcancelstate(*before, NULL);
    ms_calls_inside--;
}

/* Disables cancellation until the end of the enclosing block. */
#define MS_INSIDE                                                              \
    const int door __attribute__((cleanup(ms_cancellation_restore), unused)) = \
        ms_cancellation_disable()

/* MS_INSIDE for a call of the program; `call` is the name in messages. */
#define MS_ENTER(call)  \
    ms_caller = (call); \
    MS_INSIDE
