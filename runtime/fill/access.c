/* SPDX-License-Identifier: Apache-2.0 */
/* Calls that read, or do what is not modelled: what they reach is materialised first. */
#include "runtime/fill/access.h"

#include "runtime/base/log.h"
#include "runtime/fill/evict.h"
#include "runtime/fill/materialise.h"
#include "runtime/memory/order.h"
#include "runtime/memory/publish.h"
#include "runtime/shard/active_plan.h"
#include "runtime/state/counters.h"

typedef CUresult materialiser(struct ms_allocation *allocation, size_t begin, size_t end,
                              enum ms_access access);

/* reader: the stream in which a range is read that is not written; NULL: it is written, too. */
static CUresult materialise_range(CUdeviceptr address, size_t bytes, materialiser *materialise,
                                  CUstream reader)
{
    const CUdeviceptr end = bytes <= UINT64_MAX - address ? address + bytes : UINT64_MAX;
    for (CUdeviceptr at = address; at < end;) {
        struct ms_allocation *allocation = ms_space_claim_next(at);
        if (allocation == NULL || allocation->address >= end) {
            ms_space_release(allocation);
            break;
        }
        const CUdeviceptr allocation_end = allocation->address + allocation->bytes;
        const size_t from = allocation->address > at ? 0 : ms_offset(allocation, at);
        const size_t to = allocation_end < end ? allocation->bytes : ms_offset(allocation, end);
        if (materialise != ms_materialise_live && materialise != ms_materialise_kept)
            ms_space_add_use(allocation, from, to);
        const enum ms_access access =
            reader != NULL ? ms_read_access(allocation, reader) : MS_WRITE;
        const CUresult result = materialise(allocation, from, to, access);
        ms_space_release(allocation);
        if (result != CUDA_SUCCESS)
            return result;
        at = allocation_end;
    }
    return CUDA_SUCCESS;
}

static CUresult touch(CUdeviceptr address, size_t bytes, materialiser *materialise)
{
    int attempts = 0;
    CUresult result;
    do
        result = materialise_range(address, bytes, materialise, NULL);
    while (ms_try_bytes_again(result, &attempts));
    return result;
}

CUresult ms_prepare_touch(CUdeviceptr address, size_t bytes)
{
    return touch(address, bytes, ms_materialise);
}

static CUresult overwrite(struct ms_allocation *allocation, size_t begin, size_t end,
                          __attribute__((unused)) enum ms_access access)
{
    return ms_back_for_overwrite(allocation, begin, end);
}

CUresult ms_prepare_overwrite(CUdeviceptr address, size_t bytes)
{
    return touch(address, bytes, overwrite);
}

/* Something of the range is remote. */
static bool meets_away(CUdeviceptr address, size_t bytes)
{
    bool found = false;
    const CUdeviceptr end = address + bytes;
    for (CUdeviceptr at = address; at < end && !found;) {
        struct ms_allocation *allocation = ms_space_claim_next(at);
        if (allocation != NULL && allocation->address < end) {
            const size_t from = allocation->address > at ? 0 : ms_offset(allocation, at);
            const size_t left = (size_t)(end - allocation->address);
            const size_t to = left < allocation->bytes ? left : allocation->bytes;
            ms_shard_query_placement(allocation, from, to);
            found = ms_lineage_has_remote(&allocation->lineage, from, to);
            at = allocation->address + allocation->bytes;
        } else {
            at = end;
        }
        ms_space_release(allocation);
    }
    return found;
}

CUresult ms_prepare_touch_rows(const struct ms_rows *rows)
{
    const size_t bytes =
        (rows->depth - 1) * rows->slice + (rows->height - 1) * rows->pitch + rows->width;
    if (!ms_shard_is_active() || !meets_away(rows->begin, bytes))
        return ms_prepare_touch(rows->begin, bytes);
    CUresult result = CUDA_SUCCESS;
    for (size_t z = 0; z < rows->depth; z++) {
        for (size_t y = 0; y < rows->height && result == CUDA_SUCCESS; y++)
            result = ms_prepare_touch(rows->begin + z * rows->slice + y * rows->pitch, rows->width);
    }
    return result;
}

CUresult ms_prepare_reach(CUdeviceptr address, size_t bytes)
{
    return touch(address, bytes, ms_materialise_reached);
}

CUresult ms_prepare_kept(CUdeviceptr address, size_t bytes)
{
    return touch(address, bytes, ms_materialise_kept);
}

CUresult ms_prepare_touch_live(CUdeviceptr address, size_t bytes)
{
    return touch(address, bytes, ms_materialise_live);
}

/* What can be taken away again is held for the call; not while we wait for memory ourselves. */
static CUresult hold(CUdeviceptr address, size_t bytes, materialiser *materialise, CUstream reader)
{
    int attempts = 0;
    CUresult result;
    do {
        ms_read_begin();
        result = materialise_range(address, bytes, materialise, reader);
        if (result != CUDA_SUCCESS)
            ms_read_end();
    } while (ms_try_bytes_again(result, &attempts));
    return result;
}

CUresult ms_prepare_read(CUdeviceptr address, size_t bytes, CUstream stream)
{
    return hold(address, bytes, ms_materialise, stream);
}

/* A communicator's streams are in the context that is current. */
CUresult ms_prepare_send(CUdeviceptr address, size_t bytes)
{
    return hold(address, bytes, ms_materialise_sent, CU_STREAM_LEGACY);
}

CUresult ms_prepare_send_later(CUdeviceptr address, size_t bytes)
{
    return touch(address, bytes, ms_materialise_sent);
}

CUresult ms_prepare_touch_all(void)
{
    ms_count(MS_COUNT_SEALS, 1);
    const struct ms_why why = ms_why_begin(MS_REASON_SEALED);
    const CUresult result = ms_prepare_touch_live(0, SIZE_MAX);
    ms_why_end(why);
    return result;
}

/* Who has a handle of this memory sees it for good, whatever blocks come and go there. */
static CUresult pin(struct ms_allocation *allocation, size_t begin, size_t end,
                    enum ms_access access)
{
    allocation->keeps_dead = true;
    return ms_materialise(allocation, begin, end, access);
}

CUresult ms_prepare_pin(CUdeviceptr address, size_t bytes)
{
    return touch(address, bytes, pin);
}

static CUresult export_allocation(CUdeviceptr address, bool *one_handle_out)
{
    struct ms_allocation *allocation = ms_space_claim(address);
    *one_handle_out = true;
    if (allocation == NULL)
        return CUDA_SUCCESS;
    const CUresult result = pin(allocation, 0, allocation->bytes, MS_WRITE);
    *one_handle_out = ms_backing_is_one_chunk(&allocation->backing);
    ms_publish_event(MS_EVENT_PIN, allocation, 0, allocation->bytes,
                     "an allocation that is exported");
    ms_space_release(allocation);
    return result;
}

CUresult ms_prepare_export(CUdeviceptr address, bool *one_handle_out)
{
    int attempts = 0;
    CUresult result;
    const struct ms_why why = ms_why_begin(MS_REASON_EXPORT);
    do
        result = export_allocation(address, one_handle_out);
    while (ms_try_bytes_again(result, &attempts));
    ms_why_end(why);
    return result;
}
