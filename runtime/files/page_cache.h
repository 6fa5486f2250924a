/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which bytes of a file are in the kernel's page cache. Linux 6.5 counts pages (cachestat(2)).
 * An older kernel answers for one page at a time. Where it does so only by a read, a miss makes it
 * read that page and some behind it.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* Counts the pages with these bytes that are cached. -1: before Linux 6.5, or another user's
 * file. */
int64_t ms_page_cache_count(int descriptor, uint64_t offset, uint64_t bytes);

/* True if all pages of the range are cached, or this is unknown: the page cache is then the place
 * to read from. Where the kernel cannot count them at once, only the ends of each 64 KiB are
 * looked at. */
bool ms_page_cache_has(int descriptor, uint64_t begin, uint64_t end);

/* The same of the first and the last byte. */
bool ms_page_cache_has_ends(int descriptor, uint64_t begin, uint64_t end);
