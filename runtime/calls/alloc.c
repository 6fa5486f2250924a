/* SPDX-License-Identifier: Apache-2.0 */

#include "runtime/calls/alloc.h"

#include <stdatomic.h>

#include "runtime/base/heap.h"
#include "runtime/base/log.h"
#include "runtime/calls/recurring.h"
#include "runtime/config/config.h"
#include "runtime/driver/flags.h"
#include "runtime/driver/peers.h"
#include "runtime/fill/access.h"
#include "runtime/fill/compare.h"
#include "runtime/fill/overcommit.h"
#include "runtime/fill/replay.h"
#include "runtime/fill/scratch.h"
#include "runtime/fill/settle.h"
#include "runtime/kernel/parameters.h"
#include "runtime/loading/pinned_pool.h"
#include "runtime/memory/allocation.h"
#include "runtime/fill/delayed_free.h"
#include "runtime/memory/publish.h"
#include "runtime/memory/space.h"
#include "runtime/order/examining.h"
#include "runtime/order/order.h"
#include "runtime/selfcheck/selfcheck.h"
#include "runtime/shard/shard.h"
#include "runtime/state/counters.h"
#include "runtime/state/device.h"
#include "runtime/state/why.h"
#include "runtime/state/window.h"

static bool can_map_memory(CUdevice device)
{
    return device >= 0 && device < MS_MAX_DEVICES &&
           ms_driver_has(device, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED);
}

/*
 * --- pools
 *
 * A program that uses a pool allocates and frees in each training step. Once the program has freed
 * a few times its peak, an allocation that takes the place of freed memory is *recurring*: neither
 * the allocation nor a write to it keeps the window of deferral open. After the program has settled
 * because it moved on, the driver serves the pools, until the program has freed nearly all of its
 * lasting memory.
 */

/* Bytes of allocations from pools. Races between threads shift the limits only a little. */
static _Atomic uint64_t live_bytes;
static _Atomic uint64_t most_bytes;    /* the peak of live_bytes in this window */
static _Atomic uint64_t freed_bytes;   /* in this window, as far as they had memory */
static _Atomic uint64_t lasting_bytes; /* live, and not recurring */
static _Atomic uint64_t settled_bytes; /* lasting_bytes when the window had ended; 0: not known */

bool ms_alloc_wants_pooled(void)
{
    enum { FREED_PART = 8 }; /* with less left it has freed its model, as in overcommit.c */
    if (!ms_window_now().has_moved_on) {
        atomic_store_explicit(&settled_bytes, 0, memory_order_relaxed);
        return true;
    }
    const uint64_t lasting = atomic_load_explicit(&lasting_bytes, memory_order_relaxed);
    const uint64_t settled = atomic_load_explicit(&settled_bytes, memory_order_relaxed);
    if (settled == 0)
        atomic_store_explicit(&settled_bytes, lasting, memory_order_relaxed);
    if (lasting >= settled / FREED_PART)
        return false;
    atomic_store(&most_bytes, atomic_load(&live_bytes));
    atomic_store(&freed_bytes, 0);
    return true;
}

/* True if an allocation of so many bytes would take the place of freed memory. */
static bool takes_place(size_t bytes)
{
    enum { TIMES = 4 }; /* as for dead memory in evict.c */
    const uint64_t most = atomic_load(&most_bytes);
    return atomic_load(&live_bytes) + bytes <= most && atomic_load(&freed_bytes) >= TIMES * most;
}

static void begin_pooled(const struct ms_allocation *allocation)
{
    const size_t bytes = allocation->granule_bytes;
    const uint64_t live = atomic_fetch_add(&live_bytes, bytes) + bytes;
    if (live > atomic_load(&most_bytes))
        atomic_store(&most_bytes, live);
    if (!allocation->is_recurring)
        atomic_fetch_add(&lasting_bytes, bytes);
}

/* Bytes that never had memory count only a 64th: a program that loads frees such buffers. A loop
 * that only sets its memory counts as well, after more rounds. */
static void end_pooled(const struct ms_allocation *allocation)
{
    enum { UNUSED_PART = 64 };
    const size_t bytes = allocation->granule_bytes,
                 backed = ms_backing_bytes(ms_allocation_backing(allocation));
    atomic_fetch_sub(&live_bytes, bytes);
    atomic_fetch_add(&freed_bytes, backed + (bytes - backed) / UNUSED_PART);
    if (!allocation->is_recurring)
        atomic_fetch_sub(&lasting_bytes, bytes);
}

/* --- shared by all ways to defer */

void ms_alloc_forget(struct ms_allocation *allocation)
{
    if (allocation->pool != NULL)
        end_pooled(allocation);
    ms_shard_forget(allocation, 0, allocation->bytes);
    ms_space_remove(allocation);
}

/* Green contexts, by the handles that cuCtxFromGreenCtx returned. The driver serves their
 * allocations, because a green context shares the memory of its device's primary context and may
 * end before it. */
enum { MAX_GREEN = 64 };
static _Atomic(CUcontext) green[MAX_GREEN];
static _Atomic int green_count;

void ms_alloc_add_green_context(CUcontext context)
{
    const int at = atomic_fetch_add(&green_count, 1);
    atomic_store(&green[at % MAX_GREEN], context);
}

/* Every context counts as green if there are more than the table holds. */
static bool is_green(CUcontext context)
{
    const int count = atomic_load_explicit(&green_count, memory_order_relaxed);
    for (int i = 0; i < count && i < MAX_GREEN; i++) {
        if (atomic_load(&green[i]) == context)
            return true;
    }
    return count > MAX_GREEN;
}

bool ms_alloc_may_defer(size_t bytes, struct ms_promise *promise_out)
{
    *promise_out = (struct ms_promise){.bytes = bytes};
    if (bytes < ms_config.min_bytes || bytes == 0 ||
        ms_config_holds_size(&ms_config.excluded, bytes) || ms_is_capturing())
        return false;
    return ms_driver.ctx_get_current(&promise_out->context) == CUDA_SUCCESS &&
           promise_out->context != NULL && !is_green(promise_out->context) &&
           ms_driver.ctx_get_device(&promise_out->device) == CUDA_SUCCESS &&
           can_map_memory(promise_out->device);
}

/* Returns false if the driver must serve the allocation, because the self-check or queued work
 * (examining.h) forbids deferral. True: ms_examining_end() must follow. */
static bool begin(const struct ms_promise *promise)
{
    if (!ms_selfcheck_allows(promise->context, promise->device))
        return false;
    if (ms_driver_any_is_pageable())
        ms_examining_expect();
    ms_examining_begin();
    if (ms_examining_is_complete(promise->context, promise->device))
        return true;
    ms_examining_end();
    ms_why_fall_back(MS_REASON_UNEXAMINED, promise->bytes);
    return false;
}

/* Gives back the memory that the driver keeps for the pool, and asks again whether the allocation
 * fits. */
static bool allows_trimmed(const struct ms_promise *promise, bool *is_tight_out)
{
    return ms_driver.mem_pool_trim_to(ms_pool_handle(promise->pool), 0) == CUDA_SUCCESS &&
           ms_overcommit_allows(promise->device, promise->bytes, is_tight_out);
}

/* True if the program may have so many bytes more. May settle. */
static bool admits(const struct ms_promise *promise)
{
    bool is_tight;
    if (!ms_overcommit_allows(promise->device, promise->bytes, &is_tight) &&
        !(promise->pool != NULL && allows_trimmed(promise, &is_tight))) {
        ms_state_event(&(struct ms_event){
            .kind = MS_EVENT_FAIL, .reason = MS_REASON_OVERCOMMIT, .bytes = promise->bytes});
        return false;
    }
    if (is_tight)
        ms_settle_now("device memory is nearly used up");
    return true;
}

static bool keep(struct ms_promise *promise, ms_promise_maker *make, void *argument,
                 CUresult *result_out)
{
    if (!admits(promise)) {
        *result_out = CUDA_ERROR_OUT_OF_MEMORY;
        return true;
    }
    if (promise->pool != NULL)
        promise->is_recurring = takes_place(promise->bytes);
    /* The driver decides what the program gets if the record cannot be made. */
    if (!make(promise, argument))
        return false;
    ms_counter_add(MS_COUNT_ALLOCATIONS, 1);
    ms_counter_add(MS_COUNT_REQUESTED_BYTES, promise->bytes);
    if (!promise->is_recurring)
        ms_window_open();
    ms_device_publish(promise->device);
    *result_out = CUDA_SUCCESS;
    return true;
}

bool ms_alloc_promise(struct ms_promise *promise, ms_promise_maker *make, void *argument,
                      CUresult *result_out)
{
    if (!begin(promise))
        return false;
    const bool is_answered = keep(promise, make, argument, result_out);
    ms_examining_end();
    return is_answered;
}

/* --- allocations */

static bool reserve(const struct ms_promise *promise, void *argument)
{
    CUdeviceptr *address_out = argument;
    const struct ms_allocation *allocation;
    if (ms_allocation_create(promise, &allocation) != CUDA_SUCCESS)
        return false;
    if (promise->pool != NULL)
        begin_pooled(allocation);
    else
        ms_recurring_begin(promise->bytes);
    ms_publish_event(MS_EVENT_ALLOCATE, allocation, 0, promise->bytes, NULL);
    ms_log(MS_DEBUG, "deferred %zu bytes at 0x%llx", promise->bytes, allocation->address);
    *address_out = allocation->address;
    return true;
}

bool ms_alloc(size_t bytes, CUdeviceptr *address_out, CUresult *result_out)
{
    struct ms_promise promise;
    if (address_out == NULL || !ms_alloc_may_defer(bytes, &promise))
        return false;
    promise.is_recurring = ms_recurring_expects(bytes);
    return ms_alloc_promise(&promise, reserve, address_out, result_out);
}

bool ms_alloc_in_stream(size_t bytes, CUmemoryPool handle, CUstream stream,
                        CUdeviceptr *address_out, CUresult *result_out)
{
    struct ms_promise promise;
    if (address_out == NULL || !ms_alloc_may_defer(bytes, &promise) ||
        ms_order_stream_context(stream) != promise.context)
        return false;
    ms_delayed_free_pass(true);
    if (handle == NULL && ms_driver.device_get_mem_pool(&handle, promise.device) != CUDA_SUCCESS)
        return false;
    promise.pool = ms_pool_find(handle, promise.device);
    return promise.pool != NULL && ms_alloc_promise(&promise, reserve, address_out, result_out);
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

/* True if the driver's own allocation would have taken more memory, or in verify mode. */
static bool has_saved(const struct ms_allocation *allocation)
{
    const struct ms_lineage *lineage = ms_allocation_lineage(allocation);
    const size_t nothing = lineage->bytes - lineage->deferred_bytes - lineage->resident_bytes;
    return allocation->notes.shadow != NULL || lineage->deferred_bytes > lineage->cached_bytes ||
           (nothing < lineage->bytes &&
            ms_backing_bytes(ms_allocation_backing(allocation)) < allocation->granule_bytes);
}

/* The program has freed the allocation and can no longer reach it. */
static void forget_freed(struct ms_allocation *allocation, const char *how)
{
    ms_log(MS_DEBUG, "freed %zu bytes at 0x%llx%s, %zu of them backed", allocation->bytes,
           allocation->address, how, ms_backing_bytes(ms_allocation_backing(allocation)));
    ms_publish_event(MS_EVENT_FREE, allocation, 0, allocation->bytes, NULL);
    ms_alloc_forget(allocation);
    ms_counter_add(MS_COUNT_FREES, 1);
}

/* Waits without a claim: the wait may last as long as a host function of the program, and other
 * threads must be able to go on. */
CUresult ms_alloc_end(const struct ms_allocation_facts *facts)
{
    bool is_done;
    const CUresult result = wait_for_device(facts->context, &is_done);
    if (result != CUDA_SUCCESS)
        return result;
    struct ms_allocation *allocation = ms_space_claim_same(facts->address, facts->id);
    if (allocation == NULL)
        return CUDA_ERROR_INVALID_VALUE; /* another thread has freed it meanwhile */
    if (is_done)
        ms_compare(allocation, 0, allocation->bytes, MS_COMPARE_CACHED);
    if (facts->pool == NULL && !facts->is_opened)
        ms_recurring_end(facts->bytes, ms_shard_is_active() || has_saved(allocation));
    forget_freed(allocation, "");
    if (is_done)
        ms_allocation_destroy(allocation);
    else
        ms_delayed_free_add(allocation, NULL, NULL);
    ms_delayed_free_run(facts->context);
    if (is_done && !ms_defers_any()) {
        ms_pinned_pool_give_back(facts->context);
        ms_scratch_drop();
    }
    return CUDA_SUCCESS;
}

bool ms_alloc_free(CUdeviceptr address, CUresult *result_out)
{
    struct ms_allocation_facts facts;
    if (!ms_space_look_up(address, &facts) || facts.is_programs)
        return false;
    *result_out = facts.address == address && !facts.is_opened ? ms_alloc_end(&facts)
                                                               : CUDA_ERROR_INVALID_VALUE;
    return true;
}

/* Returns NULL if no event could be recorded. */
static CUevent record_event(CUstream stream, CUcontext context)
{
    struct ms_driver_scope scope;
    CUevent event;
    if (ms_driver_enter(context, &scope) != CUDA_SUCCESS)
        return NULL;
    const CUresult result = ms_driver_record(stream, &event);
    ms_driver_leave(&scope);
    return result == CUDA_SUCCESS ? event : NULL;
}

/* True if the driver would turn a call on that stream into a graph node, or refuse the call. */
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
    if (!ms_space_look_up(address, &facts) || facts.is_programs || facts.is_opened ||
        facts.address != address || is_captured(stream) || context == NULL)
        return false;
    /* The shim does not see a green context end, and the context's events with it: wait now. */
    if (context != facts.context && is_green(context))
        return ms_order_stream_wait(stream) == CUDA_SUCCESS && ms_alloc_free(address, result_out);
    /* Bytes that a stream has yet to copy may hold addresses of the allocation, which mean nothing
     * once its record is gone: give it memory now. */
    *result_out =
        ms_has_late_payloads() ? ms_access(address, facts.bytes, MS_NEED_REACH) : CUDA_SUCCESS;
    if (*result_out != CUDA_SUCCESS)
        return true;
    struct ms_allocation *allocation = ms_space_claim_same(address, facts.id);
    if (allocation == NULL)
        return false;
    forget_freed(allocation, " in a stream");
    ms_delayed_free_add(allocation, record_event(stream, context), context);
    ms_delayed_free_pass(false);
    return true;
}

static CUresult share_pool(CUmemoryPool handle)
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

static CUresult follow_pool_access(CUmemoryPool handle, const CUmemAccessDesc *access)
{
    CUresult result = CUDA_SUCCESS;
    if (access->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
        return CUDA_SUCCESS;
    MS_CLAIMED struct ms_allocation *allocation = NULL;
    while (result == CUDA_SUCCESS && (allocation = ms_space_walk(allocation)) != NULL) {
        if (ms_pool_handle(allocation->pool) == handle && allocation->device != access->location.id)
            result = ms_backing_apply_access(ms_allocation_memory(allocation), access->location.id,
                                             access->flags != CU_MEM_ACCESS_FLAGS_PROT_NONE);
    }
    return result;
}

static bool is_another(const CUmemAccessDesc *access, CUmemoryPool handle)
{
    return access->location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
           ms_pool_find(handle, access->location.id) == NULL;
}

CUresult ms_alloc_set_pool_access(CUmemoryPool handle, const CUmemAccessDesc *map, size_t count,
                                  CUresult (*set)(CUmemoryPool handle, const CUmemAccessDesc *map,
                                                  size_t count))
{
    bool is_shared = false;
    for (size_t i = 0; i < count; i++)
        is_shared = is_another(&map[i], handle) || is_shared;
    CUresult result = is_shared ? share_pool(handle) : CUDA_SUCCESS;
    if (result == CUDA_SUCCESS)
        result = set(handle, map, count);
    for (size_t i = 0; i < count && is_shared && result == CUDA_SUCCESS; i++)
        result = follow_pool_access(handle, &map[i]);
    return result;
}

void ms_alloc_end_context(CUcontext context)
{
    ms_replay_forget_stream(context);
    ms_pinned_pool_forget(context);
    ms_scratch_drop();
    ms_parameters_forget(NULL);
    ms_recurring_forget();
    ms_delayed_free_forget(context);
    ms_examining_forget_context(context);
    CUdeviceptr at = 0;
    for (struct ms_allocation *allocation; (allocation = ms_space_claim_next(at)) != NULL;) {
        at = allocation->address + allocation->bytes;
        if (allocation->context == context && allocation->pool != NULL)
            allocation->context = NULL; /* pooled memory outlives the context */
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
    ms_peers_set(device, peer, enabled);
    CUresult result = CUDA_SUCCESS;
    MS_CLAIMED struct ms_allocation *allocation = NULL;
    while (result == CUDA_SUCCESS && (allocation = ms_space_walk(allocation)) != NULL) {
        if (allocation->device == device && allocation->pool == NULL && !allocation->is_programs &&
            (enabled || !allocation->is_opened))
            result = ms_backing_apply_access(ms_allocation_memory(allocation), peer, enabled);
    }
    return result;
}
