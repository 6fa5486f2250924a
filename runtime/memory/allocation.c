/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/memory/allocation.h"

#include <stdatomic.h>

#include "runtime/base/heap.h"
#include "runtime/base/log.h"
#include "runtime/memory/addresses.h"
#include "runtime/memory/carve.h"
#include "runtime/memory/memory_internal.h"
#include "runtime/memory/publish.h"

/* Takes over the backing. */
static struct ms_allocation *make(struct ms_backing *backing, const struct ms_promise *promise,
                                  enum ms_kind kind)
{
    static _Atomic uint64_t next_id = 1;
    const size_t bytes = promise->bytes;
    struct ms_pool *pool = promise->pool;
    const struct ms_content content = {.kind = kind};
    struct ms_inside *inside = ms_heap_zalloc(sizeof(*inside));
    struct ms_allocation *allocation = (struct ms_allocation *)inside;
    if (inside == NULL) {
        ms_backing_release(backing);
        return NULL;
    }
    *allocation = (struct ms_allocation){.address = backing->address,
                                         .bytes = bytes,
                                         .context = promise->context,
                                         .id = atomic_fetch_add(&next_id, 1),
                                         .device = backing->device,
                                         .granule = backing->granule,
                                         .granule_bytes = backing->bytes,
                                         .is_programs = backing->is_programs,
                                         .is_opened = kind == MS_RESIDENT,
                                         .is_recurring = promise->is_recurring};
    MS_OWN(allocation)->backing = *backing;
    MS_OWN(allocation)->backing.is_pooled = pool != NULL;
    if (ms_lineage_init(&MS_OWN(allocation)->lineage, bytes) &&
        ms_lineage_set(&MS_OWN(allocation)->lineage, 0, bytes, &content)) {
        MS_OWN(allocation)->lineage.changed_end = bytes;
        ms_publish_allocation(allocation);
        if (pool != NULL)
            ms_pool_count(pool, (int64_t)ms_pooled_bytes(allocation));
        allocation->pool = pool;
        if (ms_space_add(allocation))
            return allocation;
        ms_publish_freed(allocation);
    }
    ms_allocation_destroy(allocation);
    return NULL;
}

static CUresult get_backing(const struct ms_promise *promise, struct ms_backing *backing_out)
{
    if (promise->address != 0)
        return ms_backing_adopt(backing_out, promise->device, promise->address, promise->bytes);
    CUresult result = ms_addresses_reserve_backing(backing_out, promise->device, promise->bytes);
    if (result != CUDA_SUCCESS || promise->pieces == NULL)
        return result;
    struct ms_pieces kept = *promise->pieces;
    result = ms_backing_put_pieces(backing_out, 0, &kept, false);
    if (result != CUDA_SUCCESS)
        ms_backing_release(backing_out);
    return result;
}

CUresult ms_allocation_create(const struct ms_promise *promise,
                              const struct ms_allocation **allocation_out)
{
    struct ms_backing backing;
    const enum ms_kind kind = promise->pieces != NULL ? MS_RESIDENT
                              : promise->address != 0 ? MS_UNMAPPED
                                                      : MS_UNDEFINED;
    const CUresult result = get_backing(promise, &backing);
    if (result != CUDA_SUCCESS)
        return result;
    *allocation_out = make(&backing, promise, kind);
    if (*allocation_out == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    /* The end of a claim counts that nothing of the allocation is deferred. */
    if (kind == MS_RESIDENT)
        ms_space_release(ms_space_claim((*allocation_out)->address));
    return CUDA_SUCCESS;
}

const struct ms_lineage *ms_allocation_lineage(const struct ms_allocation *allocation)
{
    return &MS_OWN(allocation)->lineage;
}

const struct ms_backing *ms_allocation_backing(const struct ms_allocation *allocation)
{
    return &MS_OWN(allocation)->backing;
}

struct ms_backing *ms_allocation_memory(struct ms_allocation *allocation)
{
    return &MS_OWN(allocation)->backing;
}

void ms_allocation_destroy(struct ms_allocation *allocation)
{
    const size_t pooled = ms_pooled_bytes(allocation);
    ms_backing_release(&MS_OWN(allocation)->backing);
    if (allocation->notes.shadow != NULL)
        ms_backing_release(allocation->notes.shadow);
    if (allocation->pool != NULL)
        ms_pool_count(allocation->pool, -(int64_t)pooled);
    ms_state_sample();
    ms_lineage_cleanup(&MS_OWN(allocation)->lineage);
    ms_sorted_cleanup(&MS_OWN(allocation)->blocks.all);
    ms_trimmed_forget(allocation);
    ms_heap_free(allocation->notes.shadow);
    ms_heap_free(allocation);
}

CUresult ms_allocation_cover(struct ms_allocation *allocation, size_t begin, size_t end)
{
    const CUresult result = ms_backing_cover(&MS_OWN(allocation)->backing, begin, end);
    if (result == CUDA_ERROR_OUT_OF_MEMORY)
        ms_log(MS_INFO,
               "out of device memory while backing bytes %zu to %zu of the allocation of "
               "%zu bytes at 0x%llx",
               begin, end, allocation->bytes, allocation->address);
    if (result == CUDA_SUCCESS)
        ms_carve_note(allocation, begin, end, NULL);
    return result;
}
