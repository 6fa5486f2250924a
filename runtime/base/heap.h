/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The heap for the shim's records and snapshots, apart from the program's malloc: a private
 * jemalloc arena, or libc's malloc when built with -Dheap=libc (sanitizers). Initialised by the
 * first allocation, so a process that never defers anything pays nothing. NULL when memory is out, which is told: the
 * program may see it as CUDA_ERROR_OUT_OF_MEMORY, and would think of the device.
 */
#ifndef METASHARD_RUNTIME_BASE_HEAP_H
#define METASHARD_RUNTIME_BASE_HEAP_H

#include <stddef.h>

#include "runtime/base/log.h"

void *ms_heap_alloc(size_t bytes);
void *ms_heap_zalloc(size_t bytes);
void *ms_heap_realloc(void *memory, size_t bytes); /* memory may be NULL */
void ms_heap_free(void *memory);                   /* memory may be NULL */

/* For the two that implement this: what they got for so many bytes. */
static inline void *ms_heap_checked(void *memory, size_t bytes)
{
    if (memory == NULL && bytes > 0)
        ms_log(MS_WARN, "no host memory for %zu bytes of what is kept on deferred memory", bytes);
    return memory;
}

#endif
