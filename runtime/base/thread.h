/* SPDX-License-Identifier: Apache-2.0 */
/* The shim's own threads. */
#pragma once

#include <pthread.h>
#include <stddef.h>

/*
 * Memory of the calling thread, for what is too large for static thread-local storage, of which
 * there may be less than 2 KiB for all libraries (glibc's manual, rtld.optional_static_tls). Zeroed
 * when the thread first asks, of the size that is asked for then, and freed when it ends. NULL if
 * out of memory.
 */
enum ms_thread_memory {
    MS_THREAD_FAULT,
    MS_THREAD_RECEIVES,
    MS_THREAD_COMPARES,
    MS_THREAD_MEMORY_COUNT
};
void *ms_thread_memory(enum ms_thread_memory which, size_t bytes);

/*
 * pthread_create with all signals blocked, since they belong to the program, and with a stack that
 * is large enough: the default is the process's limit, which suits the program's own threads only.
 */
int ms_thread_create(pthread_t *thread_out, void *(*run)(void *), void *argument);
