/* SPDX-License-Identifier: Apache-2.0 */
/* The shim's heap, as the linker's --wrap lets it be seen (meson.build). For one file of a
 * test. */
#pragma once

#include <stddef.h>

/* Pieces of memory that there are, and how many may still be made. */
static int live, may_make = 1000000;

void *__real_ms_heap_alloc(size_t bytes);
void *__real_ms_heap_zalloc(size_t bytes);
void *__real_ms_heap_realloc(void *memory, size_t bytes);
void __real_ms_heap_free(void *memory);
void *__wrap_ms_heap_alloc(size_t bytes);
void *__wrap_ms_heap_zalloc(size_t bytes);
void *__wrap_ms_heap_realloc(void *memory, size_t bytes);
void __wrap_ms_heap_free(void *memory);

static inline void *count(void *memory)
{
    live += memory != NULL;
    return memory;
}

void *__wrap_ms_heap_alloc(size_t bytes)
{
    return may_make-- > 0 ? count(__real_ms_heap_alloc(bytes)) : NULL;
}

void *__wrap_ms_heap_zalloc(size_t bytes)
{
    return may_make-- > 0 ? count(__real_ms_heap_zalloc(bytes)) : NULL;
}

void *__wrap_ms_heap_realloc(void *memory, size_t bytes)
{
    return memory != NULL ? __real_ms_heap_realloc(memory, bytes) : __wrap_ms_heap_alloc(bytes);
}

void __wrap_ms_heap_free(void *memory)
{
    live -= memory != NULL;
    __real_ms_heap_free(memory);
}
