/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The heap for the shim's records and snapshots, separate from the program's malloc: a private
 * jemalloc arena, or libc's malloc when built with -Dheap=libc (sanitizers). The first allocation
 * initialises it, so a process that never defers anything pays nothing. Functions that find no
 * memory return NULL and log it: the program may get CUDA_ERROR_OUT_OF_MEMORY, and its user would
 * blame the device.
 */
#pragma once

#include <stddef.h>

#include "runtime/base/log.h"

void *ms_heap_alloc(size_t bytes);
void *ms_heap_zalloc(size_t bytes);
void *ms_heap_realloc(void *memory, size_t bytes); /* memory may be NULL */
void ms_heap_free(void *memory);                   /* memory may be NULL */

/* For the two implementations: logs a failed allocation of `bytes`, and returns `memory`. */
static inline void *ms_heap_checked(void *memory, size_t bytes)
{
    if (memory == NULL && bytes > 0)
        ms_log(MS_WARN, "out of host memory for %zu bytes of records of deferred memory", bytes);
    return memory;
}
