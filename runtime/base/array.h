/* SPDX-License-Identifier: Apache-2.0 */
/* Arrays on the heap that grow, and binary searches. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

/* Makes room for one more element behind `count`. `array` is the address of the array's pointer,
 * which may change. Returns false, and changes nothing, if out of memory. */
bool ms_array_grow(void *array, size_t count, size_t *capacity, size_t element_bytes);
#define MS_ARRAY_GROW(array, count, capacity) \
    ms_array_grow(&(array), count, &(capacity), sizeof(*(array)))

/* The number of the first `count` elements for which is_before, an expression of the index `at`, is
 * true. They come before all others. */
#define MS_ARRAY_FIND(at, count, is_before)              \
    ({                                                   \
        size_t low_ = 0, high_ = (count);                \
        while (low_ < high_) {                           \
            const size_t at = low_ + (high_ - low_) / 2; \
            if (is_before)                               \
                low_ = at + 1;                           \
            else                                         \
                high_ = at;                              \
        }                                                \
        low_;                                            \
    })
