/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finds the word that a user may have meant, for messages. Keeps the first of the words tried with
 * the fewest letters changed, left out, added or swapped with a neighbour; a word that begins with
 * the typed text counts as one letter away. Words that are too different do not count.
 */
#pragma once

#include <stddef.h>

struct ms_nearest {
    const char *text; /* what was typed */
    const char *word; /* the nearest so far, or NULL */
    size_t distance;
};

/* Compares one more word, ignoring case. At first only `text` is set. */
void ms_nearest_try(struct ms_nearest *nearest, const char *word);
