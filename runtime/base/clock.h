/* SPDX-License-Identifier: Apache-2.0 */
/* The time. Reading a coarse clock reads memory and makes no system call. */
#pragma once

#include <stdint.h>
#include <time.h>

enum { MS_NS_PER_MS = 1000000, MS_NS_PER_S = 1000000000 };

static inline uint64_t ms_clock_ns(clockid_t clock)
{
    struct timespec now;
    clock_gettime(clock, &now);
    return (uint64_t)now.tv_sec * MS_NS_PER_S + (uint64_t)now.tv_nsec;
}

/* The time in so many nanoseconds. */
static inline struct timespec ms_clock_after(clockid_t clock, uint64_t ns)
{
    const uint64_t then = ms_clock_ns(clock) + ns;
    return (struct timespec){.tv_sec = (time_t)(then / MS_NS_PER_S),
                             .tv_nsec = (long)(then % MS_NS_PER_S)};
}
