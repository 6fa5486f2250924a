/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Order that goes through another process, for ThreadSanitizer, which sees one process only: what
 * was written before sim_order_give() is seen after the sim_order_take() of a thread that the other
 * process let go on.
 */
#pragma once

#include <unistd.h>

#ifdef __has_feature
#if __has_feature(thread_sanitizer) && !defined(__SANITIZE_THREAD__)
#define __SANITIZE_THREAD__ 1
#endif
#endif

#ifdef __SANITIZE_THREAD__
extern char **environ; /* libc's: one address for the program and the driver */
void __tsan_acquire(void *address);
void __tsan_release(void *address);
#endif

static inline void sim_order_give(void)
{
#ifdef __SANITIZE_THREAD__
    __tsan_release(&environ);
#endif
}

static inline void sim_order_take(void)
{
#ifdef __SANITIZE_THREAD__
    __tsan_acquire(&environ);
#endif
}
