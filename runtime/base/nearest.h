/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The word that a user may have meant, for messages: of the words that are tried, the first with
 * the fewest letters changed, left out, added or exchanged with their neighbour; or the first that
 * begins with what was typed. Words that are too different do not count.
 */
#pragma once

#include <stddef.h>

struct ms_nearest {
    const char *text; /* what was typed */
    const char *word; /* the nearest so far, or NULL */
    size_t distance;
};

/* Only `text` is set at first. Letters count as equal in either case. */
void ms_nearest_try(struct ms_nearest *nearest, const char *word);
