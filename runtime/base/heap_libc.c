/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/base/heap.h"

#include <stdlib.h>

void *ms_heap_alloc(size_t bytes)
{
    return ms_heap_told(malloc(bytes), bytes);
}

void *ms_heap_zalloc(size_t bytes)
{
    return ms_heap_told(calloc(1, bytes), bytes);
}

void *ms_heap_realloc(void *memory, size_t bytes)
{
    return ms_heap_told(realloc(memory, bytes), bytes);
}

void ms_heap_free(void *memory)
{
    free(memory);
}
