/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A loop over megabytes, for ThreadSanitizer one access in place of one for each element, which
 * takes most of the time of a test. A function marked RANGE_ACCESS is not watched; it says with
 * range_read and range_write which bytes it reads and writes, so that a race is found as before.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#if defined(__has_feature)
#if __has_feature(thread_sanitizer) && !defined(__SANITIZE_THREAD__)
#define __SANITIZE_THREAD__ 1
#endif
#endif

#define RANGE_ACCESS __attribute__((no_sanitize("thread")))

#ifdef __SANITIZE_THREAD__
void __tsan_read_range(void *address, long bytes);
void __tsan_write_range(void *address, long bytes);
#endif

static inline void range_read(const void *address, size_t bytes)
{
#ifdef __SANITIZE_THREAD__
    __tsan_read_range((void *)(uintptr_t)address, (long)bytes);
#else
    (void)address;
    (void)bytes;
#endif
}

static inline void range_write(void *address, size_t bytes)
{
#ifdef __SANITIZE_THREAD__
    __tsan_write_range(address, (long)bytes);
#else
    (void)address;
    (void)bytes;
#endif
}
