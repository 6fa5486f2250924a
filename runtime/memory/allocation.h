/* SPDX-License-Identifier: Apache-2.0 */
/* The life of an allocation, and what is true of it as a whole. */
#pragma once

#include "runtime/memory/space.h"

/* Memory that the program is promised. */
struct ms_promise {
    size_t bytes;
    CUcontext context;
    CUdevice device;
    struct ms_pool *pool; /* NULL: none */
    bool is_transient;    /* takes the place of what was freed, in the pool or by cuMemFree */
};

/*
 * Makes an allocation, adds it to the index, unclaimed, and publishes it. NULL if it cannot be. The
 * first one has addresses of its own, and nothing in it was ever written. The second one lies at
 * addresses that the program has reserved, where nothing is mapped.
 */
struct ms_allocation *ms_allocation_reserve(const struct ms_promise *promise);
struct ms_allocation *ms_allocation_adopt(CUcontext context, CUdevice device, CUdeviceptr address,
                                          size_t bytes);

/* The same for memory of another process, all of which the backing has, which is taken over, also
 * after a failure. */
struct ms_allocation *ms_allocation_open(CUcontext context, size_t bytes,
                                         struct ms_backing *backing);

/* True if the driver's own allocation would have taken more memory, or it is verified. */
bool ms_allocation_has_saved(const struct ms_allocation *allocation);

/* Frees an allocation that is in no index, with its memory. No queued work may use it. */
void ms_allocation_destroy(struct ms_allocation *allocation);

/* Gives memory to all granules of a claimed allocation that have a byte of [begin, end), after
 * waiting for sinks there. Running out of memory is logged, and leaves what was given before. */
CUresult ms_allocation_cover(struct ms_allocation *allocation, size_t begin, size_t end);
