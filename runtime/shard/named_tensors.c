/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/shard/named_tensors.h"

#include <string.h>

#include "runtime/base/array.h"
#include "runtime/base/heap.h"

static struct {
    struct ms_named_tensor **list;
    size_t count, capacity;
} named;

size_t ms_named_tensors_count(void)
{
    return named.count;
}

struct ms_named_tensor *ms_named_tensors_at(size_t index)
{
    return named.list[index];
}

static bool overlaps(const struct ms_named_tensor *one, uint64_t allocation_id, size_t begin,
                     size_t end)
{
    return one->allocation_id == allocation_id && one->begin < end && begin < one->end;
}

bool ms_named_tensors_hold(uint64_t allocation_id, size_t begin, size_t end)
{
    for (size_t i = 0; i < named.count; i++) {
        if (overlaps(named.list[i], allocation_id, begin, end))
            return true;
    }
    return false;
}

bool ms_named_tensors_forget(uint64_t allocation_id, size_t begin, size_t end)
{
    size_t kept = 0;
    for (size_t i = 0; i < named.count; i++) {
        if (overlaps(named.list[i], allocation_id, begin, end))
            ms_heap_free(named.list[i]);
        else
            named.list[kept++] = named.list[i];
    }
    const bool found = kept < named.count;
    named.count = kept;
    return found;
}

void ms_named_tensors_forget_guesses(void)
{
    size_t kept = 0;
    for (size_t i = 0; i < named.count; i++) {
        if (named.list[i]->is_guess)
            ms_heap_free(named.list[i]);
        else
            named.list[kept++] = named.list[i];
    }
    named.count = kept;
}

struct ms_named_tensor *ms_named_tensors_add(uint64_t allocation_id, size_t begin, size_t end,
                                             const char *name, const struct ms_tensor *like)
{
    ms_named_tensors_forget(allocation_id, begin, end);
    if (!MS_ARRAY_GROW(named.list, named.count, named.capacity))
        return NULL;
    struct ms_named_tensor *one = ms_heap_zalloc(sizeof(*one) + strlen(name) + 1);
    if (one == NULL)
        return NULL;
    one->allocation_id = allocation_id;
    one->begin = begin;
    one->end = end;
    one->tensor = *like;
    one->tensor.name = strcpy(one->name, name);
    one->tensor.file = NULL;
    named.list[named.count++] = one;
    return one;
}
