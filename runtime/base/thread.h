/* SPDX-License-Identifier: Apache-2.0 */
/* The shim's own threads. */
#pragma once

#include <pthread.h>

/*
 * pthread_create with all signals blocked, since they belong to the program, and with a stack that
 * is large enough: the default is the process's limit, which suits the program's own threads only.
 */
int ms_thread_create(pthread_t *thread_out, void *(*run)(void *), void *argument);
