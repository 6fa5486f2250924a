/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/memory/allocation.h"

#include <stdatomic.h>

#include "runtime/base/heap.h"
#include "runtime/memory/addresses.h"
#include "runtime/memory/publish.h"

/* Takes over the backing. */
static struct ms_allocation *create(struct ms_backing *backing, CUcontext context, size_t bytes,
                                    enum ms_kind kind, struct ms_pool *pool, bool is_transient)
{
    static _Atomic uint64_t next_id = 1;
    const struct ms_content content = {.kind = kind};
    struct ms_allocation *allocation = ms_heap_zalloc(sizeof(*allocation));
    if (allocation == NULL)
        goto err_backing;
    if (!ms_lineage_init(&allocation->lineage, bytes))
        goto err_free;
    if (!ms_lineage_set(&allocation->lineage, 0, bytes, &content))
        goto err_lineage;
    allocation->address = backing->address;
    allocation->bytes = bytes;
    allocation->context = context;
    allocation->id = atomic_fetch_add(&next_id, 1);
    allocation->device = backing->device;
    allocation->is_transient = is_transient;
    allocation->is_programs = backing->is_programs;
    allocation->granule = backing->granule;
    allocation->granule_bytes = backing->bytes;
    allocation->backing = *backing;
    allocation->backing.is_pooled = pool != NULL;
    allocation->lineage.changed_end = bytes;
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
    ms_lineage_cleanup(&allocation->lineage);
err_free:
    ms_heap_free(allocation);
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
    ms_backing_release(&allocation->backing);
    if (allocation->shadow != NULL)
        ms_backing_release(allocation->shadow);
    if (allocation->pool != NULL)
        ms_pool_uncount(allocation->pool, pooled);
    ms_state_sample();
    ms_lineage_cleanup(&allocation->lineage);
    ms_sorted_cleanup(&allocation->blocks.all);
    ms_heap_free(allocation->shadow);
    ms_heap_free(allocation);
}

void ms_allocation_touch(struct ms_allocation *allocation)
{
    allocation->touches++;
}

uint32_t ms_allocation_touches(const struct ms_allocation *allocation)
{
    return allocation->touches;
}

void ms_allocation_keep_dead(struct ms_allocation *allocation)
{
    allocation->keeps_dead = true;
}

bool ms_allocation_keeps_dead(const struct ms_allocation *allocation)
{
    return allocation->keeps_dead;
}

/* --- its shadow */

CUdeviceptr ms_allocation_shadow(const struct ms_allocation *allocation)
{
    return allocation->shadow != NULL ? allocation->shadow->address : 0;
}

/* It has addresses. */
static bool reserve(struct ms_allocation *allocation)
{
    if (allocation->shadow != NULL)
        return true;
    struct ms_backing *shadow = ms_heap_alloc(sizeof(*shadow));
    if (shadow == NULL || ms_addresses_reserve_backing(shadow, allocation->device,
                                                       allocation->bytes) != CUDA_SUCCESS) {
        ms_heap_free(shadow);
        return false;
    }
    allocation->shadow = shadow;
    return true;
}

bool ms_allocation_cover_shadow(struct ms_allocation *allocation, size_t begin, size_t end)
{
    return reserve(allocation) && ms_backing_cover(allocation->shadow, begin, end) == CUDA_SUCCESS;
}

void ms_allocation_uncover_shadow(struct ms_allocation *allocation, size_t begin, size_t end)
{
    struct ms_backing *shadow = allocation->shadow;
    ms_backing_uncover(shadow, begin, end < allocation->bytes ? end : shadow->bytes);
}

static void forget(struct ms_content *content)
{
    content->is_shadowed = false;
}

size_t ms_allocation_give_up_shadow(struct ms_allocation *allocation)
{
    const struct ms_range all = {0, allocation->bytes};
    const size_t freed = allocation->shadow != NULL ? allocation->shadow->backed_bytes : 0;
    if (freed == 0 || !ms_lineage_change(&allocation->lineage, &all, 1, forget))
        return 0;
    ms_backing_release(allocation->shadow);
    ms_heap_free(allocation->shadow);
    allocation->shadow = NULL;
    return freed;
}
