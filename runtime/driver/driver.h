/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The CUDA driver as the runtime sees it: a table of real functions, filled before
 * ms_lifetime_begin() and constant afterwards. The runtime calls no cu* symbol: that would re-enter
 * the shim.
 */
#pragma once

/* The exported names, which cuda.h would rename for the version compiled for. */
#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>
#include <stdbool.h>

#if CUDA_VERSION < 12050 /* in the table, but not declared by older headers */
CUresult CUDAAPI cuCtxRecordEvent(CUcontext hCtx, CUevent hEvent);
#endif

enum { MS_MAX_DEVICES = 64 };

struct ms_driver {
#define MS_DRIVER(field, symbol) __typeof__(&symbol) field;
#define MS_DRIVER_OPTIONAL MS_DRIVER
#include "runtime/driver/driver.def"
#undef MS_DRIVER_OPTIONAL
#undef MS_DRIVER
};

extern struct ms_driver ms_driver;

/*
 * A bracket around a group of our own driver calls. It makes `context` current, and permits memory
 * calls while some thread may be capturing a stream (they would otherwise invalidate the capture).
 * ms_driver_leave restores both, and is not called if ms_driver_enter fails with a driver error.
 */
struct ms_driver_scope {
    bool pushed;
    CUstreamCaptureMode mode;
};
CUresult ms_driver_enter(CUcontext context, struct ms_driver_scope *scope_out);
void ms_driver_leave(const struct ms_driver_scope *scope);

/* The current device; -1 if the thread has none. */
static inline CUdevice ms_driver_device(void)
{
    CUdevice device;
    return ms_driver.ctx_get_device(&device) == CUDA_SUCCESS ? device : -1;
}

/* True if the attribute of the device is not 0. */
static inline bool ms_driver_has(CUdevice device, CUdevice_attribute attribute)
{
    int value = 0;
    return ms_driver.device_get_attribute(&value, attribute, device) == CUDA_SUCCESS && value != 0;
}

/* Makes an event that follows the work that was queued in the stream. */
CUresult ms_driver_record(CUstream stream, CUevent *event_out);

/* Waits for an event of a context that need not be current. */
CUresult ms_driver_wait_for(CUcontext context, CUevent event);

/*
 * Waits for a stream of the shim, before memory that its work uses is freed or reused. A failed
 * wait does not prove that the work is over, unless the context is lost, so it is repeated once;
 * the second result counts.
 */
CUresult ms_driver_wait(CUstream stream);

/* True if some device can read all memory of the process. Asks the driver once. */
bool ms_driver_any_is_pageable(void);
