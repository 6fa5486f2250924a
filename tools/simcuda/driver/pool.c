/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stream-ordered memory. An allocation exists when the call returns; a free takes effect when the
 * stream gets there. The pool keeps freed memory up to its release threshold. Pools of host
 * memory and of managed memory give memory that the host writes too.
 */
#include "tools/simcuda/driver/state.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* A block that the pool keeps for its next allocations. */
struct kept {
    struct kept *next;
    struct sim_memory *memory;
};
struct CUmemPoolHandle_st {
    struct sim_region region; /* begin: the handle */
    CUdevice device;
    enum sim_kind kind; /* of its memory: pooled device memory, host memory, managed memory */
    CUmemLocation location;
    bool is_default;
    struct CUmemPoolHandle_st
        *current;                   /* of a default one of host or managed memory: in its place */
    bool is_shareable, is_imported; /* by a file descriptor */
    bool is_destroyed;              /* goes with its last allocation */
    uint64_t release_threshold;
    uint64_t used, used_high, reserved, reserved_high;
    int reuse[3]; /* follow event dependencies, opportunistic, internal dependencies */
    unsigned char access[SIM_DEVICES_MAX];
    struct kept *kept;
    size_t live;
};
struct free_work {
    struct sim_work work;
    CUdeviceptr address;
    uint64_t buffer_id;
};
static struct sim_table pools;
static struct CUmemPoolHandle_st *last_freed; /* the next pool gets its handle */

static CUresult find_locked(CUmemoryPool handle)
{
    const struct sim_region *row = sim_table_find(&pools, (uint64_t)handle);
    return row != NULL && row == &handle->region && !handle->is_destroyed
               ? CUDA_SUCCESS
               : CUDA_ERROR_INVALID_VALUE;
}

static struct CUmemPoolHandle_st *create_locked(CUdevice device)
{
    struct CUmemPoolHandle_st *pool = last_freed != NULL ? last_freed : sim_zalloc(sizeof(*pool));
    last_freed = NULL;
    *pool = (struct CUmemPoolHandle_st){0};
    pool->region = (struct sim_region){(uint64_t)pool, 1};
    pool->device = device;
    pool->kind = SIM_POOLED;
    pool->location = (CUmemLocation){.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device};
    pool->reuse[0] = pool->reuse[1] = pool->reuse[2] = 1;
    pool->access[device] = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    sim_table_add(&pools, &pool->region);
    return pool;
}

static struct CUmemPoolHandle_st *default_pool_locked(CUdevice device)
{
    struct sim_device *place = &sim_devices[device];
    if (place->default_pool == NULL) {
        place->default_pool = create_locked(device);
        place->default_pool->is_default = true;
    }
    return place->default_pool;
}

static struct CUmemPoolHandle_st *current_pool_locked(CUdevice device)
{
    struct sim_device *place = &sim_devices[device];
    return place->pool != NULL ? place->pool : default_pool_locked(device);
}

static bool is_of(const struct CUmemPoolHandle_st *pool, enum sim_kind kind,
                  const CUmemLocation *location)
{
    return pool->kind == kind && pool->location.type == location->type &&
           (pool->location.id == location->id || location->type == CU_MEM_LOCATION_TYPE_HOST);
}

/* The default pool of host memory, or of managed memory, at a location. */
static struct CUmemPoolHandle_st *default_pool_at_locked(enum sim_kind kind,
                                                         const CUmemLocation *location)
{
    for (size_t i = 0; i < pools.count; i++) {
        struct CUmemPoolHandle_st *pool = (struct CUmemPoolHandle_st *)pools.rows[i];
        if (pool->is_default && is_of(pool, kind, location))
            return pool;
    }
    const bool is_on_device = location->type == CU_MEM_LOCATION_TYPE_DEVICE;
    struct CUmemPoolHandle_st *pool = create_locked(is_on_device ? location->id : 0);
    pool->kind = kind;
    pool->location = *location;
    pool->is_default = true;
    return pool;
}

static void free_if_over_locked(struct CUmemPoolHandle_st *pool)
{
    if (!pool->is_destroyed || pool->live > 0)
        return;
    sim_table_remove(&pools, &pool->region);
    free(last_freed);
    last_freed = pool;
}

/* --- allocation */

/* Kept blocks are `freeing` (no call knows them) and `internal` (their use is not counted). */
static struct sim_memory *take_kept_locked(struct CUmemPoolHandle_st *pool, size_t bytes)
{
    const size_t backed =
        sim_round_up(bytes, bytes < SIM_GRANULE ? SIM_SMALL_ALIGNMENT : SIM_GRANULE);
    for (struct kept **link = &pool->kept; *link != NULL; link = &(*link)->next) {
        struct kept *kept = *link;
        struct sim_memory *memory = kept->memory;
        if (memory->backed_bytes != backed)
            continue;
        *link = kept->next;
        free(kept);
        memory->freeing = false;
        memory->internal = false;
        memory->region.bytes = bytes;
        memory->buffer_id = sim_new_id_locked();
        return memory;
    }
    return NULL;
}

static CUresult create_memory_locked(const struct CUmemPoolHandle_st *pool, size_t bytes,
                                     struct sim_memory **out);

static void add_kept_locked(struct CUmemPoolHandle_st *pool, struct sim_memory *memory)
{
    struct kept *kept = sim_zalloc(sizeof(*kept));
    kept->memory = memory;
    kept->next = pool->kept;
    pool->kept = kept;
    memory->freeing = true;
    memory->internal = true;
}

/* --- what an owner is asked */

static void forget_locked(struct sim_memory *memory)
{
    struct CUmemPoolHandle_st *pool = memory->pool;
    pool->reserved -= memory->backed_bytes;
    if (!memory->freeing || !memory->internal)
        pool->used -= memory->backed_bytes;
    pool->live--;
    free_if_over_locked(pool);
}

/* The pool may keep the memory. */
static void give_back_locked(struct sim_memory *memory)
{
    struct CUmemPoolHandle_st *pool = memory->pool;
    if (pool == NULL || pool->is_destroyed || pool->reserved > pool->release_threshold) {
        sim_memory_destroy_locked(memory);
        return;
    }
    sim_streams_retire_range_locked(memory->region.begin, memory->region.bytes, "memory was freed");
    add_kept_locked(pool, memory);
    pool->used -= memory->backed_bytes;
}

static bool free_locked(struct sim_memory *memory)
{
    give_back_locked(memory);
    return true;
}

static bool allows_locked(const struct sim_memory *memory, CUdevice device, bool write)
{
    const unsigned char wanted =
        write ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : CU_MEM_ACCESS_FLAGS_PROT_READ;
    return (memory->pool->access[device] & wanted) == wanted;
}

static const struct sim_owner owner = {forget_locked, free_locked, allows_locked};

static void count_locked(struct CUmemPoolHandle_st *pool, struct sim_memory *memory)
{
    memory->owner = &owner;
    memory->pool = pool;
    pool->live++;
    pool->reserved += memory->backed_bytes;
    if (pool->reserved > pool->reserved_high)
        pool->reserved_high = pool->reserved;
}

/*
 * None of the size: the pool maps what it keeps anew, so as many granules as are needed go, and
 * what is left of the last block stays.
 */
static void cut_kept_locked(struct CUmemPoolHandle_st *pool, size_t bytes)
{
    const size_t wanted = sim_round_up(bytes, SIM_GRANULE);
    size_t cut = 0;
    for (struct kept **link = &pool->kept; *link != NULL && cut < wanted;) {
        struct kept *kept = *link;
        if (kept->memory->region.bytes < SIM_GRANULE) {
            link = &kept->next;
            continue;
        }
        *link = kept->next;
        cut += kept->memory->backed_bytes;
        sim_memory_destroy_locked(kept->memory);
        free(kept);
    }
    struct sim_memory *rest;
    if (cut <= wanted || create_memory_locked(pool, cut - wanted, &rest) != CUDA_SUCCESS)
        return;
    count_locked(pool, rest);
    add_kept_locked(pool, rest);
}

/* All granules above `keep` that nobody uses, and small blocks whole. */
static void trim_locked(struct CUmemPoolHandle_st *pool, uint64_t keep)
{
    if (pool->reserved > keep)
        cut_kept_locked(pool, pool->reserved - keep);
    while (pool->kept != NULL && pool->reserved > keep) {
        struct kept *kept = pool->kept;
        pool->kept = kept->next;
        sim_memory_destroy_locked(kept->memory);
        free(kept);
    }
}

/* Host and managed memory does not count as the device's. */
static CUresult create_host_locked(enum sim_kind kind, size_t bytes, struct sim_memory **out)
{
    const size_t backed =
        sim_round_up(bytes, bytes < SIM_GRANULE ? SIM_SMALL_ALIGNMENT : SIM_GRANULE);
    void *address = mmap(NULL, backed, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (address == MAP_FAILED)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *out = sim_memory_add_locked(kind, (uint64_t)address, bytes, NULL);
    (*out)->backed_bytes = backed;
    return CUDA_SUCCESS;
}

static CUresult create_memory_locked(const struct CUmemPoolHandle_st *pool, size_t bytes,
                                     struct sim_memory **out)
{
    return pool->kind == SIM_POOLED
               ? sim_memory_create_locked(NULL, SIM_POOLED, pool->device, bytes, out)
               : create_host_locked(pool->kind, bytes, out);
}

static CUresult allocate_locked(struct CUmemPoolHandle_st *pool, size_t bytes,
                                CUdeviceptr *address_out)
{
    struct sim_memory *memory = take_kept_locked(pool, bytes);
    if (memory == NULL) {
        if (pool->kept != NULL && bytes >= SIM_GRANULE)
            cut_kept_locked(pool, bytes);
        CUresult result = create_memory_locked(pool, bytes, &memory);
        if (result == CUDA_ERROR_OUT_OF_MEMORY && pool->kept != NULL) {
            trim_locked(pool, 0);
            result = create_memory_locked(pool, bytes, &memory);
        }
        if (result != CUDA_SUCCESS)
            return result;
        count_locked(pool, memory);
    }
    pool->used += memory->backed_bytes;
    if (pool->used > pool->used_high)
        pool->used_high = pool->used;
    *address_out = memory->region.begin;
    return CUDA_SUCCESS;
}

/* In a graph it is a memory node, which takes from no pool: the pool says where. */
static CUresult capture_locked(struct CUstream_st *stream, const struct CUmemPoolHandle_st *pool,
                               size_t bytes, CUdeviceptr *address_out)
{
    const CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                                  .location = pool->location};
    return pool->kind != SIM_POOLED || pool->is_shareable
               ? CUDA_ERROR_NOT_SUPPORTED
               : sim_capture_allocate_locked(stream, &props, bytes, address_out);
}

static CUresult allocate(CUdeviceptr *address_out, size_t bytes, CUmemoryPool pool, CUstream handle,
                         bool per_thread)
{
    struct CUstream_st *stream;
    if (address_out == NULL || bytes == 0)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&sim_lock);
    CUresult result = sim_stream_find_locked(handle, per_thread, &stream);
    if (result == CUDA_SUCCESS && stream->is_legacy)
        result = sim_capture_refuse_legacy_locked(stream->context);
    if (result == CUDA_SUCCESS && pool != NULL)
        result = find_locked(pool);
    if (result == CUDA_SUCCESS && pool == NULL)
        pool = current_pool_locked(stream->context->device);
    if (result == CUDA_SUCCESS && pool->is_imported)
        result = CUDA_ERROR_NOT_SUPPORTED;
    if (result == CUDA_SUCCESS)
        result = stream->capture != NULL ? capture_locked(stream, pool, bytes, address_out)
                                         : allocate_locked(pool, bytes, address_out);
    sim_stats.allocate_calls += result == CUDA_SUCCESS;
    pthread_mutex_unlock(&sim_lock);
    return result;
}

SIM_TWINS(cuMemAllocAsync, _ptsz, (CUdeviceptr * dptr, size_t bytesize, CUstream hStream),
          allocate(dptr, bytesize, NULL, hStream, per_thread))

SIM_TWINS(cuMemAllocFromPoolAsync, _ptsz,
          (CUdeviceptr * dptr, size_t bytesize, CUmemoryPool pool, CUstream hStream),
          pool == NULL ? CUDA_ERROR_INVALID_VALUE
                       : allocate(dptr, bytesize, pool, hStream, per_thread))

/* --- stream-ordered free */

static void run_free(struct sim_work *work)
{
    const struct free_work *job = (struct free_work *)work;
    pthread_mutex_lock(&sim_lock);
    struct sim_memory *memory = sim_memory_find_locked(job->address);
    if (memory != NULL && memory->buffer_id == job->buffer_id && memory->freeing)
        give_back_locked(memory);
    pthread_mutex_unlock(&sim_lock);
}

static CUresult free_async(CUdeviceptr address, CUstream handle, bool per_thread)
{
    struct CUstream_st *stream;
    uint64_t buffer_id = 0;
    if (address == 0)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&sim_lock);
    CUresult result = sim_stream_find_locked(handle, per_thread, &stream);
    if (result == CUDA_SUCCESS && stream->is_legacy)
        result = sim_capture_refuse_legacy_locked(stream->context);
    const bool is_captured = result == CUDA_SUCCESS && stream->capture != NULL;
    if (is_captured) {
        result = sim_capture_free_locked(stream, address);
    } else if (result == CUDA_SUCCESS) {
        struct sim_memory *memory = sim_memory_find_locked(address);
        const bool is_ours = memory != NULL && memory->region.begin == address &&
                             !memory->freeing && !memory->internal &&
                             (memory->pool != NULL || memory->kind == SIM_DEVICE);
        if (memory != NULL && memory->region.begin == address && memory->kind == SIM_GRAPHED) {
            result =
                sim_graph_memory_free_locked(address) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
        } else if (is_ours) {
            memory->freeing = true;
            buffer_id = memory->buffer_id;
        } else {
            result = CUDA_ERROR_INVALID_VALUE;
        }
    }
    pthread_mutex_unlock(&sim_lock);
    if (result != CUDA_SUCCESS || is_captured)
        return result;
    struct free_work *job = sim_zalloc(sizeof(*job));
    job->work.run = run_free;
    job->work.name = "cuMemFreeAsync";
    job->address = address;
    job->buffer_id = buffer_id;
    return sim_stream_submit(handle, per_thread, &job->work);
}

SIM_TWINS(cuMemFreeAsync, _ptsz, (CUdeviceptr dptr, CUstream hStream),
          free_async(dptr, hStream, per_thread))

/* --- pools */

/* Locations, as cuda.h has them for cuMemGetDefaultMemPool. Managed memory may have none. */
static CUresult kind_at(const CUmemLocation *location, CUmemAllocationType type,
                        enum sim_kind *kind_out)
{
    const CUmemLocationType place = location->type;
    const bool is_host =
        place == CU_MEM_LOCATION_TYPE_HOST || place == CU_MEM_LOCATION_TYPE_HOST_NUMA;
    const bool is_managed = type == CU_MEM_ALLOCATION_TYPE_MANAGED;
    if ((!is_managed && type != CU_MEM_ALLOCATION_TYPE_PINNED) ||
        (!is_host && place != CU_MEM_LOCATION_TYPE_DEVICE &&
         !(is_managed && place == CU_MEM_LOCATION_TYPE_NONE)))
        return CUDA_ERROR_INVALID_VALUE;
    *kind_out = is_managed ? SIM_MANAGED : is_host ? SIM_HOST : SIM_POOLED;
    return place == CU_MEM_LOCATION_TYPE_DEVICE ? sim_device_check(location->id) : CUDA_SUCCESS;
}

static CUresult kind_of(const CUmemPoolProps *props, enum sim_kind *kind_out)
{
    const CUresult result = kind_at(&props->location, props->allocType, kind_out);
    const bool is_shareable = props->handleTypes != CU_MEM_HANDLE_TYPE_NONE;
    if (result == CUDA_SUCCESS && is_shareable &&
        (props->handleTypes != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || *kind_out != SIM_POOLED))
        return CUDA_ERROR_NOT_SUPPORTED;
    return result;
}

CUresult cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *poolProps)
{
    SIM_ENTER(cuMemPoolCreate);
    enum sim_kind kind;
    if (pool == NULL || poolProps == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    const CUresult result = kind_of(poolProps, &kind);
    const bool is_on_device = poolProps->location.type == CU_MEM_LOCATION_TYPE_DEVICE;
    if (result != CUDA_SUCCESS)
        return result;
    pthread_mutex_lock(&sim_lock);
    *pool = create_locked(is_on_device ? poolProps->location.id : 0);
    (*pool)->kind = kind;
    (*pool)->location = poolProps->location;
    (*pool)->is_shareable = poolProps->handleTypes != CU_MEM_HANDLE_TYPE_NONE;
    pthread_mutex_unlock(&sim_lock);
    return CUDA_SUCCESS;
}

static void forget_current_locked(const struct CUmemPoolHandle_st *pool)
{
    if (sim_devices[pool->device].pool == pool)
        sim_devices[pool->device].pool = NULL;
    for (size_t i = 0; i < pools.count; i++) {
        struct CUmemPoolHandle_st *each = (struct CUmemPoolHandle_st *)pools.rows[i];
        if (each->current == pool)
            each->current = NULL;
    }
}

CUresult cuMemPoolDestroy(CUmemoryPool pool)
{
    SIM_ENTER(cuMemPoolDestroy);
    pthread_mutex_lock(&sim_lock);
    CUresult result = find_locked(pool);
    if (result == CUDA_SUCCESS && pool->is_default)
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS) {
        forget_current_locked(pool);
        trim_locked(pool, 0);
        pool->is_destroyed = true;
        free_if_over_locked(pool);
    }
    pthread_mutex_unlock(&sim_lock);
    return result;
}

CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t minBytesToKeep)
{
    SIM_ENTER(cuMemPoolTrimTo);
    pthread_mutex_lock(&sim_lock);
    const CUresult result = find_locked(pool);
    if (result == CUDA_SUCCESS)
        trim_locked(pool, minBytesToKeep);
    pthread_mutex_unlock(&sim_lock);
    return result;
}

/* Where an attribute lives: an int, or a 64-bit number. */
static int *int_attribute(struct CUmemPoolHandle_st *pool, CUmemPool_attribute attribute)
{
    switch ((int)attribute) {
    case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
        return &pool->reuse[0];
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
        return &pool->reuse[1];
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
        return &pool->reuse[2];
    default:
        return NULL;
    }
}

static uint64_t *long_attribute(struct CUmemPoolHandle_st *pool, CUmemPool_attribute attribute)
{
    switch ((int)attribute) {
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
        return &pool->release_threshold;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT:
        return &pool->reserved;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
        return &pool->reserved_high;
    case CU_MEMPOOL_ATTR_USED_MEM_CURRENT:
        return &pool->used;
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
        return &pool->used_high;
    default:
        return NULL;
    }
}

CUresult cuMemPoolGetAttribute(CUmemoryPool pool, CUmemPool_attribute attr, void *value)
{
    SIM_ENTER(cuMemPoolGetAttribute);
    if (value == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&sim_lock);
    CUresult result = find_locked(pool);
    if (result == CUDA_SUCCESS && int_attribute(pool, attr) != NULL)
        memcpy(value, int_attribute(pool, attr), sizeof(int));
    else if (result == CUDA_SUCCESS && long_attribute(pool, attr) != NULL)
        memcpy(value, long_attribute(pool, attr), sizeof(uint64_t));
    else
        result = CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_unlock(&sim_lock);
    return result;
}

/* High marks may only be set back to 0, which means to the present value. */
static CUresult set_long_locked(struct CUmemPoolHandle_st *pool, CUmemPool_attribute attribute,
                                uint64_t value)
{
    switch ((int)attribute) {
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
        pool->release_threshold = value;
        return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
        pool->reserved_high = pool->reserved;
        return value == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
        pool->used_high = pool->used;
        return value == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
}

CUresult cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute attr, void *value)
{
    SIM_ENTER(cuMemPoolSetAttribute);
    if (value == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&sim_lock);
    CUresult result = find_locked(pool);
    if (result == CUDA_SUCCESS && int_attribute(pool, attr) != NULL)
        memcpy(int_attribute(pool, attr), value, sizeof(int));
    else if (result == CUDA_SUCCESS)
        result = set_long_locked(pool, attr, *(const uint64_t *)value);
    pthread_mutex_unlock(&sim_lock);
    return result;
}

CUresult cuMemPoolSetAccess(CUmemoryPool pool, const CUmemAccessDesc *map, size_t count)
{
    SIM_ENTER(cuMemPoolSetAccess);
    if (map == NULL || count == 0)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&sim_lock);
    CUresult result = find_locked(pool);
    for (size_t i = 0; result == CUDA_SUCCESS && i < count; i++) {
        if (map[i].location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
            sim_device_check(map[i].location.id) != CUDA_SUCCESS)
            result = CUDA_ERROR_INVALID_DEVICE;
        else if (map[i].location.id == pool->device &&
                 map[i].flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
            result = CUDA_ERROR_INVALID_VALUE;
    }
    for (size_t i = 0; result == CUDA_SUCCESS && i < count; i++)
        pool->access[map[i].location.id] = (unsigned char)map[i].flags;
    pthread_mutex_unlock(&sim_lock);
    return result;
}

CUresult cuMemPoolGetAccess(CUmemAccess_flags *flags, CUmemoryPool memPool, CUmemLocation *location)
{
    SIM_ENTER(cuMemPoolGetAccess);
    if (flags == NULL || location == NULL || location->type != CU_MEM_LOCATION_TYPE_DEVICE ||
        sim_device_check(location->id) != CUDA_SUCCESS)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&sim_lock);
    const CUresult result = find_locked(memPool);
    if (result == CUDA_SUCCESS)
        *flags = (CUmemAccess_flags)memPool->access[location->id];
    pthread_mutex_unlock(&sim_lock);
    return result;
}

/* --- the pools of a device */

static CUresult get_pool(CUmemoryPool *pool_out, CUdevice device, bool is_default)
{
    if (pool_out == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    const CUresult result = sim_device_check(device);
    if (result != CUDA_SUCCESS)
        return result;
    pthread_mutex_lock(&sim_lock);
    *pool_out = is_default ? default_pool_locked(device) : current_pool_locked(device);
    pthread_mutex_unlock(&sim_lock);
    return CUDA_SUCCESS;
}

static CUresult set_pool(CUdevice device, CUmemoryPool pool)
{
    CUresult result = sim_device_check(device);
    if (result != CUDA_SUCCESS)
        return result;
    pthread_mutex_lock(&sim_lock);
    result = find_locked(pool);
    if (result == CUDA_SUCCESS &&
        (pool->device != device || pool->location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
         pool->is_imported))
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        sim_devices[device].pool = pool;
    pthread_mutex_unlock(&sim_lock);
    return result;
}

CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *pool_out, CUdevice dev)
{
    SIM_ENTER(cuDeviceGetDefaultMemPool);
    return get_pool(pool_out, dev, true);
}

CUresult cuDeviceGetMemPool(CUmemoryPool *pool, CUdevice dev)
{
    SIM_ENTER(cuDeviceGetMemPool);
    return get_pool(pool, dev, false);
}

CUresult cuDeviceSetMemPool(CUdevice dev, CUmemoryPool pool)
{
    SIM_ENTER(cuDeviceSetMemPool);
    return set_pool(dev, pool);
}

/* The pool of a device's own memory, or of host or managed memory, whose default pool knows the
 * current one. */
static CUresult get_pool_at(CUmemoryPool *pool_out, const CUmemLocation *location,
                            CUmemAllocationType type, bool is_default)
{
    enum sim_kind kind;
    if (pool_out == NULL || location == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    const CUresult result = kind_at(location, type, &kind);
    if (result != CUDA_SUCCESS || kind == SIM_POOLED)
        return result != CUDA_SUCCESS ? result : get_pool(pool_out, location->id, is_default);
    pthread_mutex_lock(&sim_lock);
    struct CUmemPoolHandle_st *pool = default_pool_at_locked(kind, location);
    *pool_out = is_default || pool->current == NULL ? pool : pool->current;
    pthread_mutex_unlock(&sim_lock);
    return CUDA_SUCCESS;
}

CUresult cuMemGetDefaultMemPool(CUmemoryPool *pool_out, CUmemLocation *location,
                                CUmemAllocationType type)
{
    SIM_ENTER(cuMemGetDefaultMemPool);
    return get_pool_at(pool_out, location, type, true);
}

CUresult cuMemGetMemPool(CUmemoryPool *pool, CUmemLocation *location, CUmemAllocationType type)
{
    SIM_ENTER(cuMemGetMemPool);
    return get_pool_at(pool, location, type, false);
}

CUresult cuMemSetMemPool(CUmemLocation *location, CUmemAllocationType type, CUmemoryPool pool)
{
    SIM_ENTER(cuMemSetMemPool);
    enum sim_kind kind;
    if (location == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = kind_at(location, type, &kind);
    if (result != CUDA_SUCCESS || kind == SIM_POOLED)
        return result != CUDA_SUCCESS ? result : set_pool(location->id, pool);
    pthread_mutex_lock(&sim_lock);
    result = find_locked(pool);
    if (result == CUDA_SUCCESS && !is_of(pool, kind, location))
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        default_pool_at_locked(kind, location)->current = pool;
    pthread_mutex_unlock(&sim_lock);
    return result;
}

/* --- pools of several processes: a file with the pool's device; pointers as in ipc.c */

struct pool_file {
    uint64_t magic;
    int32_t device;
};
#define POOL_MAGIC 0x53494d504f4f4c31ull

CUresult cuMemPoolExportToShareableHandle(void *handle_out, CUmemoryPool pool,
                                          CUmemAllocationHandleType handleType,
                                          unsigned long long flags)
{
    SIM_ENTER(cuMemPoolExportToShareableHandle);
    if (handle_out == NULL || handleType != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || flags != 0)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&sim_lock);
    CUresult result = find_locked(pool);
    if (result == CUDA_SUCCESS && !pool->is_shareable)
        result = CUDA_ERROR_INVALID_VALUE;
    const struct pool_file content = {POOL_MAGIC, result == CUDA_SUCCESS ? pool->device : 0};
    pthread_mutex_unlock(&sim_lock);
    if (result != CUDA_SUCCESS)
        return result;
    const int file = memfd_create("simcuda-pool", MFD_CLOEXEC);
    if (file < 0 || pwrite(file, &content, sizeof(content), 0) != sizeof(content))
        return CUDA_ERROR_OPERATING_SYSTEM;
    *(int *)handle_out = file;
    return CUDA_SUCCESS;
}

CUresult cuMemPoolImportFromShareableHandle(CUmemoryPool *pool_out, void *handle,
                                            CUmemAllocationHandleType handleType,
                                            unsigned long long flags)
{
    SIM_ENTER(cuMemPoolImportFromShareableHandle);
    struct pool_file content = {0};
    if (pool_out == NULL || handleType != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || flags != 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (pread((int)(intptr_t)handle, &content, sizeof(content), 0) != sizeof(content) ||
        content.magic != POOL_MAGIC || sim_device_check(content.device) != CUDA_SUCCESS)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&sim_lock);
    *pool_out = create_locked(content.device);
    (*pool_out)->is_imported = true;
    pthread_mutex_unlock(&sim_lock);
    return CUDA_SUCCESS;
}

CUresult cuMemPoolExportPointer(CUmemPoolPtrExportData *data_out, CUdeviceptr ptr)
{
    SIM_ENTER(cuMemPoolExportPointer);
    if (data_out == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&sim_lock);
    const struct sim_memory *memory = sim_memory_find_locked(ptr);
    const bool is_ours = memory != NULL && memory->region.begin == ptr && !memory->freeing &&
                         memory->pool != NULL && memory->pool->is_shareable;
    if (is_ours)
        sim_ipc_describe_locked(memory, data_out);
    pthread_mutex_unlock(&sim_lock);
    return is_ours ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemPoolImportPointer(CUdeviceptr *ptr_out, CUmemoryPool pool,
                                CUmemPoolPtrExportData *data)
{
    SIM_ENTER(cuMemPoolImportPointer);
    struct sim_memory *memory;
    if (ptr_out == NULL || data == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&sim_lock);
    CUresult result = find_locked(pool);
    if (result == CUDA_SUCCESS && !pool->is_imported)
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        result = sim_ipc_map_locked(data, SIM_POOLED, NULL, &memory);
    if (result == CUDA_SUCCESS) {
        count_locked(pool, memory);
        pool->used += memory->backed_bytes;
        *ptr_out = memory->region.begin;
    }
    pthread_mutex_unlock(&sim_lock);
    return result;
}
