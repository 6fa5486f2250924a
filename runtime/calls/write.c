/* SPDX-License-Identifier: Apache-2.0 */

#include "runtime/calls/write.h"

#include <string.h>

#include "runtime/calls/movement.h"
#include "runtime/calls/payload.h"
#include "runtime/calls/pointer.h"
#include "runtime/driver/flags.h"
#include "runtime/files/file.h"
#include "runtime/files/host_snapshot.h"
#include "runtime/files/trust.h"
#include "runtime/fill/access.h"
#include "runtime/fill/compare.h"
#include "runtime/fill/materialise.h"
#include "runtime/fill/replay.h"
#include "runtime/fill/reuse.h"
#include "runtime/fill/shadow.h"
#include "runtime/finding/find.h"
#include "runtime/memory/bytes.h"
#include "runtime/memory/carve.h"
#include "runtime/memory/publish.h"
#include "runtime/order/order.h"
#include "runtime/shard/shard.h"
#include "runtime/state/counters.h"
#include "runtime/state/why.h"

static CUresult gather(struct ms_allocation *allocation, size_t begin, size_t end)
{
    return ms_materialise(allocation, begin, end, MS_NEED_GATHER);
}

CUresult ms_write_bound(struct ms_allocation *allocation, size_t offset)
{
    return ms_carve_gather(allocation, offset, gather);
}

/* False during a capture, without a query of the stream: the query would end the capture. */
static bool takes_work(CUstream stream)
{
    if (ms_is_capturing())
        return false;
    const CUresult state = ms_order_stream_query(stream);
    return state == CUDA_SUCCESS || state == CUDA_ERROR_NOT_READY;
}

CUresult ms_write_prepare(struct ms_allocation *allocation, size_t begin, size_t end,
                          CUstream stream)
{
    return takes_work(stream) ? ms_materialise_for_copy(allocation, begin, end)
                              : ms_materialise(allocation, begin, end, MS_NEED_READ_WRITE);
}

/* Compares the written bytes with the program's buffer, because they came from where the shim had
 * found them. */
static void verify(struct ms_allocation *allocation, struct ms_extent *part, const void *host,
                   CUstream stream)
{
    ms_shadow_write(allocation, part, host, stream);
    ms_compare_copy(allocation, part, allocation->address + part->begin, true, stream);
    ms_shadow_trim(allocation, part->begin, part->end);
}

/*
 * Writes content to [begin, end): records it where the allocation is deferred, replays it in stream
 * order where the allocation is present. Cached bytes become resident, because queued work may
 * still read them: no later replay may overwrite them out of order. `host`: the bytes; NULL for a
 * fill.
 */
static CUresult write_range(struct ms_allocation *allocation, size_t begin, size_t end,
                            const struct ms_content *content, const unsigned char *host,
                            CUstream stream)
{
    size_t count;
    struct ms_extent *old = ms_lineage_copy(ms_allocation_lineage(allocation), begin, end, &count);
    if (old == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = CUDA_SUCCESS;
    for (size_t i = 0; i < count && result == CUDA_SUCCESS; i++) {
        const size_t from = old[i].begin, to = old[i].end;
        const unsigned char *bytes = host != NULL ? host + (from - begin) : NULL;
        struct ms_extent part = {from, to, *content};
        part.content.source_offset += from - begin;
        if (!ms_content_is_present(&old[i].content)) {
            if (ms_verifies())
                ms_shadow_write(allocation, &part, bytes, stream);
            result = ms_bytes_set(allocation, from, to, &part.content);
            continue;
        }
        result = ms_materialise(allocation, from, to, MS_NEED_READ_WRITE);
        if (result == CUDA_SUCCESS)
            result = ms_replay(&part.content, from, allocation->address + from, to - from, stream);
        if (ms_verifies() && bytes != NULL && result == CUDA_SUCCESS)
            verify(allocation, &part, bytes, stream);
    }
    ms_lineage_free_copy(old, count);
    if (result == CUDA_SUCCESS)
        ms_materialise_granules_later(allocation, begin, end);
    return result;
}

/* True if a write of [address, address + bytes) may be recorded. False if it is to be forwarded
 * (*result_out is CUDA_SUCCESS, and the range is resident) or refused. */
static bool begin_write(struct ms_allocation *allocation, CUdeviceptr address, size_t bytes,
                        CUresult *result_out)
{
    const size_t begin = ms_offset(allocation, address);
    if (!ms_fits(allocation, address, bytes)) {
        /* Outside the recorded mappings, only the driver knows what is there. */
        *result_out = allocation->is_programs ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
        return false;
    }
    *result_out = ms_write_bound(allocation, begin);
    if (*result_out != CUDA_SUCCESS)
        return false;
    ms_carve_add_use(allocation, begin, begin + bytes);
    if (ms_lineage_any(ms_allocation_lineage(allocation), begin, begin + bytes, MS_MISSING))
        return true;
    *result_out = ms_materialise(allocation, begin, begin + bytes, MS_NEED_READ_WRITE);
    return false;
}

/* Claims the allocation for a write that may be recorded. NULL: the address lies in no allocation,
 * or begin_write says no. */
static struct ms_allocation *claim_for_write(CUdeviceptr address, size_t bytes,
                                             CUresult *result_out)
{
    struct ms_allocation *allocation = ms_space_claim(address);
    *result_out = CUDA_SUCCESS;
    if (allocation == NULL || begin_write(allocation, address, bytes, result_out))
        return allocation;
    ms_space_release(allocation);
    return NULL;
}

bool ms_write_set(const struct ms_movement *movement, CUresult *result_out)
{
    const CUdeviceptr address = movement->to.begin;
    const size_t bytes = movement->width;
    const uint32_t pattern = ms_movement_pattern(movement);
    if (bytes == 0)
        return false;
    *result_out = ms_payload_expose(movement);
    if (*result_out != CUDA_SUCCESS)
        return true;
    MS_CLAIMED struct ms_allocation *allocation = claim_for_write(address, bytes, result_out);
    if (allocation == NULL)
        return *result_out != CUDA_SUCCESS;
    if (address % movement->element != 0) {
        *result_out = CUDA_ERROR_INVALID_VALUE;
        return true;
    }

    const size_t begin = ms_offset(allocation, address);
    bool is_answered = true;
    /* On another device than the current one, the driver decides about access. */
    if (ms_driver_device() == allocation->device && ms_order_may_record(movement->stream)) {
        const struct ms_content fill = {.kind = MS_FILL, .pattern = pattern};
        *result_out = write_range(allocation, begin, begin + bytes, &fill, NULL, movement->stream);
        ms_counter_add(MS_COUNT_RECORDED_FILL_BYTES, bytes);
        ms_publish_event(MS_EVENT_RECORD, allocation, begin, bytes, "a fill");
    } else {
        *result_out = ms_write_prepare(allocation, begin, begin + bytes, movement->stream);
        is_answered = *result_out != CUDA_SUCCESS;
    }
    return is_answered;
}

/* Finds the file that the bytes come from, or NULL. For a shorter copy the search costs more than a
 * snapshot, unless a plan has to know the file. */
static struct ms_file *find_file(const void *source, size_t bytes, uint64_t *offset_out)
{
    const size_t least = ms_shard_is_active() ? (size_t)4 << 10 : (size_t)64 << 10;
    struct ms_file *file = bytes >= least ? ms_find_file(source, bytes, offset_out) : NULL;
    if (file != NULL)
        ms_counter_add(MS_COUNT_RECORDED_FILE_BYTES, bytes);
    return file;
}

/* Makes a snapshot without its bytes: expose_content copies them. */
static struct ms_host_snapshot *take_snapshot(size_t bytes)
{
    struct ms_host_snapshot *snapshot = ms_host_snapshot_create(bytes, MS_SNAPSHOT_LIMITED);
    if (snapshot != NULL)
        ms_counter_add(MS_COUNT_RECORDED_SNAPSHOT_BYTES, bytes);
    else
        ms_why_fall_back(MS_REASON_SNAPSHOT_LIMIT, bytes);
    return snapshot;
}

/* Finds where the copied bytes come from: a file; zeros, as all of a model on a rank that gets its
 * tensors from another rank; or else a snapshot. Returns false if the driver must copy. */
static bool find_content(const void *source, size_t bytes, struct ms_content *content)
{
    uint64_t offset = 0;
    struct ms_source *found = ms_file_source(find_file(source, bytes, &offset));
    *content = (struct ms_content){.kind = MS_FILL};
    if (found == NULL && ms_bytes_are_zero(source, bytes)) {
        ms_counter_add(MS_COUNT_RECORDED_FILL_BYTES, bytes);
        return true;
    }
    if (found == NULL) {
        offset = 0;
        found = ms_host_snapshot_source(take_snapshot(bytes));
    }
    *content = (struct ms_content){.kind = MS_SOURCE, .source = found, .source_offset = offset};
    return found != NULL;
}

/* False if the source was closed since it was found. To be called under the claim of the allocation
 * that gets the content: whoever closes the source later will find it there. */
static bool is_still_there(const struct ms_content *content)
{
    const struct ms_file *file = ms_content_file(content);
    return file == NULL || ms_file_state(file) == MS_FILE_IS_OPEN;
}

static const char *describe(const struct ms_content *content)
{
    if (content->kind == MS_FILL)
        return "memory of zeros";
    return ms_content_file(content) != NULL ? "bytes of a file" : "bytes of memory";
}

/* Materialises the blocks that addresses in the copied bytes point to, because kernels can read
 * these bytes now. Zeros, and bytes of a file that is older than this process, hold no addresses.
 * Fills a snapshot. */
static CUresult expose_content(const void *source, size_t bytes, const struct ms_content *content)
{
    if (content->kind == MS_FILL)
        return CUDA_SUCCESS;
    const struct ms_file *file = ms_content_file(content);
    if (file != NULL && ms_trust_is_older(file))
        return CUDA_SUCCESS;
    void *to = file != NULL ? NULL : ms_host_snapshot_data(ms_source_snapshot(content->source));
    return ms_payload_copy(to, source, bytes);
}

/* Prepares the copy for the driver: backs its destination. */
static bool back_for_copy(const struct ms_movement *movement, CUresult *result_out)
{
    const CUdeviceptr destination = movement->to.begin;
    const size_t bytes = movement->width;
    *result_out = ms_payload_expose(movement);
    if (*result_out != CUDA_SUCCESS)
        return true;
    MS_CLAIMED struct ms_allocation *allocation = claim_for_write(destination, bytes, result_out);
    if (allocation == NULL)
        return *result_out != CUDA_SUCCESS;
    const size_t begin = ms_offset(allocation, destination);
    *result_out = ms_write_prepare(allocation, begin, begin + bytes, movement->stream);
    return *result_out != CUDA_SUCCESS;
}

/* True if the whole destination is present: the driver writes it, and nobody needs to know what the
 * bytes are. */
static bool is_present(CUdeviceptr address, size_t bytes)
{
    MS_CLAIMED struct ms_allocation *allocation = ms_space_claim(address);
    if (allocation == NULL)
        return false;
    const size_t begin = ms_offset(allocation, address);
    return ms_fits(allocation, address, bytes) &&
           !ms_lineage_any(ms_allocation_lineage(allocation), begin, begin + bytes, MS_MISSING);
}

/* Returns false if the driver has to copy after all. */
static bool write_content(const struct ms_movement *movement, const struct ms_content *content,
                          CUresult *result_out)
{
    const void *const source = (const void *)(uintptr_t)movement->from.begin;
    const size_t bytes = movement->width;
    MS_CLAIMED struct ms_allocation *allocation =
        claim_for_write(movement->to.begin, bytes, result_out);
    if (allocation == NULL)
        return *result_out != CUDA_SUCCESS;
    if (!is_still_there(content))
        return false;
    const size_t begin = ms_offset(allocation, movement->to.begin);
    *result_out = write_range(allocation, begin, begin + bytes, content, source, movement->stream);
    ms_state_event(&(struct ms_event){.kind = MS_EVENT_RECORD,
                                      .block = allocation->id,
                                      .address = allocation->address + begin,
                                      .bytes = bytes,
                                      .text = describe(content),
                                      .loads = content->kind != MS_FILL});
    if (content->kind == MS_SOURCE)
        ms_reuse_forget(allocation, begin, bytes);
    if (content->kind == MS_SOURCE && ms_shard_is_active())
        ms_shard_add_copy(content->source, content->source_offset, bytes);
    return true;
}

bool ms_write_from_host(const struct ms_movement *movement, CUresult *result_out)
{
    const CUdeviceptr to = movement->to.begin, from = movement->from.begin;
    const void *const source = (const void *)(uintptr_t)from;
    const size_t bytes = movement->width;
    const CUstream stream = movement->stream;
    struct ms_allocation_facts facts;
    if (bytes == 0 || source == NULL)
        return false;
    if (ms_space_look_up(from, &facts)) {
        /* The source is not host memory: the driver decides whether that is allowed. */
        const struct ms_use uses[] = {{MS_NEED_READ_WRITE, from, bytes},
                                      {MS_NEED_READ_WRITE, to, bytes}};
        *result_out = ms_access_uses(uses, 2);
        return *result_out != CUDA_SUCCESS;
    }
    struct ms_content content;
    if (!ms_space_look_up(to, &facts) || !ms_pointer_is_host(from) || is_present(to, bytes) ||
        !ms_order_may_record(stream) || !find_content(source, bytes, &content))
        return back_for_copy(movement, result_out);
    /* Before the claim: the bytes may point to this allocation. */
    *result_out = expose_content(source, bytes, &content);
    const bool is_answered = *result_out != CUDA_SUCCESS ||
                             write_content(movement, &content, result_out) ||
                             back_for_copy(movement, result_out);
    if (content.kind == MS_SOURCE)
        ms_source_drop(content.source);
    /* The driver would have waited for earlier work too, and programs rely on that. */
    if (is_answered && movement->waits && *result_out == CUDA_SUCCESS)
        *result_out = ms_order_stream_wait(stream);
    return is_answered;
}
