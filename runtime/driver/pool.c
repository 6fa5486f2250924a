/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/driver/pool.h"

#include <stdatomic.h>

#include "runtime/base/heap.h"
#include "runtime/base/lock.h"

enum { USED, RESERVED, FIGURES };

static const CUmemPool_attribute current_of[FIGURES] = {CU_MEMPOOL_ATTR_USED_MEM_CURRENT,
                                                        CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT};
static const CUmemPool_attribute high_of[FIGURES] = {CU_MEMPOOL_ATTR_USED_MEM_HIGH,
                                                     CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH};

struct ms_pool {
    CUmemoryPool handle; /* immutable */
    CUdevice device;     /* immutable */

    /* guarded by pools.lock */
    struct ms_pool *next;
    bool is_plain;
    bool is_gone; /* the driver has destroyed it */
    size_t allocations;
    uint64_t used; /* bytes of allocations */
    uint64_t kept; /* freed bytes that the driver would keep for the pool */
    /* The highest sum of the driver's figure and the shim's, up to the shim's last change. That
     * change also reset the driver's own mark. */
    uint64_t high[FIGURES];
};

static struct {
    struct ms_lock lock;
    struct ms_pool *first;
    _Atomic uint64_t kept_bytes[MS_MAX_DEVICES], all_kept_bytes;
} pools = {.lock = MS_LOCK_INIT(pools)};

MS_HOLDS(pools.lock) static struct ms_pool *find_locked(CUmemoryPool handle)
{
    struct ms_pool *pool = pools.first;
    while (pool != NULL && (pool->handle != handle || pool->is_gone))
        pool = pool->next;
    return pool;
}

MS_HOLDS(pools.lock)
static struct ms_pool *add_locked(CUmemoryPool handle, CUdevice device, bool is_plain)
{
    struct ms_pool *pool = ms_heap_zalloc(sizeof(*pool));
    if (pool == NULL)
        return NULL;
    pool->handle = handle;
    pool->device = device;
    pool->is_plain = is_plain;
    pool->next = pools.first;
    pools.first = pool;
    return pool;
}

MS_HOLDS(pools.lock) static void free_if_over_locked(struct ms_pool *pool)
{
    if (!pool->is_gone || pool->allocations > 0)
        return;
    struct ms_pool **link = &pools.first;
    while (*link != pool)
        link = &(*link)->next;
    *link = pool->next;
    ms_heap_free(pool);
}

void ms_pool_add(CUmemoryPool handle, CUdevice device)
{
    ms_lock_take(&pools.lock);
    if (device >= 0 && device < MS_MAX_DEVICES)
        add_locked(handle, device, true);
    ms_lock_drop(&pools.lock);
}

struct ms_pool *ms_pool_find(CUmemoryPool handle, CUdevice device)
{
    CUmemoryPool usual;
    ms_lock_take(&pools.lock);
    struct ms_pool *pool = find_locked(handle);
    if (pool == NULL && ms_driver.device_get_default_mem_pool(&usual, device) == CUDA_SUCCESS &&
        usual == handle)
        pool = add_locked(handle, device, true);
    if (pool != NULL && (!pool->is_plain || pool->device != device))
        pool = NULL;
    ms_lock_drop(&pools.lock);
    return pool;
}

void ms_pool_set_shared(CUmemoryPool handle)
{
    ms_lock_take(&pools.lock);
    struct ms_pool *pool = find_locked(handle);
    if (pool == NULL)
        pool = add_locked(handle, -1, false); /* a default pool that was not used yet */
    if (pool != NULL)
        pool->is_plain = false;
    ms_lock_drop(&pools.lock);
}

MS_HOLDS(pools.lock) static void keep_locked(struct ms_pool *pool, uint64_t bytes)
{
    atomic_fetch_add(&pools.kept_bytes[pool->device], bytes - pool->kept);
    atomic_fetch_add(&pools.all_kept_bytes, bytes - pool->kept);
    pool->kept = bytes;
}

MS_HOLDS(pools.lock) static void end_locked(struct ms_pool *pool)
{
    if (pool->device >= 0)
        keep_locked(pool, 0);
    free_if_over_locked(pool);
}

/* Hides the pool from find_locked first: another thread may get the same handle as soon as the
 * driver has destroyed the pool. */
CUresult ms_pool_destroy(CUmemoryPool handle, CUresult (*destroy)(CUmemoryPool handle))
{
    ms_lock_take(&pools.lock);
    struct ms_pool *pool = find_locked(handle);
    if (pool != NULL)
        pool->is_gone = true;
    ms_lock_drop(&pools.lock);
    const CUresult result = destroy(handle);
    if (pool == NULL)
        return result;
    ms_lock_take(&pools.lock);
    if (result == CUDA_SUCCESS)
        end_locked(pool);
    else
        pool->is_gone = false;
    ms_lock_drop(&pools.lock);
    return result;
}

CUmemoryPool ms_pool_handle(const struct ms_pool *pool)
{
    return pool != NULL ? pool->handle : NULL;
}

/* --- figures */

static uint64_t own_figure(const struct ms_pool *pool, int figure)
{
    return pool->used + (figure == RESERVED ? pool->kept : 0);
}

static uint64_t ask(const struct ms_pool *pool, CUmemPool_attribute attribute)
{
    uint64_t value;
    return ms_driver.mem_pool_get_attribute(pool->handle, attribute, &value) == CUDA_SUCCESS ? value
                                                                                             : 0;
}

/* To be called before each change of the shim's figures. */
MS_HOLDS(pools.lock) static void note_highs_locked(struct ms_pool *pool)
{
    for (int i = 0; i < FIGURES; i++) {
        uint64_t zero = 0;
        const uint64_t high = ask(pool, high_of[i]) + own_figure(pool, i);
        if (high > pool->high[i])
            pool->high[i] = high;
        ms_driver.mem_pool_set_attribute(pool->handle, high_of[i], &zero);
    }
}

MS_HOLDS(pools.lock) static void count_locked(struct ms_pool *pool, size_t bytes)
{
    note_highs_locked(pool);
    keep_locked(pool, pool->kept > bytes ? pool->kept - bytes : 0);
    pool->used += bytes;
    pool->allocations++;
}

MS_HOLDS(pools.lock) static void uncount_locked(struct ms_pool *pool, size_t bytes)
{
    if (!pool->is_gone) {
        const uint64_t reserved =
            ask(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT) + own_figure(pool, RESERVED);
        note_highs_locked(pool);
        if (reserved <= ask(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD))
            keep_locked(pool, pool->kept + bytes);
    }
    pool->used -= bytes;
    pool->allocations--;
    free_if_over_locked(pool);
}

void ms_pool_count(struct ms_pool *pool, int64_t change)
{
    ms_lock_take(&pools.lock);
    if (change > 0)
        count_locked(pool, (size_t)change);
    else
        uncount_locked(pool, (size_t)-change);
    ms_lock_drop(&pools.lock);
}

void ms_pool_use_kept(CUmemoryPool handle, size_t bytes)
{
    CUdevice device;
    if (atomic_load_explicit(&pools.all_kept_bytes, memory_order_relaxed) == 0 ||
        ms_driver.ctx_get_device(&device) != CUDA_SUCCESS ||
        (handle == NULL && ms_driver.device_get_mem_pool(&handle, device) != CUDA_SUCCESS))
        return;
    ms_lock_take(&pools.lock);
    struct ms_pool *pool = find_locked(handle);
    if (pool != NULL && pool->kept > 0) {
        note_highs_locked(pool);
        keep_locked(pool, pool->kept > bytes ? pool->kept - bytes : 0);
    }
    ms_lock_drop(&pools.lock);
}

void ms_pool_add_figures(CUmemoryPool handle, CUmemPool_attribute attribute, uint64_t *value)
{
    ms_lock_take(&pools.lock);
    const struct ms_pool *pool = find_locked(handle);
    for (int i = 0; i < FIGURES && pool != NULL; i++) {
        if (attribute == current_of[i] || attribute == high_of[i])
            *value += own_figure(pool, i);
        if (attribute == high_of[i] && *value < pool->high[i])
            *value = pool->high[i];
    }
    ms_lock_drop(&pools.lock);
}

void ms_pool_reset_high(CUmemoryPool handle, CUmemPool_attribute attribute)
{
    ms_lock_take(&pools.lock);
    struct ms_pool *pool = find_locked(handle);
    for (int i = 0; i < FIGURES && pool != NULL; i++) {
        if (attribute == high_of[i])
            pool->high[i] = 0;
    }
    ms_lock_drop(&pools.lock);
}

size_t ms_pool_trim(CUmemoryPool handle, size_t keep)
{
    ms_lock_take(&pools.lock);
    struct ms_pool *pool = find_locked(handle);
    if (pool != NULL && pool->device >= 0) {
        const uint64_t reserved =
            ask(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT) + own_figure(pool, RESERVED);
        const uint64_t most = reserved > keep ? reserved - keep : 0;
        note_highs_locked(pool);
        keep_locked(pool, pool->kept > most ? pool->kept - most : 0);
        keep -= keep < own_figure(pool, RESERVED) ? keep : own_figure(pool, RESERVED);
    }
    ms_lock_drop(&pools.lock);
    return keep;
}

uint64_t ms_pool_kept_bytes(CUdevice device)
{
    return device >= 0 && device < MS_MAX_DEVICES ? atomic_load(&pools.kept_bytes[device]) : 0;
}
