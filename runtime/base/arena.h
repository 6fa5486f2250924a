/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that is freed all at once: what a plan or a list of tensors points to. It comes from the
 * kernel (pages.h), and goes back there. */
#pragma once

#include <stddef.h>

struct ms_arena {
    struct ms_arena_chunk *chunks; /* the newest first; NULL before the first take */
    size_t used;                   /* bytes of the newest chunk */
};

/* Returns zeroed memory for count elements, aligned for any type, or NULL if out of memory. */
void *ms_arena_take(struct ms_arena *arena, size_t count, size_t bytes);
/* A copy of a text with a zero behind it; or, if it is NULL, room for one of that length. Texts
 * need no alignment. */
char *ms_arena_string(struct ms_arena *arena, const char *text, size_t length);
/* Gives back what was taken since the arena was as `before` says, which is a copy of it. */
void ms_arena_return(struct ms_arena *arena, const struct ms_arena *before);
void ms_arena_cleanup(struct ms_arena *arena);
