/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One growing piece of memory that comes from the kernel and goes back there as a whole: for long
 * lists, and for texts that are read and dropped. A heap would keep the freed pages. Pages that
 * nobody has written take no memory.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

struct ms_pages {
    void *memory; /* zeroed; NULL before the first growth */
    size_t bytes; /* at least the size asked for; a multiple of the page size */
};

/* Makes the memory at least `bytes` long, and at least doubles it if it has to grow. The memory may
 * move. Returns false, logs it and changes nothing if out of memory. */
bool ms_pages_grow(struct ms_pages *pages, size_t bytes);
void ms_pages_cleanup(struct ms_pages *pages);
