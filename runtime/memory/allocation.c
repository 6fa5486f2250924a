/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/memory/allocation.h"

#include <stdatomic.h>

#include "runtime/base/heap.h"
#include "runtime/memory/addresses.h"
#include "runtime/memory/memory_internal.h"
#include "runtime/memory/publish.h"

/* Takes over the backing. */
static struct ms_allocation *create(struct ms_backing *backing, CUcontext context, size_t bytes,
                                    enum ms_kind kind, struct ms_pool *pool, bool is_transient)
{
    static _Atomic uint64_t next_id = 1;
    const struct ms_content content = {.kind = kind};
    struct ms_inside *inside = ms_heap_zalloc(sizeof(*inside));
    struct ms_allocation *allocation = (struct ms_allocation *)inside;
    if (inside == NULL)
        goto err_backing;
    if (!ms_lineage_init(&inside->lineage, bytes))
        goto err_free;
    if (!ms_lineage_set(&inside->lineage, 0, bytes, &content))
        goto err_lineage;
    *allocation = (struct ms_allocation){.address = backing->address,
                                         .bytes = bytes,
                                         .context = context,
                                         .id = atomic_fetch_add(&next_id, 1),
                                         .device = backing->device,
                                         .granule = backing->granule,
                                         .granule_bytes = backing->bytes,
                                         .is_programs = backing->is_programs,
                                         .is_transient = is_transient};
    inside->backing = *backing;
    inside->backing.is_pooled = pool != NULL;
    inside->lineage.changed_end = bytes;
    ms_publish_allocation(allocation);
    if (pool != NULL)
        ms_pool_count(pool, ms_pooled_bytes(allocation));
    allocation->pool = pool;
    if (!ms_space_add(allocation))
        goto err_noted;
    return allocation;

err_noted:
    ms_publish_freed(allocation);
    if (pool != NULL)
        ms_pool_uncount(pool, ms_pooled_bytes(allocation));
err_lineage:
    ms_lineage_cleanup(&inside->lineage);
err_free:
    ms_heap_free(inside);
err_backing:
    ms_backing_release(backing);
    return NULL;
}

struct ms_allocation *ms_allocation_reserve(CUcontext context, CUdevice device, size_t bytes,
                                            struct ms_pool *pool, bool is_transient)
{
    struct ms_backing backing;
    return ms_addresses_reserve_backing(&backing, device, bytes) == CUDA_SUCCESS
               ? create(&backing, context, bytes, MS_UNDEFINED, pool, is_transient)
               : NULL;
}

struct ms_allocation *ms_allocation_adopt(CUcontext context, CUdevice device, CUdeviceptr address,
                                          size_t bytes)
{
    struct ms_backing backing;
    return ms_backing_adopt(&backing, device, address, bytes) == CUDA_SUCCESS
               ? create(&backing, context, bytes, MS_UNMAPPED, NULL, false)
               : NULL;
}

void ms_allocation_destroy(struct ms_allocation *allocation)
{
    const size_t pooled = ms_pooled_bytes(allocation);
    ms_backing_release(&MS_OWN(allocation)->backing);
    if (MS_OWN(allocation)->shadow != NULL)
        ms_backing_release(MS_OWN(allocation)->shadow);
    if (allocation->pool != NULL)
        ms_pool_uncount(allocation->pool, pooled);
    ms_state_sample();
    ms_lineage_cleanup(&MS_OWN(allocation)->lineage);
    ms_sorted_cleanup(&MS_OWN(allocation)->blocks.all);
    ms_heap_free(MS_OWN(allocation)->shadow);
    ms_heap_free(allocation);
}

void ms_allocation_touch(struct ms_allocation *allocation)
{
    MS_OWN(allocation)->touches++;
}

uint32_t ms_allocation_touches(const struct ms_allocation *allocation)
{
    return MS_OWN(allocation)->touches;
}

void ms_allocation_keep_dead(struct ms_allocation *allocation)
{
    MS_OWN(allocation)->keeps_dead = true;
}

bool ms_allocation_keeps_dead(const struct ms_allocation *allocation)
{
    return MS_OWN(allocation)->keeps_dead;
}

void ms_allocation_set_restored(struct ms_allocation *allocation)
{
    MS_OWN(allocation)->was_resident = true;
}

bool ms_allocation_take_restored(struct ms_allocation *allocation)
{
    const bool was = MS_OWN(allocation)->was_resident;
    MS_OWN(allocation)->was_resident = false;
    return was;
}

/* --- its shadow */

CUdeviceptr ms_allocation_shadow(const struct ms_allocation *allocation)
{
    return MS_OWN(allocation)->shadow != NULL ? MS_OWN(allocation)->shadow->address : 0;
}

/* It has addresses. */
static bool reserve(struct ms_allocation *allocation)
{
    if (MS_OWN(allocation)->shadow != NULL)
        return true;
    struct ms_backing *shadow = ms_heap_alloc(sizeof(*shadow));
    if (shadow == NULL || ms_addresses_reserve_backing(shadow, allocation->device,
                                                       allocation->bytes) != CUDA_SUCCESS) {
        ms_heap_free(shadow);
        return false;
    }
    MS_OWN(allocation)->shadow = shadow;
    return true;
}

bool ms_allocation_cover_shadow(struct ms_allocation *allocation, size_t begin, size_t end)
{
    return reserve(allocation) &&
           ms_backing_cover(MS_OWN(allocation)->shadow, begin, end) == CUDA_SUCCESS;
}

void ms_allocation_uncover_shadow(struct ms_allocation *allocation, size_t begin, size_t end)
{
    struct ms_backing *shadow = MS_OWN(allocation)->shadow;
    ms_backing_uncover(shadow, begin, end < allocation->bytes ? end : shadow->bytes);
}

static void forget(struct ms_content *content)
{
    content->is_shadowed = false;
}

size_t ms_allocation_give_up_shadow(struct ms_allocation *allocation)
{
    const struct ms_range all = {0, allocation->bytes};
    const size_t freed =
        MS_OWN(allocation)->shadow != NULL ? MS_OWN(allocation)->shadow->backed_bytes : 0;
    if (freed == 0 || !ms_lineage_change(&MS_OWN(allocation)->lineage, &all, 1, forget))
        return 0;
    ms_backing_release(MS_OWN(allocation)->shadow);
    ms_heap_free(MS_OWN(allocation)->shadow);
    MS_OWN(allocation)->shadow = NULL;
    return freed;
}
