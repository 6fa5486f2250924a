/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sorted arrays that are changed in the middle: free places lie before the items as well as behind them, and what comes or
 * goes moves the fewer of its neighbours. So a sweep upwards, or downwards, costs the same for each item.
 *
 *     | before | items                    | behind |
 *              ^ what the owner points to
 *
 * The owner keeps the pointer to the items, typed, and how many there are. Not thread-safe.
 */
#ifndef METASHARD_RUNTIME_BASE_GAP_ARRAY_H
#define METASHARD_RUNTIME_BASE_GAP_ARRAY_H

#include <stdbool.h>
#include <stddef.h>

struct ms_gap_array {
    size_t item_bytes;     /* the owner's, immutable */
    size_t before, behind; /* free places */
};

/*
 * Room for so many more items, wherever they come. Gives the items, which may have moved; NULL when memory is out: then they
 * are where they were. Without any memory `items` is NULL, and nothing is free.
 */
void *ms_gap_array_reserve(struct ms_gap_array *gaps, void *items, size_t count, size_t more);

/*
 * At index `at`, `removed` items make way for `added` ones, which the caller writes; there is room for what is more. Gives the
 * items, which may have moved.
 */
void *ms_gap_array_replace(struct ms_gap_array *gaps, void *items, size_t count, size_t at,
                           size_t removed, size_t added);

/* Frees the items. `items` may be NULL. */
void ms_gap_array_free(struct ms_gap_array *gaps, void *items);

#endif
