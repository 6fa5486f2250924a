/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One piece of memory from the kernel that grows, and goes back to it whole: for texts that are
 * read and dropped, and for long lists. A heap would keep the pages of what was freed. Pages that
 * nobody has written take no memory.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

struct ms_pages {
    void *memory; /* zeroed; NULL before the first growth */
    size_t bytes; /* at least what was asked for; a multiple of the page size */
};

/* Makes it at least so many bytes long, and twice as long as before if it was too short. It may
 * move. Out of memory, it returns false, logs it, and nothing has changed. */
bool ms_pages_grow(struct ms_pages *pages, size_t bytes);
void ms_pages_cleanup(struct ms_pages *pages);
