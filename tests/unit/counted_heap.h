/* SPDX-License-Identifier: Apache-2.0 */
/* The shim's heap, as the linker's --wrap lets it be seen (meson.build). For one file of a
 * test. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#include "runtime/base/heap.h"
#include "tools/simcuda/harness/test.h"

/* Pieces of memory that there are, and how many may still be made or grow. */
static int live, may_make = 1000000;
static bool fails_once; /* those behind the first that may not be made may */

WRAPS(ms_heap_alloc, ms_heap_zalloc, ms_heap_realloc, ms_heap_free);

static inline bool may_take(void)
{
    const int left = may_make--;
    return left > 0 || (fails_once && left < 0);
}

/* A piece has its size before it, and behind it bytes that nobody may write. */
enum { SIZE_BYTES = 16, GUARD_BYTES = 8, GUARD = 0xa5 };

static inline void *guard(unsigned char *memory, size_t bytes)
{
    if (memory == NULL)
        return NULL;
    memcpy(memory, &bytes, sizeof(bytes));
    memset(memory + SIZE_BYTES + bytes, GUARD, GUARD_BYTES);
    return memory + SIZE_BYTES;
}

/* Where it really begins. */
static inline void *unguard(void *memory)
{
    if (memory == NULL)
        return NULL;
    unsigned char *begin = (unsigned char *)memory - SIZE_BYTES;
    size_t bytes;
    memcpy(&bytes, begin, sizeof(bytes));
    for (int i = 0; i < GUARD_BYTES; i++)
        CHECK_EQ(begin[SIZE_BYTES + bytes + i], GUARD);
    return begin;
}

static inline void *count(void *memory, size_t bytes)
{
    live += memory != NULL;
    return guard(memory, bytes);
}

void *__wrap_ms_heap_alloc(size_t bytes)
{
    if (!may_take())
        return NULL;
    void *memory = count(__real_ms_heap_alloc(bytes + SIZE_BYTES + GUARD_BYTES), bytes);
    return memory != NULL ? memset(memory, GUARD, bytes) : NULL; /* nobody has set it */
}

void *__wrap_ms_heap_zalloc(size_t bytes)
{
    return may_take() ? count(__real_ms_heap_zalloc(bytes + SIZE_BYTES + GUARD_BYTES), bytes)
                      : NULL;
}

void *__wrap_ms_heap_realloc(void *memory, size_t bytes)
{
    if (memory == NULL)
        return __wrap_ms_heap_alloc(bytes);
    return may_take()
               ? guard(__real_ms_heap_realloc(unguard(memory), bytes + SIZE_BYTES + GUARD_BYTES),
                       bytes)
               : NULL;
}

void __wrap_ms_heap_free(void *memory)
{
    live -= memory != NULL;
    __real_ms_heap_free(unguard(memory));
}
