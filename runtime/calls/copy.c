/* SPDX-License-Identifier: Apache-2.0 */

#include "runtime/calls/copy.h"

#include "runtime/calls/movement.h"
#include "runtime/calls/pointer.h"
#include "runtime/calls/write.h"
#include "runtime/driver/flags.h"
#include "runtime/fill/compare.h"
#include "runtime/fill/evict.h"
#include "runtime/fill/materialise.h"
#include "runtime/fill/replay.h"
#include "runtime/fill/reuse.h"
#include "runtime/fill/shadow.h"
#include "runtime/kernel/parameters.h"
#include "runtime/memory/bytes.h"
#include "runtime/memory/carve.h"
#include "runtime/memory/parked.h"
#include "runtime/memory/publish.h"
#include "runtime/memory/recorded_launch.h"
#include "runtime/order/order.h"
#include "runtime/shard/placement_query.h"
#include "runtime/shard/shard.h"
#include "runtime/state/counters.h"

/* Smaller pieces are first replayed in place, together with the bytes around them. Otherwise rows
 * would be copied, and waited for, one by one. */
enum { LEAST_FROM_STORE = 256 << 10 };

/* A copy in progress. source and destination are claimed; either is NULL for unowned memory. */
struct copy {
    struct ms_allocation *source, *destination;
    CUdeviceptr source_address, destination_address;
    size_t from, to; /* offsets in the two allocations */
    size_t bytes;
    CUstream stream;
    bool is_row;                        /* one of many rows of a copy */
    const struct ms_sequence *sequence; /* to which the tensor belongs, or NULL */
};

/* Makes this piece of the destination resident, without replaying its old content. */
static CUresult back_destination(const struct copy *copy, size_t at, size_t bytes)
{
    if (copy->destination == NULL)
        return CUDA_SUCCESS;
    return ms_materialise_for_copy(copy->destination, copy->to + at, copy->to + at + bytes);
}

static CUresult materialise_source(const struct copy *copy, size_t at, size_t bytes)
{
    return ms_materialise(copy->source, copy->from + at, copy->from + at + bytes,
                          ms_evict_need_in(copy->source, MS_NEED_READ, copy->stream));
}

/* Copies a piece whose bytes are in device memory, or must get there to keep their value. */
static CUresult copy_resident(const struct copy *copy, size_t at, size_t bytes)
{
    CUresult result = materialise_source(copy, at, bytes);
    if (result == CUDA_SUCCESS)
        result = back_destination(copy, at, bytes);
    if (result == CUDA_SUCCESS)
        result = ms_driver.memcpy_dtod_async(copy->destination_address + at,
                                             copy->source_address + at, bytes, copy->stream);
    return result;
}

/* A launch can only be replayed in its own context, while its code is loaded, and parked bytes only
 * on their own device. */
static bool may_move(const struct copy *copy, const struct ms_content *content)
{
    if (content->kind == MS_PARKED)
        return copy->destination->device == content->parked->device;
    return content->kind != MS_LAUNCHED ||
           (copy->destination->context == content->recorded->context &&
            !ms_parameters_is_unloading());
}

/* Copies parked bytes straight to the destination, so that they are not in memory three times.
 * Waits, so that the parked memory can be freed; the stream was idle, so the wait is short. */
static CUresult copy_from_parked(const struct copy *copy, size_t at, size_t bytes,
                                 const struct ms_content *content)
{
    CUresult result = back_destination(copy, at, bytes);
    if (result == CUDA_SUCCESS)
        result = ms_replay(content, 0, copy->destination_address + at, bytes, copy->stream);
    return result == CUDA_SUCCESS ? ms_order_stream_wait(copy->stream) : result;
}

/* True if the shim's own kernels on the source's device reach the destination. */
static bool is_on_device_of_source(const struct copy *copy)
{
    return copy->destination != NULL && copy->destination->device == copy->source->device;
}

/* Brings a deferred piece into the destination's memory, in stream order. The driver copies a piece
 * that is cached in the source, or that must first be replayed in its own place there. */
static CUresult copy_to_memory(const struct copy *copy, size_t at, size_t bytes,
                               const struct ms_content *content)
{
    if (content->kind == MS_PARKED && bytes >= LEAST_FROM_STORE)
        return copy_from_parked(copy, at, bytes, content);
    if (content->cached || content->kind == MS_LAUNCHED || content->kind == MS_PARKED)
        return copy_resident(copy, at, bytes);
    const size_t from = copy->from + at;
    if (ms_reuse_note(&(struct ms_copied){content, copy->source, from, NULL, 0, bytes}))
        return copy_resident(copy, at, bytes);
    CUresult result = ms_placement_query_read_remote(copy->source, from, from + bytes);
    if (result == CUDA_SUCCESS)
        result = back_destination(copy, at, bytes);
    if (result != CUDA_SUCCESS)
        return result;
    ms_counter_add(MS_COUNT_FORWARDED_BYTES, bytes);
    result = ms_replay(content, from, copy->destination_address + at, bytes, copy->stream);
    if (result == CUDA_SUCCESS)
        ms_compare_copy(copy->source, &(struct ms_extent){from, from + bytes, *content},
                        copy->destination_address + at, is_on_device_of_source(copy), copy->stream);
    return result;
}

/* Makes a piece of the destination deferred. */
static CUresult set_content(const struct copy *copy, size_t at, size_t bytes,
                            const struct ms_content *content)
{
    const size_t to = copy->to + at;
    return ms_bytes_set(copy->destination, to, to + bytes, content);
}

/* Makes bytes that are absent in the source absent in the destination, whatever was there. */
static CUresult copy_absence(const struct copy *copy, size_t at, size_t bytes)
{
    static const struct ms_content absent = {.kind = MS_ABSENT, .locality = MS_REMOTE};
    if (copy->destination == NULL || ms_is_capturing())
        return copy_resident(copy, at, bytes); /* fails: the bytes are absent */
    return set_content(copy, at, bytes, &absent);
}

/* True if a deferred copy would send the bytes a second time: they are in memory, because a plan
 * brought them there, or the program has read them, as a broadcast does. */
static bool would_read_twice(const struct ms_content *content)
{
    return content->cached && (content->kind == MS_SOURCE || content->locality == MS_LOCAL);
}

/* Copies a deferred piece to a range that is all present, all unowned, or all deferred. */
static CUresult copy_lineage(const struct copy *copy, size_t at, size_t bytes,
                             const struct ms_content *content, bool present)
{
    if (present)
        return copy_to_memory(copy, at, bytes, content);
    if (!may_move(copy, content) || would_read_twice(content))
        return copy_resident(copy, at, bytes);
    const size_t from = copy->from + at;
    if (content->locality == MS_REMOTE && ms_shard_enforces())
        return ms_placement_query_read_remote(copy->source, from, from + bytes);
    ms_counter_add(MS_COUNT_FORWARDED_BYTES, bytes);
    const struct ms_copied copied = {content,           copy->source,  from,
                                     copy->destination, copy->to + at, bytes};
    ms_reuse_note(&copied);
    struct ms_content moved = ms_content_move(content, from, copied.to);
    if (copy->sequence != NULL)
        ms_content_set_in_sequence(&moved);
    if (ms_verifies())
        ms_shadow_copy(&copied, &moved, copy->stream);
    return set_content(copy, at, bytes, &moved);
}

/* Copies a deferred piece, cut where the destination changes between deferred and present. */
static CUresult copy_deferred(const struct copy *copy, const struct ms_extent *extent)
{
    for (size_t from = extent->begin; from < extent->end;) {
        const size_t at = from - copy->from;
        size_t bytes = extent->end - from;
        bool present = true;
        if (copy->destination != NULL) {
            const size_t to = copy->to + at;
            const struct ms_extent there =
                ms_lineage_at(ms_allocation_lineage(copy->destination), to);
            if (there.end - to < bytes)
                bytes = there.end - to;
            present = ms_content_is_present(&there.content);
        }
        struct ms_content content = extent->content;
        content.source_offset += from - extent->begin;
        const CUresult result = copy_lineage(copy, at, bytes, &content, present);
        if (result != CUDA_SUCCESS)
            return result;
        from += bytes;
    }
    return CUDA_SUCCESS;
}

/* Gives bytes that were never written a value: they may be anything, but must be equal in both
 * places. */
static CUresult define(const struct copy *copy, struct ms_extent *extent)
{
    extent->content.kind = MS_FILL;
    extent->content.pattern = 0;
    if (ms_verifies())
        ms_shadow_write(copy->source, extent, NULL, copy->stream);
    return ms_bytes_set(copy->source, extent->begin, extent->end, &extent->content);
}

static CUresult copy_extent(const struct copy *copy, struct ms_extent *extent, bool may_record)
{
    const size_t at = extent->begin - copy->from;
    const size_t bytes = extent->end - extent->begin;
    CUresult result = CUDA_SUCCESS;
    if (extent->content.kind == MS_ABSENT)
        return copy_absence(copy, at, bytes);
    if (may_record && extent->content.kind == MS_UNDEFINED && copy->destination != NULL)
        result = define(copy, extent);
    if (result != CUDA_SUCCESS)
        return result;
    if (!may_record || ms_content_is_nothing(&extent->content) ||
        extent->content.kind == MS_RESIDENT)
        return copy_resident(copy, at, bytes);
    return copy_deferred(copy, extent);
}

/* Lists the source's extents first, so that an overlapping copy reads the old content. */
static CUresult copy_extents(const struct copy *copy, bool may_record)
{
    size_t count;
    struct ms_extent *extents = ms_lineage_copy(ms_allocation_lineage(copy->source), copy->from,
                                                copy->from + copy->bytes, &count);
    if (extents == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = CUDA_SUCCESS;
    for (size_t i = 0; i < count && result == CUDA_SUCCESS; i++)
        result = copy_extent(copy, &extents[i], may_record);
    ms_lineage_free_copy(extents, count);
    return result;
}

static void set_remote_copy(struct ms_content *content)
{
    if (content->locality != MS_LOCAL && !ms_content_is_present(content))
        content->is_remote_copy = true;
}

/* Records the copy, and marks the source's remote bytes in the destination too, so that a receive
 * there does not keep them. */
static CUresult copy_recorded(const struct copy *copy)
{
    struct ms_ranges remote_parts = {0};
    ms_placement_query(copy->source, copy->from, copy->from + copy->bytes);
    CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
    if (copy->destination == NULL || copy->is_row ||
        ms_placement_query_list_remote(copy->source, copy->from, copy->bytes, copy->sequence,
                                       &remote_parts))
        result = copy_extents(copy, true);
    if (remote_parts.count > 0 && result == CUDA_SUCCESS) {
        for (size_t i = 0; i < remote_parts.count; i++) {
            remote_parts.list[i].begin += copy->to - copy->from;
            remote_parts.list[i].end += copy->to - copy->from;
        }
        result = ms_bytes_change(copy->destination, remote_parts.list, remote_parts.count,
                                 set_remote_copy);
    }
    ms_ranges_cleanup(&remote_parts);
    return result;
}

static bool overlaps(const struct copy *copy)
{
    return copy->source_address < copy->destination_address + copy->bytes &&
           copy->destination_address < copy->source_address + copy->bytes;
}

static bool ask(void *value_out, CUpointer_attribute attribute, CUdeviceptr address)
{
    return ms_driver.pointer_get_attribute(value_out, attribute, address) == CUDA_SUCCESS;
}

/* True if, for the driver, the range lies in one piece of that device's memory. Not for
 * allocations. */
static bool is_whole(CUdeviceptr address, size_t bytes, CUdevice device)
{
    CUdeviceptr begin;
    size_t whole_bytes;
    int its_device;
    return ask(&begin, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, address) &&
           ask(&whole_bytes, CU_POINTER_ATTRIBUTE_RANGE_SIZE, address) &&
           ask(&its_device, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, address) && its_device == device &&
           address - begin <= whole_bytes && bytes <= whole_bytes - (address - begin);
}

/* True if the driver cannot refuse the copy because of its source. */
static bool is_source_sure(const struct copy *copy)
{
    const CUdevice device = copy->destination->device;
    return copy->source != NULL ? copy->source->device == device
                                : is_whole(copy->source_address, copy->bytes, device);
}

/* Backs the destination. Keeps its old content if the driver may refuse the call. */
static CUresult back_for_driver(const struct copy *copy)
{
    const size_t end = copy->to + copy->bytes;
    return is_source_sure(copy)
               ? ms_write_prepare(copy->destination, copy->to, end, copy->stream)
               : ms_materialise(copy->destination, copy->to, end, MS_NEED_READ_WRITE);
}

/* Materialises both ranges, so that the driver's own copy can run. */
static CUresult make_real(const struct copy *copy)
{
    CUresult result = CUDA_SUCCESS;
    if (copy->source != NULL)
        result = materialise_source(copy, 0, copy->bytes);
    if (result == CUDA_SUCCESS && copy->destination != NULL)
        result = back_for_driver(copy);
    return result;
}

/* The allocation that a side of the copy does not fit in; NULL: both sides fit. */
static const struct ms_allocation *exceeded_by(const struct copy *copy)
{
    if (copy->source != NULL && !ms_fits(copy->source, copy->source_address, copy->bytes))
        return copy->source;
    if (copy->destination != NULL &&
        !ms_fits(copy->destination, copy->destination_address, copy->bytes))
        return copy->destination;
    return NULL;
}

/* Returns true if the copy is answered. */
static bool run(struct copy *copy, CUresult *result_out)
{
    const struct ms_allocation *source = copy->source, *exceeded = exceeded_by(copy);
    const size_t bytes = copy->bytes;
    if (exceeded != NULL) {
        /* Outside the recorded mappings, only the driver knows what is there. */
        *result_out = CUDA_ERROR_INVALID_VALUE;
        return !exceeded->is_programs;
    }
    if (source != NULL) {
        copy->from = ms_offset(source, copy->source_address);
        ms_carve_add_use(copy->source, copy->from, copy->from + bytes);
    }
    if (copy->destination != NULL) {
        copy->to = ms_offset(copy->destination, copy->destination_address);
        ms_carve_add_use(copy->destination, copy->to, copy->to + bytes);
        *result_out = ms_write_bound(copy->destination, copy->to);
        if (*result_out != CUDA_SUCCESS)
            return true;
    } else {
        ms_order_add_gate(); /* the destination may be pinned memory */
    }
    /* The driver decides what an overlapping copy does. */
    if (source != NULL && !overlaps(copy) &&
        ms_lineage_any(ms_allocation_lineage(source), copy->from, copy->from + bytes,
                       MS_NOT_RESIDENT)) {
        const bool may_record = ms_order_may_record(copy->stream);
        if (may_record || ms_lineage_any(ms_allocation_lineage(source), copy->from,
                                         copy->from + bytes, MS_OF_KIND(MS_ABSENT))) {
            *result_out = may_record ? copy_recorded(copy) : copy_extents(copy, false);
            if (*result_out == CUDA_SUCCESS && copy->destination != NULL && !copy->is_row)
                ms_materialise_granules_later(copy->destination, copy->to, copy->to + bytes);
            if (!copy->is_row)
                ms_publish_event(MS_EVENT_RECORD, source, copy->from, bytes,
                                 "a copy on the device");
            return true;
        }
    }
    *result_out = make_real(copy);
    return *result_out != CUDA_SUCCESS;
}

bool ms_copy_on_device(const struct ms_movement *movement, CUresult *result_out)
{
    struct copy copy = {.source_address = movement->from.begin,
                        .destination_address = movement->to.begin,
                        .bytes = movement->width,
                        .stream = movement->stream,
                        .is_row = movement->is_row,
                        .sequence = movement->sequence};
    MS_CLAIMED_BOTH const struct ms_claims claims =
        ms_claims_begin(copy.source_address, copy.destination_address);
    copy.source = claims.first;
    copy.destination = claims.second;
    return (copy.source != NULL || copy.destination != NULL) && run(&copy, result_out);
}
