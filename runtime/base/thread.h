/* SPDX-License-Identifier: Apache-2.0 */
/* The shim's own threads. */
#pragma once

#include <pthread.h>
#include <stddef.h>

/*
 * Memory of the calling thread, for data too large for static thread-local storage: all libraries
 * together may have less than 2 KiB of it (glibc's manual, rtld.optional_static_tls). The first
 * call of a thread allocates `bytes` zeroed bytes, and the end of the thread frees them. NULL if
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
 * pthread_create with all signals blocked, since signals belong to the program, and with a stack of
 * fixed size: the default is the process's limit, which suits only the program's own threads.
 */
int ms_thread_create(pthread_t *thread_out, void *(*run)(void *), void *argument);
