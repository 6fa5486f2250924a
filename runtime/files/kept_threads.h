/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Threads that read, and are kept for a while after a transfer: the next transfer usually follows
 * soon, and starting a thread takes as long as reading some hundred KiB. They share the file
 * thread's table of descriptors. A thread that got no work for MS_KEPT_THREADS_NS ends.
 */
#pragma once

#include <sched.h>
#include <stdbool.h>
#include <stdint.h>

#define MS_KEPT_THREADS_NS (UINT64_C(1) * 1000 * 1000 * 1000)

struct ms_kept_work {
    struct ms_kept_work *next; /* for the threads */
    void (*run)(void *argument);
    void *argument;
};

/* How many cores this process may use: more threads would take turns. */
static inline unsigned ms_kept_threads_cores(void)
{
    cpu_set_t cores;
    /* The call fails if there are more cores than a set holds. */
    return sched_getaffinity(0, sizeof(cores), &cores) == 0 ? (unsigned)CPU_COUNT(&cores)
                                                            : sizeof(cores) * 8;
}

/* Runs the work in a kept thread, else in a new one. The work must live until `run` has begun.
 * False: no thread can be started. For the file thread only. */
bool ms_kept_threads_start(struct ms_kept_work *work);
