/* SPDX-License-Identifier: Apache-2.0 */

#include "runtime/calls/alloc.h"

#include <stdatomic.h>

#include "runtime/base/heap.h"
#include "runtime/base/log.h"
#include "runtime/calls/pooled.h"
#include "runtime/config/config.h"
#include "runtime/driver/flags.h"
#include "runtime/fill/access.h"
#include "runtime/fill/compare.h"
#include "runtime/fill/overcommit.h"
#include "runtime/fill/replay.h"
#include "runtime/fill/settle.h"
#include "runtime/kernel/parameters.h"
#include "runtime/memory/allocation.h"
#include "runtime/memory/delayed_free.h"
#include "runtime/memory/examining.h"
#include "runtime/memory/order.h"
#include "runtime/memory/publish.h"
#include "runtime/memory/space.h"
#include "runtime/selfcheck/selfcheck.h"
#include "runtime/shard/shard.h"
#include "runtime/source/pinned_pool.h"
#include "runtime/state/counters.h"
#include "runtime/state/window.h"

static bool can_map_memory(CUdevice device)
{
    int supported = 0;
    return device >= 0 && device < MS_MAX_DEVICES &&
           ms_driver.device_get_attribute(&supported,
                                          CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
                                          device) == CUDA_SUCCESS &&
           supported != 0;
}

void ms_alloc_forget(struct ms_allocation *allocation)
{
    if (allocation->pool != NULL)
        ms_pooled_end(allocation->granule_bytes, allocation->backing.backed_bytes,
                      allocation->is_transient);
    ms_shard_forget(allocation, 0, allocation->bytes);
    ms_publish_freed(allocation);
    ms_space_remove(allocation);
}

/* Green contexts, by the handle that cuCtxFromGreenCtx returned. They share the memory of their
 * device's primary context and may end before it, so their allocations are left to the driver. */
enum { MAX_GREEN = 64 };
static _Atomic(CUcontext) green[MAX_GREEN];
static _Atomic int green_count;

void ms_alloc_add_green_context(CUcontext context)
{
    const int at = atomic_fetch_add(&green_count, 1);
    atomic_store(&green[at % MAX_GREEN], context);
}

/* If there are more than the table holds, every context counts as green. */
static bool is_green(CUcontext context)
{
    const int count = atomic_load_explicit(&green_count, memory_order_relaxed);
    for (int i = 0; i < count && i < MAX_GREEN; i++) {
        if (atomic_load(&green[i]) == context)
            return true;
    }
    return count > MAX_GREEN;
}

bool ms_alloc_may_defer(size_t bytes, CUcontext *context_out, CUdevice *device_out)
{
    if (bytes < ms_config.min_bytes || bytes == 0 ||
        ms_config_holds_size(&ms_config.excluded, bytes) || ms_is_capturing())
        return false;
    return ms_driver.ctx_get_current(context_out) == CUDA_SUCCESS && *context_out != NULL &&
           !is_green(*context_out) && ms_driver.ctx_get_device(device_out) == CUDA_SUCCESS &&
           can_map_memory(*device_out);
}

bool ms_alloc_begin(CUcontext current, CUdevice device, size_t bytes)
{
    if (!ms_selfcheck_allows(current, device))
        return false;
    if (ms_driver_any_is_pageable())
        ms_examining_expect();
    ms_examining_begin();
    if (ms_examining_is_complete(current, device))
        return true;
    ms_examining_end();
    ms_publish_fallback(MS_REASON_UNEXAMINED, bytes, NULL);
    return false;
}

void ms_alloc_end(void)
{
    ms_examining_end();
}

/* What the driver keeps for the pool has room for this allocation, too. */
static bool allows_trimmed(CUdevice device, size_t bytes, const struct ms_pool *pool,
                           bool *is_tight_out)
{
    return ms_driver.mem_pool_trim_to(ms_pool_handle(pool), 0) == CUDA_SUCCESS &&
           ms_overcommit_allows(device, bytes, is_tight_out);
}

bool ms_alloc_admits(CUdevice device, size_t bytes, const struct ms_pool *pool)
{
    bool is_tight;
    if (!ms_overcommit_allows(device, bytes, &is_tight) &&
        !(pool != NULL && allows_trimmed(device, bytes, pool, &is_tight))) {
        ms_state_event(&(struct ms_event){
            .kind = MS_EVENT_FAIL, .reason = MS_REASON_OVERCOMMIT, .bytes = bytes});
        return false;
    }
    if (is_tight)
        ms_settle_now("device memory is nearly used up");
    return true;
}

void ms_alloc_promised(CUdevice device, size_t bytes, bool is_transient)
{
    ms_counter_add(MS_COUNT_ALLOCATIONS, 1);
    ms_counter_add(MS_COUNT_REQUESTED_BYTES, bytes);
    if (!is_transient)
        ms_window_open();
    ms_publish_device(device);
}

static bool promise(CUcontext context, CUdevice device, size_t bytes, struct ms_pool *pool,
                    CUdeviceptr *address_out, CUresult *result_out)
{
    if (!ms_alloc_admits(device, bytes, pool)) {
        *result_out = CUDA_ERROR_OUT_OF_MEMORY;
        return true;
    }
    /* If it cannot be deferred, the driver decides what the program gets. */
    const bool is_transient = pool != NULL && ms_pooled_is_transient(bytes);
    const struct ms_allocation *allocation =
        ms_allocation_reserve(context, device, bytes, pool, is_transient);
    if (allocation == NULL)
        return false;
    if (pool != NULL)
        ms_pooled_begin(allocation->granule_bytes, is_transient);
    ms_alloc_promised(device, bytes, is_transient);
    ms_state_event(&(struct ms_event){.kind = MS_EVENT_ALLOCATE,
                                      .block = allocation->id,
                                      .address = allocation->address,
                                      .bytes = bytes});
    ms_log(MS_DEBUG, "deferred %zu bytes at 0x%llx", bytes, allocation->address);
    *address_out = allocation->address;
    *result_out = CUDA_SUCCESS;
    return true;
}

/* Of the pool, or of cuMemAlloc. */
static bool allocate(CUcontext context, CUdevice device, size_t bytes, struct ms_pool *pool,
                     CUdeviceptr *address_out, CUresult *result_out)
{
    if (!ms_alloc_begin(context, device, bytes))
        return false;
    const bool is_answered = promise(context, device, bytes, pool, address_out, result_out);
    ms_alloc_end();
    return is_answered;
}

bool ms_alloc(size_t bytes, CUdeviceptr *address_out, CUresult *result_out)
{
    CUcontext context = NULL;
    CUdevice device;
    return address_out != NULL && ms_alloc_may_defer(bytes, &context, &device) &&
           allocate(context, device, bytes, NULL, address_out, result_out);
}

bool ms_alloc_in_stream(size_t bytes, CUmemoryPool handle, CUstream stream,
                        CUdeviceptr *address_out, CUresult *result_out)
{
    CUcontext context = NULL;
    CUdevice device;
    if (address_out == NULL || !ms_alloc_may_defer(bytes, &context, &device) ||
        ms_order_stream_context(stream) != context)
        return false;
    ms_delayed_free_pass(true);
    if (handle == NULL && ms_driver.device_get_mem_pool(&handle, device) != CUDA_SUCCESS)
        return false;
    struct ms_pool *pool = ms_pool_find(handle, device);
    return pool != NULL && allocate(context, device, bytes, pool, address_out, result_out);
}

/*
 * Programs rely on cuMemFree waiting for the device, and a granule must not be unmapped under
 * queued work. During a capture, by another thread or in a mode that allows the free, the wait
 * would end the capture.
 */
static CUresult wait_for_device(CUcontext context, bool *is_done_out)
{
    *is_done_out = false;
    CUresult result = ms_order_capture_allows();
    if (result != CUDA_SUCCESS)
        return result;
    result = ms_order_context_wait(context);
    *is_done_out = result != CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    return *is_done_out ? result : CUDA_SUCCESS;
}

/* The wait holds no claim, because it may last as long as a host function of the program, and other
 * threads must be able to go on meanwhile. */
bool ms_alloc_free(CUdeviceptr address, CUresult *result_out)
{
    struct ms_allocation_facts facts;
    if (!ms_space_look_up(address, &facts) || facts.is_programs)
        return false;
    bool is_done;
    *result_out = facts.address == address ? wait_for_device(facts.context, &is_done)
                                           : CUDA_ERROR_INVALID_VALUE;
    if (*result_out != CUDA_SUCCESS)
        return true;
    struct ms_allocation *allocation = ms_space_claim(address);
    if (allocation == NULL || allocation->id != facts.id) {
        /* Another thread has freed it meanwhile. */
        ms_space_release(allocation);
        *result_out = CUDA_ERROR_INVALID_VALUE;
        return true;
    }
    if (is_done)
        ms_compare(allocation, 0, allocation->bytes, MS_COMPARE_CACHED);
    ms_log(MS_DEBUG, "freed %zu bytes at 0x%llx, %zu of them backed", allocation->bytes, address,
           allocation->backing.backed_bytes);
    ms_publish_event(MS_EVENT_FREE, allocation, 0, allocation->bytes, NULL);
    ms_alloc_forget(allocation);
    if (is_done)
        ms_allocation_destroy(allocation);
    else
        ms_delayed_free_add(allocation, NULL, NULL);
    ms_counter_add(MS_COUNT_FREES, 1);
    ms_delayed_free_run(facts.context);
    if (is_done && !ms_defers_any())
        ms_pinned_pool_give_back(facts.context);
    return true;
}

/* NULL: none could be recorded. */
static CUevent record_event(CUstream stream, CUcontext context)
{
    struct ms_driver_scope scope;
    CUevent event = NULL;
    if (ms_driver_enter(context, &scope) != CUDA_SUCCESS)
        return NULL;
    if (ms_driver.event_create(&event, CU_EVENT_DISABLE_TIMING) != CUDA_SUCCESS) {
        event = NULL;
    } else if (ms_driver.event_record(event, stream) != CUDA_SUCCESS) {
        ms_driver.event_destroy(event);
        event = NULL;
    }
    ms_driver_leave(&scope);
    return event;
}

/* True if the driver would make a node of a call in that stream, or refuse it. */
static bool is_captured(CUstream stream)
{
    CUstreamCaptureStatus status;
    return ms_is_capturing() && (ms_driver.stream_is_capturing(stream, &status) != CUDA_SUCCESS ||
                                 status != CU_STREAM_CAPTURE_STATUS_NONE);
}

bool ms_alloc_free_in_stream(CUdeviceptr address, CUstream stream, CUresult *result_out)
{
    struct ms_allocation_facts facts;
    const CUcontext context = ms_order_stream_context(stream);
    if (!ms_space_look_up(address, &facts) || facts.is_programs || facts.address != address ||
        is_captured(stream) || context == NULL)
        return false;
    /* The shim does not see when it ends, and its events with it. */
    if (context != facts.context && is_green(context))
        return ms_order_stream_wait(stream) == CUDA_SUCCESS && ms_alloc_free(address, result_out);
    /* Addresses of it that a stream has not got to yet would mean nothing once it is gone. */
    *result_out =
        ms_has_late_payloads() ? ms_access(address, facts.bytes, MS_NEED_REACH) : CUDA_SUCCESS;
    if (*result_out != CUDA_SUCCESS)
        return true;
    struct ms_allocation *allocation = ms_space_claim(address);
    if (allocation == NULL || allocation->id != facts.id) {
        ms_space_release(allocation);
        return false;
    }
    ms_log(MS_DEBUG, "freed %zu bytes at 0x%llx in a stream, %zu of them backed", allocation->bytes,
           address, allocation->backing.backed_bytes);
    ms_publish_event(MS_EVENT_FREE, allocation, 0, allocation->bytes, NULL);
    ms_alloc_forget(allocation);
    ms_delayed_free_add(allocation, record_event(stream, context), context);
    ms_counter_add(MS_COUNT_FREES, 1);
    ms_delayed_free_pass(false);
    *result_out = CUDA_SUCCESS;
    return true;
}

CUresult ms_alloc_share_pool(CUmemoryPool handle)
{
    struct ms_allocation_facts facts;
    ms_pool_set_shared(handle);
    for (CUdeviceptr at = 0; ms_space_first_behind(at, &facts);) {
        at = facts.address + facts.bytes;
        const CUresult result = facts.pool == handle
                                    ? ms_access(facts.address, facts.bytes, MS_NEED_PIN)
                                    : CUDA_SUCCESS;
        if (result != CUDA_SUCCESS)
            return result;
    }
    return CUDA_SUCCESS;
}

CUresult ms_alloc_set_pool_access(CUmemoryPool handle, CUdevice peer, bool enabled)
{
    CUresult result = CUDA_SUCCESS;
    struct ms_allocation *allocation = NULL;
    while (result == CUDA_SUCCESS && (allocation = ms_space_walk(allocation)) != NULL) {
        if (ms_pool_handle(allocation->pool) == handle && allocation->device != peer)
            result = ms_backing_apply_access(&allocation->backing, peer, enabled);
    }
    ms_space_release(allocation);
    return result;
}

void ms_alloc_end_context(CUcontext context)
{
    ms_replay_forget_stream(context);
    ms_pinned_pool_forget(context);
    ms_parameters_forget(NULL);
    ms_delayed_free_forget(context);
    ms_examining_forget_context(context);
    CUdeviceptr at = 0;
    for (struct ms_allocation *allocation; (allocation = ms_space_claim_next(at)) != NULL;) {
        at = allocation->address + allocation->bytes;
        if (allocation->context == context && !allocation->is_programs) {
            ms_alloc_forget(allocation);
            ms_allocation_destroy(allocation);
        } else {
            ms_space_release(allocation);
        }
    }
}

CUresult ms_alloc_set_peer_access(CUdevice device, CUdevice peer, bool enabled)
{
    ms_backing_set_peer(device, peer, enabled);
    CUresult result = CUDA_SUCCESS;
    struct ms_allocation *allocation = NULL;
    while (result == CUDA_SUCCESS && (allocation = ms_space_walk(allocation)) != NULL) {
        if (allocation->device == device && allocation->pool == NULL && !allocation->is_programs)
            result = ms_backing_apply_access(&allocation->backing, peer, enabled);
    }
    ms_space_release(allocation);
    return result;
}
