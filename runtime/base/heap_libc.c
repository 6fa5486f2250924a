/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/base/heap.h"

#include <stdlib.h>

void *ms_heap_alloc(size_t bytes)
{
    return malloc(bytes);
}

void *ms_heap_zalloc(size_t bytes)
{
    return calloc(1, bytes);
}

void *ms_heap_realloc(void *memory, size_t bytes)
{
    return realloc(memory, bytes);
}

void ms_heap_free(void *memory)
{
    free(memory);
}
