/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that comes from the kernel (pages.h), and goes back there all at once: for the contents of
 * a plan, or of a list of tensors. */
#pragma once

#include <stddef.h>

struct ms_arena {
    struct ms_arena_chunk *chunks; /* the newest first; NULL before the first take */
    size_t used;                   /* bytes of the newest chunk */
};

/* Returns zeroed memory for count elements, aligned for any type, or NULL if out of memory. */
void *ms_arena_take(struct ms_arena *arena, size_t count, size_t bytes);
/* Copies a text and adds a zero; if text is NULL, returns zeroed room for a text of that length.
 * Texts are not aligned. */
char *ms_arena_string(struct ms_arena *arena, const char *text, size_t length);
/* Gives back all memory taken since `before`, an earlier copy of the arena's struct. */
void ms_arena_return(struct ms_arena *arena, const struct ms_arena *before);
void ms_arena_cleanup(struct ms_arena *arena);
