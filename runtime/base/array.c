/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/base/array.h"

#include "runtime/base/heap.h"

/* A pointer of any type. */
typedef void *__attribute__((may_alias)) pointer;

bool ms_array_grow(void *array, size_t count, size_t *capacity, size_t element_bytes)
{
    if (count < *capacity)
        return true;
    pointer *memory = array;
    const size_t wanted = 2 * *capacity + 16;
    void *grown = ms_heap_realloc(*memory, wanted * element_bytes);
    if (grown == NULL)
        return false;
    *memory = grown;
    *capacity = wanted;
    return true;
}
