/* SPDX-License-Identifier: Apache-2.0 */
/* Threads of our own. */
#ifndef METASHARD_RUNTIME_BASE_THREAD_H
#define METASHARD_RUNTIME_BASE_THREAD_H

#include <pthread.h>

/*
 * pthread_create with all signals blocked, which are the program's, and with a stack that our code fits on: the default
 * is the limit of the process, and a program may have set that as low as its own threads allow.
 */
int ms_thread_create(pthread_t *thread_out, void *(*run)(void *), void *argument);

#endif
