/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pinned host memory through which files are copied to the device. Freeing pinned memory may wait
 * for all queued work, also for a kernel that waits for this very thread; and allocating takes as
 * long as filling. So an area is kept when its user is done. It is freed when the program frees
 * memory while nothing is deferred, for which the driver waits anyway.
 *
 * The table of kept areas has a lock of its own, which is not held across driver calls.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "runtime/driver/driver.h"

struct ms_pinned_area {
    unsigned char *memory;
    size_t bytes;
    bool is_pinned; /* false: pageable memory, which is slower, because the driver had none */
    CUcontext context;
};

/*
 * Returns an area of at least `bytes` bytes that nobody else uses, or of `least` where host memory
 * has no room for more (base/headroom.h). `context` must be current. Fails with
 * CUDA_ERROR_OUT_OF_MEMORY if there is neither pinned nor pageable memory.
 */
CUresult ms_pinned_pool_take(CUcontext context, size_t least, size_t bytes,
                             struct ms_pinned_area *staging_out);

/* Gives the area back to the pool. No queued work may use it any more. */
void ms_pinned_pool_drop(const struct ms_pinned_area *staging);

/* Frees the kept areas of `context`. May wait for the device. */
void ms_pinned_pool_give_back(CUcontext context);

/* Forgets the areas of a destroyed context, whose memory went with it. */
void ms_pinned_pool_forget(CUcontext context);
