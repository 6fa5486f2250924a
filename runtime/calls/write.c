/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "runtime/calls/calls.h"

#include "runtime/calls/host_memory.h"
#include "runtime/calls/late_payload.h"
#include "runtime/calls/pointer_scan.h"
#include "runtime/calls/query.h"
#include "runtime/driver/flags.h"
#include "runtime/fill/compare.h"
#include "runtime/fill/evict.h"
#include "runtime/fill/materialise.h"
#include "runtime/fill/replay.h"
#include "runtime/fill/shadow.h"
#include "runtime/memory/order.h"
#include "runtime/memory/publish.h"
#include "runtime/shard/active_plan.h"
#include "runtime/source/content.h"
#include "runtime/state/counters.h"
#include "runtime/state/window.h"

/*
 * Some 50 bytes each. In a large block more is allowed: one that is copied row by row has a piece
 * for each row. What is left to other ranks stays in pieces, so the next look is at twice as many.
 */
CUresult ms_bound_lineage(struct ms_allocation *allocation, size_t offset)
{
    enum { LEAST_PIECES = 1 << 17, BYTES_FOR_ONE = 512 << 10 };
    if (allocation->lineage.extents.count <= LEAST_PIECES)
        return CUDA_SUCCESS;
    const struct ms_range block = ms_space_block_at(allocation, offset);
    const size_t pieces = ms_lineage_pieces(&allocation->lineage, block.begin, block.end);
    if (pieces <= LEAST_PIECES || pieces <= allocation->least_pieces ||
        pieces <= (block.end - block.begin) / BYTES_FOR_ONE)
        return CUDA_SUCCESS;
    const struct ms_why why = ms_why_begin(MS_REASON_PIECES);
    const CUresult result = ms_materialise(allocation, block.begin, block.end, MS_NEED_KEEP);
    ms_why_end(why);
    allocation->least_pieces = 2 * ms_lineage_pieces(&allocation->lineage, block.begin, block.end);
    return result;
}

/* A query of a stream that captures would end the capture. */
static bool takes_work(CUstream stream)
{
    if (ms_is_capturing())
        return false;
    const CUresult state = ms_driver.stream_query(stream);
    return state == CUDA_SUCCESS || state == CUDA_ERROR_NOT_READY;
}

CUresult ms_back_for_call(struct ms_allocation *allocation, size_t begin, size_t end,
                          CUstream stream)
{
    return takes_work(stream) ? ms_materialise_for_copy(allocation, begin, end)
                              : ms_materialise(allocation, begin, end, MS_NEED_READ_WRITE);
}

/* The bytes went to memory from where the shim has found them, not from the program's buffer. */
static void verify(struct ms_allocation *allocation, size_t begin, size_t end,
                   const struct ms_content *content, const void *host, CUstream stream)
{
    if (ms_shadow_write(allocation, begin, end, content, host, stream))
        ms_compare_copy(allocation, begin, end - begin, allocation->address + begin, true, stream);
    ms_shadow_trim(allocation, begin, end);
}

/*
 * Writes content to [begin, end): recorded where the allocation is deferred, replayed in stream
 * order where it is present. Cached bytes become resident then: queued work may still read them, so
 * they must not be replayed over out of order later. `host`: the bytes; NULL for a fill.
 */
static CUresult write_range(struct ms_allocation *allocation, size_t begin, size_t end,
                            const struct ms_content *content, const unsigned char *host,
                            CUstream stream)
{
    size_t count;
    struct ms_extent *old = ms_lineage_copy(&allocation->lineage, begin, end, &count);
    if (old == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = CUDA_SUCCESS;
    for (size_t i = 0; i < count && result == CUDA_SUCCESS; i++) {
        const size_t from = old[i].begin, to = old[i].end;
        const unsigned char *bytes = host != NULL ? host + (from - begin) : NULL;
        struct ms_content part = *content;
        part.source_offset += from - begin;
        if (!ms_content_is_present(&old[i].content)) {
            part.is_shadowed =
                ms_verifies() && ms_shadow_write(allocation, from, to, &part, bytes, stream);
            if (!ms_lineage_set(&allocation->lineage, from, to, &part))
                result = CUDA_ERROR_OUT_OF_MEMORY;
            continue;
        }
        result = ms_materialise(allocation, from, to, MS_NEED_READ_WRITE);
        if (result == CUDA_SUCCESS)
            result = ms_replay(&part, from, allocation->address + from, to - from, stream);
        if (ms_verifies() && bytes != NULL && result == CUDA_SUCCESS)
            verify(allocation, from, to, &part, bytes, stream);
    }
    ms_extents_free(old, count);
    if (result == CUDA_SUCCESS)
        ms_materialise_granules_later(allocation, begin, end);
    return result;
}

/* Claims the allocation for a write of [address, address + bytes). Returns NULL if the call is to
 * be forwarded (*result_out is CUDA_SUCCESS, and the range is resident) or refused. */
static struct ms_allocation *claim_for_write(CUdeviceptr address, size_t bytes,
                                             CUresult *result_out)
{
    struct ms_allocation *allocation = ms_space_claim(address);
    *result_out = CUDA_SUCCESS;
    if (allocation == NULL)
        return NULL;
    const size_t begin = ms_offset(allocation, address);
    if (!ms_fits(allocation, address, bytes)) {
        /* Of what the program has not mapped the driver knows what it is. */
        *result_out = allocation->backing.is_programs ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
        ms_space_release(allocation);
        return NULL;
    }
    *result_out = ms_bound_lineage(allocation, begin);
    if (*result_out == CUDA_SUCCESS) {
        ms_space_add_use(allocation, begin, begin + bytes);
        if (!ms_lineage_is_present(&allocation->lineage, begin, begin + bytes))
            return allocation;
        *result_out = ms_materialise(allocation, begin, begin + bytes, MS_NEED_READ_WRITE);
    }
    ms_space_release(allocation);
    return NULL;
}

static uint32_t widen(uint32_t value, unsigned width)
{
    if (width == 1)
        return (value & 0xff) * UINT32_C(0x01010101);
    if (width == 2)
        return (value & 0xffff) * UINT32_C(0x00010001);
    return value;
}

/* True for an allocation of another than the current device: the driver decides about access. */
static bool is_far(const struct ms_allocation *allocation)
{
    CUdevice current;
    return ms_driver.ctx_get_device(&current) != CUDA_SUCCESS || current != allocation->device;
}

static bool fill(CUdeviceptr address, uint32_t value, unsigned width, size_t count, CUstream stream,
                 CUresult *result_out)
{
    const size_t bytes = count * width;
    if (count == 0 || bytes / width != count)
        return false;
    *result_out = ms_access_payload_value(value, width);
    if (*result_out != CUDA_SUCCESS)
        return true;
    struct ms_allocation *allocation = claim_for_write(address, bytes, result_out);
    if (allocation == NULL)
        return *result_out != CUDA_SUCCESS;
    if (address % width != 0) {
        ms_space_release(allocation);
        *result_out = CUDA_ERROR_INVALID_VALUE;
        return true;
    }

    const size_t begin = ms_offset(allocation, address);
    bool answered = true;
    if (!is_far(allocation) && ms_may_record(stream)) {
        const struct ms_content fill = {.kind = MS_FILL, .pattern = widen(value, width)};
        *result_out = write_range(allocation, begin, begin + bytes, &fill, NULL, stream);
        ms_count(MS_COUNT_RECORDED_FILL_BYTES, bytes);
        ms_publish_event(MS_EVENT_RECORD, allocation, begin, bytes, "a fill");
        if (!allocation->is_transient)
            ms_window_extend();
    } else {
        *result_out = ms_back_for_call(allocation, begin, begin + bytes, stream);
        answered = *result_out != CUDA_SUCCESS;
    }
    ms_space_release(allocation);
    return answered;
}

bool ms_fill(CUdeviceptr address, uint32_t value, unsigned width, size_t count, CUstream stream,
             CUresult *result_out)
{
    int attempts = 0;
    bool answered;
    do
        answered = fill(address, value, width, count, stream, result_out);
    while (answered && ms_try_bytes_again(*result_out, &attempts));
    return answered;
}

static struct ms_source *find_file(const void *source, size_t bytes, uint64_t *offset_out)
{
    struct ms_source *file = NULL;
    if (bytes >= ms_shard_least_copy()) {
        file = ms_source_from_mapping(source, bytes, offset_out);
        if (file == NULL)
            file = ms_source_from_content(source, bytes, offset_out);
    }
    if (file != NULL)
        ms_count(MS_COUNT_RECORDED_FILE_BYTES, bytes);
    return file;
}

/* Its bytes are copied when they are examined (expose_content). */
static struct ms_source *take_snapshot(size_t bytes)
{
    struct ms_source *snapshot = ms_source_create_snapshot(bytes);
    if (snapshot != NULL)
        ms_count(MS_COUNT_RECORDED_SNAPSHOT_BYTES, bytes);
    else
        ms_publish_fallback(MS_REASON_SNAPSHOT_LIMIT, bytes, NULL);
    return snapshot;
}

/* Recognises memory that was never written: all of a model's, on a rank that gets its tensors from
 * another one. The first word of other memory mostly decides. */
static bool is_zero(const unsigned char *bytes, size_t count)
{
    return bytes[0] == 0 && memcmp(bytes, bytes + 1, count - 1) == 0;
}

/* Finds what the copied bytes are. Returns false if they must be copied. */
static bool find_content(const void *source, size_t bytes, struct ms_content *content)
{
    uint64_t offset = 0;
    struct ms_source *found = find_file(source, bytes, &offset);
    *content = (struct ms_content){.kind = MS_FILL};
    if (found == NULL && is_zero(source, bytes)) {
        ms_count(MS_COUNT_RECORDED_FILL_BYTES, bytes);
        return true;
    }
    if (found == NULL) {
        offset = 0;
        found = take_snapshot(bytes);
    }
    *content = (struct ms_content){.kind = MS_SOURCE, .source = found, .source_offset = offset};
    return found != NULL;
}

static void drop_found(const struct ms_content *content)
{
    if (content->kind == MS_SOURCE)
        ms_source_drop(content->source);
}

/* Under the claim of the allocation that gets it: who closes a source later will find it there, but
 * one that was closed since it was found is not found anywhere. */
static bool is_still_there(const struct ms_content *content)
{
    return content->kind != MS_SOURCE || ms_source_is_open(content->source);
}

static const char *describe(const struct ms_content *content)
{
    if (content->kind == MS_FILL)
        return "memory of zeros";
    return ms_source_is_file(content->source) ? "bytes of a file" : "bytes of memory";
}

/* Materialises what addresses in the copied bytes point to, which kernels now can read. Zeros, and
 * bytes of a file that is older than this process, hold no addresses. Fills a snapshot. */
static CUresult expose_content(const void *source, size_t bytes, const struct ms_content *content)
{
    if (content->kind == MS_FILL)
        return CUDA_SUCCESS;
    if (!ms_source_is_file(content->source))
        return ms_pointer_scan_copy(ms_source_data(content->source), source, bytes);
    return ms_source_is_older(content->source) ? CUDA_SUCCESS
                                               : ms_pointer_scan_expose(source, bytes);
}

CUresult ms_access_unowned(CUdeviceptr source)
{
    const bool is_plain =
        ms_is_device_memory(source) && !ms_is_managed(source) && !ms_host_holds(source);
    return is_plain ? CUDA_SUCCESS : ms_pointer_scan_expose_all();
}

CUresult ms_access_payload(const struct ms_rows *rows, CUstream stream)
{
    if (rows->begin == 0 || rows->width == 0)
        return CUDA_SUCCESS;
    /* Memory that is unreadable here may hold anything; what is captured is copied at any time. */
    if (!ms_is_host_memory(rows->begin) || ms_is_capturing())
        return ms_pointer_scan_expose_all();
    /* Of pageable memory, the driver has taken the bytes when the call returns. */
    if (!ms_host_holds(rows->begin) || !ms_host_may_change(stream))
        return ms_pointer_scan_expose_rows(rows);
    return ms_late_payload_add(rows, stream) ? CUDA_SUCCESS : ms_pointer_scan_expose_all();
}

CUresult ms_access_payload_linear(const void *source, size_t bytes, CUstream stream)
{
    const struct ms_rows row = {
        .begin = (uintptr_t)source, .width = bytes, .height = 1, .depth = 1};
    return ms_access_payload(&row, stream);
}

CUresult ms_access_payload_value(uint32_t value, unsigned width)
{
    return ms_pointer_scan_expose_pattern(widen(value, width));
}

/* Prepares the copy for the driver: backs its destination. */
static bool back_for_copy(CUdeviceptr destination, const void *source, size_t bytes,
                          CUstream stream, CUresult *result_out)
{
    *result_out = ms_access_payload_linear(source, bytes, stream);
    if (*result_out != CUDA_SUCCESS)
        return true;
    struct ms_allocation *allocation = claim_for_write(destination, bytes, result_out);
    if (allocation == NULL)
        return *result_out != CUDA_SUCCESS;
    const size_t begin = ms_offset(allocation, destination);
    *result_out = ms_back_for_call(allocation, begin, begin + bytes, stream);
    ms_space_release(allocation);
    return *result_out != CUDA_SUCCESS;
}

/* What is present is written by the driver: nobody needs to know what the bytes are. */
static bool is_present(CUdeviceptr address, size_t bytes)
{
    struct ms_allocation *allocation = ms_space_claim(address);
    if (allocation == NULL)
        return false;
    const size_t begin = ms_offset(allocation, address);
    const bool is_present = ms_fits(allocation, address, bytes) &&
                            ms_lineage_is_present(&allocation->lineage, begin, begin + bytes);
    ms_space_release(allocation);
    return is_present;
}

/* Returns false if the driver has to copy after all. */
static bool record_copy(CUdeviceptr destination, const void *source, size_t bytes,
                        const struct ms_content *content, CUstream stream, CUresult *result_out)
{
    /* Before the claim: the bytes may point to this allocation. */
    *result_out = expose_content(source, bytes, content);
    if (*result_out != CUDA_SUCCESS)
        return true;
    struct ms_allocation *allocation = claim_for_write(destination, bytes, result_out);
    if (allocation == NULL)
        return *result_out != CUDA_SUCCESS;
    const bool is_recorded = is_still_there(content), is_transient = allocation->is_transient;
    if (is_recorded) {
        const size_t begin = ms_offset(allocation, destination);
        *result_out = write_range(allocation, begin, begin + bytes, content, source, stream);
        ms_publish_event(MS_EVENT_RECORD, allocation, begin, bytes, describe(content));
        if (content->kind == MS_SOURCE && ms_shard_is_active())
            ms_shard_add_copy(content->source, content->source_offset, bytes);
    }
    ms_space_release(allocation);
    if (!is_recorded)
        return back_for_copy(destination, source, bytes, stream, result_out);
    if (!is_transient)
        ms_window_extend();
    return true;
}

static bool copy_from_host(CUdeviceptr destination, const void *source, size_t bytes,
                           CUstream stream, bool blocking, CUresult *result_out)
{
    struct ms_allocation_facts facts;
    if (bytes == 0 || source == NULL)
        return false;
    if (ms_space_look_up((CUdeviceptr)(uintptr_t)source, &facts)) {
        /* Not host memory: the driver decides whether that is allowed. */
        *result_out = ms_access((CUdeviceptr)(uintptr_t)source, bytes, MS_NEED_READ_WRITE);
        if (*result_out == CUDA_SUCCESS)
            *result_out = ms_access(destination, bytes, MS_NEED_READ_WRITE);
        return *result_out != CUDA_SUCCESS;
    }
    struct ms_content content;
    if (!ms_space_look_up(destination, &facts) ||
        !ms_is_host_memory((CUdeviceptr)(uintptr_t)source) || is_present(destination, bytes) ||
        !ms_may_record(stream) || !find_content(source, bytes, &content))
        return back_for_copy(destination, source, bytes, stream, result_out);
    const bool is_answered = record_copy(destination, source, bytes, &content, stream, result_out);
    drop_found(&content);
    /* The driver would have waited for earlier work too, and programs rely on that. */
    if (is_answered && blocking && *result_out == CUDA_SUCCESS)
        *result_out = ms_driver.stream_synchronize(stream);
    return is_answered;
}

bool ms_copy_from_host(CUdeviceptr destination, const void *source, size_t bytes, CUstream stream,
                       bool blocking, CUresult *result_out)
{
    int attempts = 0;
    bool answered;
    do
        answered = copy_from_host(destination, source, bytes, stream, blocking, result_out);
    while (answered && ms_try_bytes_again(*result_out, &attempts));
    return answered;
}
