/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sorted arrays that are changed in the middle. Free places lie before and behind the items, so a
 * change moves only the shorter side. A sweep upwards or downwards costs the same for each item.
 *
 *     | before | items                    | behind |
 *              ^ what the owner points to
 *
 * The owner keeps the typed pointer to the items, and their number. Not thread-safe.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

struct ms_gap_array {
    size_t item_bytes;     /* set by the owner, immutable */
    size_t before, behind; /* free places */
};

/*
 * Makes room for `more` items, at any index. Returns the items, which may have moved, or NULL if
 * out of memory: then they stay where they were. Before the first call `items` is NULL.
 */
void *ms_gap_array_reserve(struct ms_gap_array *gaps, void *items, size_t count, size_t more);

/*
 * Replaces `removed` items at index `at` by `added` ones, which the caller writes. If there are
 * more of them, room was reserved. Returns the items, which may have moved.
 */
void *ms_gap_array_replace(struct ms_gap_array *gaps, void *items, size_t count, size_t at,
                           size_t removed, size_t added);

/* Frees the items. `items` may be NULL. */
void ms_gap_array_free(struct ms_gap_array *gaps, void *items);
