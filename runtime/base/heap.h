/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The heap for the shim's records and snapshots, apart from the program's malloc: a private
 * jemalloc arena, or libc's malloc when built with -Dheap=libc (sanitizers). Initialised by the
 * first allocation, so a process that never defers anything pays nothing. NULL when memory is out.
 */
#ifndef METASHARD_RUNTIME_BASE_HEAP_H
#define METASHARD_RUNTIME_BASE_HEAP_H

#include <stddef.h>

void *ms_heap_alloc(size_t bytes);
void *ms_heap_zalloc(size_t bytes);
void *ms_heap_realloc(void *memory, size_t bytes); /* memory may be NULL */
void ms_heap_free(void *memory);                   /* memory may be NULL */

#endif
