/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/base/thread.h"

#include <signal.h>
#include <stddef.h>

/* Enough for the recursive parser on deep plans. More would cost address space, perhaps limited. */
enum { STACK_BYTES = 2 << 20 };

int ms_thread_create(pthread_t *thread_out, void *(*run)(void *), void *argument)
{
    sigset_t all, before;
    pthread_attr_t attributes;
    int error = pthread_attr_init(&attributes);
    if (error != 0)
        return error;
    pthread_attr_setstacksize(&attributes, STACK_BYTES);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    error = pthread_create(thread_out, &attributes, run, argument);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
    return error;
}
