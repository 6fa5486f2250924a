/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that is freed all at once: what a plan or a list of tensors points to. */
#pragma once

#include <stddef.h>

struct ms_arena {
    struct ms_arena_chunk *chunks; /* the newest first; NULL before the first take */
    size_t used;                   /* bytes of the newest chunk */
};

/* Returns zeroed memory for count elements, aligned for any type, or NULL if out of memory. */
void *ms_arena_take(struct ms_arena *arena, size_t count, size_t bytes);
char *ms_arena_string(struct ms_arena *arena, const char *text, size_t length);
void ms_arena_cleanup(struct ms_arena *arena);
