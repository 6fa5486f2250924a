/* SPDX-License-Identifier: Apache-2.0 */
/* Growing lists of ranges, unsorted until ms_ranges_sort. The caller owns them. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "runtime/base/range.h"

struct ms_ranges {
    struct ms_range *list;
    size_t count, capacity;
};

void ms_ranges_cleanup(struct ms_ranges *ranges);

/* Extends the last range if the new one touches it. Ignores an empty range. False: out of
 * memory. */
bool ms_ranges_add(struct ms_ranges *ranges, uint64_t begin, uint64_t end);

bool ms_ranges_add_all(struct ms_ranges *ranges, const struct ms_ranges *from);

/* Sorts ascending, and joins ranges that overlap or touch. */
void ms_ranges_sort(struct ms_ranges *ranges);

/* Adds to `rest_out` the parts of `from` that are not in `what`; both are sorted. */
bool ms_ranges_subtract(const struct ms_ranges *from, const struct ms_ranges *what,
                        struct ms_ranges *rest_out);
