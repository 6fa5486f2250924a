/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pinned host memory through which files are copied to the device. Giving pinned memory back to the driver
 * may wait for everything that is queued, also for a kernel that waits for the thread which gives it back;
 * and to get it costs as much time as to fill it. So an area is kept when its user is done, and goes
 * when nothing is deferred any more and the program frees memory, for which the driver waits anyhow.
 *
 * The table of kept areas has a lock of its own, which is not held across driver calls.
 */
#ifndef METASHARD_RUNTIME_SOURCE_PINNED_POOL_H
#define METASHARD_RUNTIME_SOURCE_PINNED_POOL_H

#include <stdbool.h>
#include <stddef.h>

#include "runtime/driver/driver.h"

struct ms_pinned_area {
    unsigned char *memory;
    size_t bytes;
    bool
        is_pinned; /* else the driver had none: pageable memory, which serves as well, only more slowly */
    CUcontext context;
};

/*
 * An area of `bytes` bytes or more that nobody else uses. Wants context, which is the current one. CUDA_ERROR_OUT_OF_MEMORY when there is no memory of either sort.
 */
CUresult ms_pinned_pool_take(CUcontext context, size_t bytes, struct ms_pinned_area *staging_out);

/* Nothing that is queued uses it any more. */
void ms_pinned_pool_drop(const struct ms_pinned_area *staging);

/* What is kept in context goes back to the driver. May wait for the device. */
void ms_pinned_pool_give_back(CUcontext context);

/* The context is gone, and its memory with it. */
void ms_pinned_pool_forget(CUcontext context);

#endif
