/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/base/arena.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "runtime/base/heap.h"

enum { CHUNK_BYTES = 1 << 18, ALIGNMENT = 16 };

struct ms_arena_chunk {
    struct ms_arena_chunk *older;
    size_t capacity;
    _Alignas(ALIGNMENT) unsigned char memory[];
};

static bool add_chunk(struct ms_arena *arena, size_t bytes)
{
    const size_t capacity = bytes > CHUNK_BYTES ? bytes : CHUNK_BYTES;
    if (capacity > SIZE_MAX - sizeof(struct ms_arena_chunk))
        return false;
    struct ms_arena_chunk *chunk = ms_heap_alloc(sizeof(*chunk) + capacity);
    if (chunk == NULL)
        return false;
    chunk->older = arena->chunks;
    chunk->capacity = capacity;
    arena->chunks = chunk;
    arena->used = 0;
    return true;
}

void *ms_arena_take(struct ms_arena *arena, size_t count, size_t bytes)
{
    size_t wanted;
    if (__builtin_mul_overflow(count, bytes, &wanted) || wanted > SIZE_MAX - ALIGNMENT)
        return NULL;
    wanted = (wanted + ALIGNMENT - 1) & ~(size_t)(ALIGNMENT - 1);
    if (arena->chunks == NULL || wanted > arena->chunks->capacity - arena->used) {
        if (!add_chunk(arena, wanted))
            return NULL;
    }
    void *memory = arena->chunks->memory + arena->used;
    arena->used += wanted;
    memset(memory, 0, wanted);
    return memory;
}

char *ms_arena_string(struct ms_arena *arena, const char *text, size_t length)
{
    char *copy = ms_arena_take(arena, length + 1, 1);
    if (copy != NULL)
        memcpy(copy, text, length);
    return copy;
}

void ms_arena_cleanup(struct ms_arena *arena)
{
    while (arena->chunks != NULL) {
        struct ms_arena_chunk *older = arena->chunks->older;
        ms_heap_free(arena->chunks);
        arena->chunks = older;
    }
}
