/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/base/arena.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "runtime/base/pages.h"

enum { CHUNK_BYTES = 256 << 10, ALIGNMENT = 16 };

struct ms_arena_chunk {
    struct ms_arena_chunk *older;
    struct ms_pages pages; /* of this chunk itself */
    size_t capacity;
    _Alignas(ALIGNMENT) unsigned char memory[];
};

static bool add_chunk(struct ms_arena *arena, size_t bytes)
{
    struct ms_pages pages = {0};
    struct ms_arena_chunk *chunk;
    const size_t least = CHUNK_BYTES - sizeof(*chunk);
    const size_t wanted = bytes > least ? bytes : least;
    if (wanted > SIZE_MAX - sizeof(*chunk) || !ms_pages_grow(&pages, sizeof(*chunk) + wanted))
        return false;
    chunk = pages.memory;
    chunk->older = arena->chunks;
    chunk->pages = pages;
    chunk->capacity = pages.bytes - sizeof(*chunk);
    arena->chunks = chunk;
    arena->used = 0;
    return true;
}

/* Takes bytes at offset `used` of the newest chunk, or in a new chunk. */
static void *take(struct ms_arena *arena, size_t used, size_t bytes)
{
    if (arena->chunks == NULL || used > arena->chunks->capacity ||
        bytes > arena->chunks->capacity - used) {
        if (!add_chunk(arena, bytes))
            return NULL;
        used = 0;
    }
    void *memory = arena->chunks->memory + used;
    arena->used = used + bytes;
    return memory;
}

void *ms_arena_take(struct ms_arena *arena, size_t count, size_t bytes)
{
    size_t wanted;
    if (__builtin_mul_overflow(count, bytes, &wanted))
        return NULL;
    return take(arena, (arena->used + ALIGNMENT - 1) & ~(size_t)(ALIGNMENT - 1), wanted);
}

char *ms_arena_string(struct ms_arena *arena, const char *text, size_t length)
{
    char *copy = take(arena, arena->used, length + 1);
    if (copy != NULL && text != NULL)
        memcpy(copy, text, length);
    return copy;
}

static void drop_chunk(struct ms_arena *arena)
{
    struct ms_pages pages = arena->chunks->pages;
    arena->chunks = arena->chunks->older;
    ms_pages_cleanup(&pages);
}

void ms_arena_return(struct ms_arena *arena, const struct ms_arena *before)
{
    size_t end = arena->used;
    while (arena->chunks != before->chunks) {
        drop_chunk(arena);
        end = arena->chunks != NULL ? arena->chunks->capacity : 0;
    }
    if (end > before->used) /* taken memory is zeroed */
        memset(arena->chunks->memory + before->used, 0, end - before->used);
    arena->used = before->used;
}

void ms_arena_cleanup(struct ms_arena *arena)
{
    while (arena->chunks != NULL)
        drop_chunk(arena);
    arena->used = 0;
}
