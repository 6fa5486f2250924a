/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/base/heap.h"

#include <stdlib.h>

void *ms_heap_alloc(size_t bytes)
{
    return ms_heap_checked(malloc(bytes), bytes);
}

void *ms_heap_zalloc(size_t bytes)
{
    return ms_heap_checked(calloc(1, bytes), bytes);
}

void *ms_heap_realloc(void *memory, size_t bytes)
{
    return ms_heap_checked(realloc(memory, bytes), bytes);
}

void ms_heap_free(void *memory)
{
    free(memory);
}
