/* SPDX-License-Identifier: Apache-2.0 */
/* The life of an allocation: making, covering and destroying it. */
#pragma once

#include "runtime/memory/space.h"

/* Memory that the shim promises to the program. */
struct ms_promise {
    size_t bytes;
    CUcontext context;
    CUdevice device;
    struct ms_pool *pool; /* NULL: none */
    bool is_transient;    /* takes the place of memory freed in the pool or by cuMemFree */
};

/*
 * Make an allocation, publish it, and add it to the index, unclaimed. NULL: out of memory or
 * addresses. ms_allocation_reserve gets new addresses, and all bytes are undefined.
 * ms_allocation_adopt uses addresses that the program has reserved, where nothing is mapped.
 */
struct ms_allocation *ms_allocation_reserve(const struct ms_promise *promise);
struct ms_allocation *ms_allocation_adopt(CUcontext context, CUdevice device, CUdeviceptr address,
                                          size_t bytes);

/* Makes an allocation for memory of another process, all of which `backing` has. Takes the backing
 * over, also on failure. */
struct ms_allocation *ms_allocation_open(CUcontext context, size_t bytes,
                                         struct ms_backing *backing);

/* True if the driver's own allocation would have taken more memory, or in verify mode. */
bool ms_allocation_has_saved(const struct ms_allocation *allocation);

/* Frees an allocation that is in no index, with its memory. No queued work may use it. */
void ms_allocation_destroy(struct ms_allocation *allocation);

/* Waits for sinks, then gives memory to all granules of a claimed allocation that have a byte of
 * [begin, end). Logs when memory runs out; the granules that got memory before keep it. */
CUresult ms_allocation_cover(struct ms_allocation *allocation, size_t begin, size_t end);
