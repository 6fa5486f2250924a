/* SPDX-License-Identifier: Apache-2.0 */
/* Arrays on the heap that grow, and binary searches. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

/* Room for one more element behind `count`. `array` is the address of the pointer, which may
 * change. If out of memory it returns false, and
 * nothing has changed. */
bool ms_array_grow(void *array, size_t count, size_t *capacity, size_t element_bytes);
#define MS_ARRAY_GROW(array, count, capacity) \
    ms_array_grow(&(array), count, &(capacity), sizeof(*(array)))

/* How many of the first `count` elements the condition on the index `at` is true of: they come
 * before all others. */
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
