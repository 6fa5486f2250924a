/* SPDX-License-Identifier: Apache-2.0 */
/* Arrays on the heap that grow. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

/* Room for one more element behind `count`. `array` is the address of the pointer, which may
 * change. If out of memory it returns false, and
 * nothing has changed. */
bool ms_array_grow(void *array, size_t count, size_t *capacity, size_t element_bytes);
#define MS_ARRAY_GROW(array, count, capacity) \
    ms_array_grow(&(array), count, &(capacity), sizeof(*(array)))
