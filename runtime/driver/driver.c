/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/driver/driver.h"

#include <stdatomic.h>

#include "runtime/base/log.h"

struct ms_driver ms_driver;

static void restore_context(const struct ms_driver_scope *scope)
{
    CUcontext popped;
    if (scope->pushed && ms_driver.ctx_pop_current(&popped) != CUDA_SUCCESS)
        ms_log(MS_WARN, "cuCtxPopCurrent fails: the previous context is not current again");
}

CUresult ms_driver_enter(CUcontext context, struct ms_driver_scope *scope_out)
{
    CUcontext current = NULL;
    CUresult result = ms_driver.ctx_get_current(&current);
    if (result != CUDA_SUCCESS)
        return result;
    scope_out->pushed = current != context;
    if (scope_out->pushed) {
        result = ms_driver.ctx_push_current(context);
        if (result != CUDA_SUCCESS)
            return result;
    }
    scope_out->mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    result = ms_driver.exchange_capture_mode(&scope_out->mode);
    if (result != CUDA_SUCCESS)
        restore_context(scope_out);
    return result;
}

void ms_driver_leave(const struct ms_driver_scope *scope)
{
    CUstreamCaptureMode mode = scope->mode;
    ms_driver.exchange_capture_mode(&mode);
    restore_context(scope);
}

CUresult ms_driver_record(CUstream stream, CUevent *event_out)
{
    CUresult result = ms_driver.event_create(event_out, CU_EVENT_DISABLE_TIMING);
    if (result != CUDA_SUCCESS)
        return result;
    result = ms_driver.event_record(*event_out, stream);
    if (result != CUDA_SUCCESS)
        ms_driver.event_destroy(*event_out);
    return result;
}

CUresult ms_driver_wait_for(CUcontext context, CUevent event)
{
    struct ms_driver_scope scope;
    CUresult result = ms_driver_enter(context, &scope);
    if (result != CUDA_SUCCESS)
        return result;
    result = ms_driver.event_synchronize(event);
    ms_driver_leave(&scope);
    return result;
}

CUresult ms_driver_wait(CUstream stream)
{
    const CUresult result = ms_driver.stream_synchronize(stream);
    return result == CUDA_SUCCESS ? result : ms_driver.stream_synchronize(stream);
}

bool ms_driver_any_is_pageable(void)
{
    enum { UNKNOWN, NO, YES };
    static _Atomic int known;
    int state = atomic_load_explicit(&known, memory_order_relaxed);
    CUresult result = CUDA_SUCCESS;
    if (state != UNKNOWN)
        return state == YES;
    state = NO;
    for (CUdevice device = 0; device < MS_MAX_DEVICES && result == CUDA_SUCCESS && state == NO;
         device++) {
        int pageable = 0;
        result = ms_driver.device_get_attribute(&pageable,
                                                CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS, device);
        state = pageable != 0 ? YES : NO;
    }
    if (result != CUDA_SUCCESS && result != CUDA_ERROR_INVALID_DEVICE)
        return true; /* not kept: the driver may know later */
    atomic_store_explicit(&known, state, memory_order_relaxed);
    return state == YES;
}
