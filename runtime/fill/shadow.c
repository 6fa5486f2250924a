/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/fill/shadow.h"

#include "runtime/base/heap.h"
#include "runtime/base/log.h"
#include "runtime/driver/flags.h"
#include "runtime/fill/replay.h"
#include "runtime/fill/reuse.h"
#include "runtime/memory/addresses.h"
#include "runtime/memory/bytes.h"
#include "runtime/memory/recorded_launch.h"
#include "runtime/order/order.h"
#include "runtime/state/counters.h"

/* Samples verify_percent of each hundred allocations in a row, spread evenly. */
static bool is_sampled(const struct ms_allocation *allocation)
{
    const uint64_t percent = ms_config.verify_percent < 100 ? ms_config.verify_percent : 100;
    return allocation->id * percent / 100 != (allocation->id - 1) * percent / 100;
}

static bool reserve(struct ms_allocation *allocation)
{
    struct ms_notes *notes = &allocation->notes;
    if (notes->shadow != NULL)
        return true;
    struct ms_backing *shadow = ms_heap_alloc(sizeof(*shadow));
    if (shadow == NULL || ms_addresses_reserve_backing(shadow, allocation->device,
                                                       allocation->bytes) != CUDA_SUCCESS) {
        ms_heap_free(shadow);
        return false;
    }
    notes->shadow = shadow;
    return true;
}

/* Gives the shadow memory for [begin, end). False: it gets none. */
static bool cover(struct ms_allocation *allocation, size_t begin, size_t end)
{
    return is_sampled(allocation) && reserve(allocation) &&
           ms_backing_cover(allocation->notes.shadow, begin, end) == CUDA_SUCCESS;
}

/* Keeps the current context, because the legacy stream belongs to it. */
static bool enter(struct ms_driver_scope *scope_out)
{
    CUcontext current;
    return ms_driver.ctx_get_current(&current) == CUDA_SUCCESS &&
           ms_driver_enter(current, scope_out) == CUDA_SUCCESS;
}

/* Waits for an event: waiting for the legacy stream would include work that others queue
 * meanwhile. */
CUresult ms_shadow_wait(CUstream stream)
{
    CUevent event;
    if (ms_driver.event_create(&event, CU_EVENT_DISABLE_TIMING) != CUDA_SUCCESS)
        return ms_order_stream_wait(stream);
    CUresult result = ms_driver.event_record(event, stream);
    if (result == CUDA_SUCCESS)
        result = ms_driver.event_synchronize(event);
    else
        result = ms_order_stream_wait(stream); /* a stream of another context */
    ms_driver.event_destroy(event);
    return result;
}

/* Waits for the queued work, also after a failure, marks the content, and undoes `enter`. */
static void finish(const struct ms_driver_scope *scope, bool is_queued, CUresult result,
                   size_t bytes, CUstream stream, struct ms_content *content)
{
    const CUresult waited = is_queued ? ms_shadow_wait(stream) : CUDA_SUCCESS;
    content->is_shadowed = result == CUDA_SUCCESS && waited == CUDA_SUCCESS;
    ms_driver_leave(scope);
    if (!content->is_shadowed)
        ms_counter_add(MS_COUNT_VERIFY_LEFT_OUT_BYTES, bytes);
}

void ms_shadow_write(struct ms_allocation *allocation, struct ms_extent *written, const void *host,
                     CUstream stream)
{
    struct ms_driver_scope scope;
    const size_t begin = written->begin, bytes = written->end - begin;
    if (!enter(&scope))
        return;
    const bool has_memory = cover(allocation, begin, written->end);
    CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
    const CUdeviceptr address = ms_shadow_address(allocation, begin);
    if (has_memory)
        result = host != NULL ? ms_driver.memcpy_htod_async(address, host, bytes, stream)
                              : ms_replay(&written->content, begin, address, bytes, stream);
    finish(&scope, has_memory, result, bytes, stream, &written->content);
}

void ms_shadow_copy(const struct ms_copied *copied, struct ms_content *moved, CUstream stream)
{
    struct ms_driver_scope scope;
    const size_t to = copied->to, bytes = copied->bytes;
    if (!enter(&scope))
        return;
    const bool has_memory = copied->content->is_shadowed &&
                            copied->copy->device == copied->source->device &&
                            cover(copied->copy, to, to + bytes);
    CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
    if (has_memory)
        result = ms_driver.memcpy_dtod_async(ms_shadow_address(copied->copy, to),
                                             ms_shadow_address(copied->source, copied->from), bytes,
                                             stream);
    finish(&scope, has_memory, result, bytes, stream, moved);
}

/* True if the part's shadow holds what a launch would find. Makes bytes zero that were never
 * written, as a replay does. */
static bool prepare(const struct ms_part *part, CUstream stream)
{
    struct ms_allocation *allocation = part->allocation;
    bool is_good = cover(allocation, part->begin, part->end);
    struct ms_extent extent;
    for (size_t at = part->begin;
         is_good && ms_lineage_next(ms_allocation_lineage(allocation), &at, part->end, &extent);) {
        if (ms_content_is_nothing(&extent.content))
            is_good = ms_driver.memset_d8_async(ms_shadow_address(allocation, extent.begin), 0,
                                                extent.end - extent.begin, stream) == CUDA_SUCCESS;
        else
            is_good = extent.content.is_shadowed;
    }
    return is_good;
}

static uint64_t delta_of(const struct ms_part *part)
{
    return ms_shadow_address(part->allocation, 0) - part->allocation->address;
}

void ms_shadow_launch(const struct ms_part *out, const struct ms_part *in,
                      struct ms_content *launched, CUstream stream)
{
    struct ms_driver_scope scope;
    if (!enter(&scope))
        return;
    CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
    if (prepare(out, stream) && (in == NULL || prepare(in, stream))) {
        const uint64_t deltas[] = {delta_of(out), delta_of(in != NULL ? in : out)};
        result = ms_call_run(launched->recorded->launch, deltas, stream);
    }
    finish(&scope, true, result, out->end - out->begin, stream, launched);
}

void ms_shadow_trim(struct ms_allocation *allocation, size_t begin, size_t end)
{
    struct ms_driver_scope scope; /* unmapping would end a capture */
    struct ms_backing *shadow = allocation->notes.shadow;
    if (shadow == NULL || !enter(&scope))
        return;
    ms_backing_uncover(shadow, begin, end < allocation->bytes ? end : shadow->bytes, false);
    ms_driver_leave(&scope);
}

/* Frees the whole shadow, after marking that no byte has one. */
static size_t give_up(struct ms_allocation *allocation)
{
    struct ms_notes *notes = &allocation->notes;
    const size_t freed = notes->shadow != NULL ? notes->shadow->backed_bytes : 0;
    if (freed == 0 || ms_bytes_change_range(allocation, 0, allocation->bytes,
                                            ms_content_forget_shadow) != CUDA_SUCCESS)
        return 0;
    ms_backing_release(notes->shadow);
    ms_heap_free(notes->shadow);
    notes->shadow = NULL;
    ms_counter_add(MS_COUNT_VERIFY_LEFT_OUT_BYTES, freed);
    return freed;
}

size_t ms_shadow_give_up(void)
{
    size_t freed = 0;
    struct ms_allocation_facts facts;
    if (!ms_verifies() || ms_is_capturing())
        return 0;
    for (CUdeviceptr at = 0; ms_space_first_behind(at, &facts);) {
        at = facts.address + facts.bytes;
        MS_CLAIMED struct ms_allocation *allocation = ms_space_try_claim(facts.address);
        if (allocation != NULL)
            freed += give_up(allocation);
    }
    if (freed > 0)
        ms_log(MS_INFO,
               "verify: out of device memory, so %zu bytes of shadows were freed: what "
               "they held is not compared",
               freed);
    return freed;
}
