/* SPDX-License-Identifier: Apache-2.0 */
/* cuMemAlloc and relatives, and what an address means to the device. */
#include "tools/simcuda/driver/state.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { PITCH_UNIT = 512 };

/* A granule that small allocations of one context share. */
struct sim_slab {
    struct sim_slab *next;
    struct CUctx_st *context;
    CUdevice device;
    struct sim_physical *physical;
    CUdeviceptr address;
    struct sim_extents space;
    size_t used_bytes;
};

struct sim_table sim_memories, sim_mappings;
static struct sim_slab *slabs;

struct sim_memory *sim_memory_find_locked(CUdeviceptr address)
{
    return (struct sim_memory *)sim_table_find(&sim_memories, address);
}

struct sim_memory *sim_memory_add_locked(enum sim_kind kind, uint64_t begin, size_t bytes,
                                         struct CUctx_st *context)
{
    struct sim_memory *memory = sim_zalloc(sizeof(*memory));
    memory->region = (struct sim_region){begin, bytes};
    memory->kind = kind;
    memory->context = context == NULL ? NULL : context->memory_owner;
    memory->device = context == NULL ? 0 : context->device;
    memory->buffer_id = sim_new_id_locked();
    sim_table_add(&sim_memories, &memory->region);
    return memory;
}

/* Memory and addresses for whole granules; the caller adds the memory to the table. */
static CUresult back(CUdevice device, size_t bytes, struct sim_physical **physical_out,
                     CUdeviceptr *address_out)
{
    CUresult result = sim_physical_create_locked(device, bytes, physical_out);
    if (result != CUDA_SUCCESS)
        return result;
    result = sim_space_take_locked(bytes, SIM_GRANULE, address_out);
    if (result != CUDA_SUCCESS)
        goto err_drop;
    if (!sim_space_map_locked(*address_out, *physical_out, bytes, true)) {
        result = CUDA_ERROR_OUT_OF_MEMORY;
        goto err_give;
    }
    return CUDA_SUCCESS;

err_give:
    sim_space_give_locked(*address_out, bytes);
err_drop:
    sim_physical_drop_if_unused_locked(*physical_out);
    return result;
}

static void unback(struct sim_physical *physical, CUdeviceptr address, size_t bytes)
{
    sim_space_unmap_locked(address, bytes);
    sim_space_give_locked(address, bytes);
    physical->mappings--;
    sim_physical_drop_if_unused_locked(physical);
}

static CUresult take_small(struct CUctx_st *context, CUdevice device, size_t bytes,
                           struct sim_slab **slab_out, uint64_t *begin_out)
{
    for (struct sim_slab *slab = slabs; slab != NULL; slab = slab->next) {
        if (slab->context == context && slab->device == device &&
            sim_extents_take(&slab->space, bytes, SIM_SMALL_ALIGNMENT, begin_out)) {
            *slab_out = slab;
            return CUDA_SUCCESS;
        }
    }
    struct sim_slab *slab = sim_zalloc(sizeof(*slab));
    const CUresult result = back(device, SIM_GRANULE, &slab->physical, &slab->address);
    if (result != CUDA_SUCCESS) {
        free(slab);
        return result;
    }
    slab->context = context;
    slab->device = device;
    sim_extents_give(&slab->space, slab->address, SIM_GRANULE);
    slab->next = slabs;
    slabs = slab;
    sim_extents_take(&slab->space, bytes, SIM_SMALL_ALIGNMENT, begin_out);
    *slab_out = slab;
    return CUDA_SUCCESS;
}

static void give_small(struct sim_slab *slab, CUdeviceptr begin, size_t bytes)
{
    sim_extents_give(&slab->space, begin, bytes);
    slab->used_bytes -= bytes;
    if (slab->used_bytes > 0)
        return;
    struct sim_slab **link = &slabs;
    while (*link != slab)
        link = &(*link)->next;
    *link = slab->next;
    unback(slab->physical, slab->address, SIM_GRANULE);
    sim_extents_cleanup(&slab->space);
    free(slab);
}

CUresult sim_memory_create_locked(struct CUctx_st *context, enum sim_kind kind, CUdevice device,
                                  size_t bytes, struct sim_memory **out)
{
    const bool is_small = bytes < SIM_GRANULE;
    struct sim_slab *slab = NULL;
    struct sim_physical *physical = NULL;
    uint64_t begin;
    CUresult result;
    if (bytes > sim_config.memory_bytes)
        return CUDA_ERROR_OUT_OF_MEMORY;
    const size_t backed = sim_round_up(bytes, is_small ? SIM_SMALL_ALIGNMENT : SIM_GRANULE);
    if (is_small)
        result = take_small(context == NULL ? NULL : context->memory_owner, device, backed, &slab,
                            &begin);
    else
        result = back(device, backed, &physical, (CUdeviceptr *)&begin);
    if (result != CUDA_SUCCESS)
        return result;
    if (is_small)
        slab->used_bytes += backed;
    struct sim_memory *memory = sim_memory_add_locked(kind, begin, bytes, context);
    memory->device = device;
    memory->slab = slab;
    memory->physical = physical;
    memory->backed_bytes = backed;
    if (sim_config.poison)
        memset((void *)begin, sim_poison_byte_locked(), backed);
    *out = memory;
    return CUDA_SUCCESS;
}

CUresult sim_memory_reserve_locked(enum sim_kind kind, CUdevice device, size_t bytes,
                                   struct sim_memory **out)
{
    CUdeviceptr address;
    if (bytes > SIZE_MAX - SIM_GRANULE)
        return CUDA_ERROR_OUT_OF_MEMORY;
    const size_t backed = sim_round_up(bytes, SIM_GRANULE);
    const CUresult result = sim_space_take_locked(backed, SIM_GRANULE, &address);
    if (result != CUDA_SUCCESS)
        return result;
    *out = sim_memory_add_locked(kind, address, bytes, NULL);
    (*out)->device = device;
    (*out)->backed_bytes = backed;
    return CUDA_SUCCESS;
}

CUresult sim_memory_back_locked(struct sim_memory *memory)
{
    struct sim_physical *physical;
    const CUresult result =
        sim_physical_create_locked(memory->device, memory->backed_bytes, &physical);
    if (result != CUDA_SUCCESS)
        return result;
    if (!sim_space_map_locked(memory->region.begin, physical, memory->backed_bytes, true)) {
        sim_physical_drop_if_unused_locked(physical);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    memory->physical = physical;
    if (sim_config.poison)
        memset((void *)memory->region.begin, sim_poison_byte_locked(), memory->backed_bytes);
    return CUDA_SUCCESS;
}

void sim_memory_destroy_locked(struct sim_memory *memory)
{
    const CUdeviceptr begin = memory->region.begin;
    sim_streams_retire_range_locked(begin, memory->region.bytes, "memory was freed");
    sim_table_remove(&sim_memories, &memory->region);
    if (memory->owner != NULL)
        memory->owner->forget_locked(memory);
    if (memory->slab != NULL)
        give_small(memory->slab, begin, memory->backed_bytes);
    else if (memory->physical != NULL)
        /* Memory of another process may begin inside its granules. */
        unback(memory->physical, begin / SIM_GRANULE * SIM_GRANULE, memory->backed_bytes);
    else if (memory->kind == SIM_GRAPHED)
        sim_space_give_locked(begin, memory->backed_bytes);
    else if (memory->kind == SIM_HOST || memory->kind == SIM_MANAGED ||
             memory->kind == SIM_EXTERNAL)
        munmap((void *)begin, memory->backed_bytes);
    free(memory->advice);
    free(memory);
}

struct sim_physical *sim_memory_physical_locked(const struct sim_memory *memory,
                                                uint64_t *begin_out)
{
    const CUdeviceptr granules =
        memory->slab != NULL ? memory->slab->address : memory->region.begin;
    *begin_out = memory->region.begin - granules;
    return memory->slab != NULL ? memory->slab->physical : memory->physical;
}

static void destroy_all_locked(struct CUctx_st *context)
{
    for (size_t i = sim_memories.count; i > 0; i--) {
        struct sim_memory *memory = (struct sim_memory *)sim_memories.rows[i - 1];
        /* Pools and reservations are the device's and the process's, not the context's. */
        if (memory->context == context && memory->kind != SIM_RESERVED &&
            memory->kind != SIM_POOLED && memory->kind != SIM_GRAPHED)
            sim_memory_destroy_locked(memory);
    }
}

__attribute__((constructor)) static void add_ender(void)
{
    static struct sim_ender ender = {.end_locked = destroy_all_locked};
    sim_context_add_ender(&ender);
}

/* --- what an address means */

static bool mapping_allows(const struct sim_mapping *mapping, CUdevice device, bool write)
{
    const unsigned char wanted =
        write ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : CU_MEM_ACCESS_FLAGS_PROT_READ;
    if (device >= 0)
        return (mapping->access[device] & wanted) == wanted;
    for (int i = 0; i < sim_config.devices; i++) {
        if ((mapping->access[i] & wanted) == wanted)
            return true;
    }
    return false;
}

/* The context of the work that this thread runs, or for which it checks. */
static const struct CUctx_st *working_context(void)
{
    return sim_thread.is_worker ? sim_thread.running_context : sim_context_current();
}

static bool memory_allows(const struct sim_memory *memory, CUdevice device, bool write)
{
    const struct CUctx_st *context = working_context();
    const bool is_on_device =
        memory->kind == SIM_DEVICE || memory->kind == SIM_POOLED || memory->kind == SIM_GRAPHED;
    if (memory->kind == SIM_GRAPHED && memory->physical == NULL)
        return false;
    if (device < 0 || !is_on_device || memory->device == device)
        return true;
    if (memory->owner != NULL && memory->owner->allows_locked != NULL)
        return memory->owner->allows_locked(memory, device, write);
    return context != NULL && context->peers[memory->device];
}

bool sim_can_touch_locked(CUdevice device, CUdeviceptr address, size_t bytes, bool write)
{
    const CUdeviceptr end = address + bytes;
    if (end < address)
        return false;
    while (address < end) {
        const struct sim_memory *memory = sim_memory_find_locked(address);
        if (memory == NULL)
            return sim_config.pageable; /* memory of the process */
        const struct sim_region *region = &memory->region;
        if (!memory_allows(memory, device, write))
            return false;
        if (memory->kind == SIM_RESERVED) {
            const struct sim_mapping *mapping =
                (struct sim_mapping *)sim_table_find(&sim_mappings, address);
            if (mapping == NULL || !mapping_allows(mapping, device, write))
                return false;
            region = &mapping->region;
        }
        address = region->begin + region->bytes;
    }
    return true;
}

bool sim_device_can_touch(CUdeviceptr address, size_t bytes)
{
    pthread_mutex_lock(&sim_lock);
    const struct CUctx_st *context = working_context();
    const bool can =
        sim_can_touch_locked(context == NULL ? -1 : context->device, address, bytes, false);
    pthread_mutex_unlock(&sim_lock);
    return can;
}

/* --- entry points */

CUresult sim_memory_create(size_t bytes, CUdeviceptr *address_out)
{
    struct CUctx_st *context;
    struct sim_memory *memory;
    CUresult result = sim_context_get(&context);
    if (result != CUDA_SUCCESS)
        return result;
    pthread_mutex_lock(&sim_lock);
    result = sim_memory_create_locked(context, SIM_DEVICE, context->device, bytes, &memory);
    if (result == CUDA_SUCCESS) {
        memory->internal = true;
        *address_out = memory->region.begin;
    }
    pthread_mutex_unlock(&sim_lock);
    return result;
}

CUresult sim_memory_create_managed(size_t bytes, CUdeviceptr *address_out)
{
    struct CUctx_st *context;
    const CUresult result = sim_context_get(&context);
    if (result != CUDA_SUCCESS)
        return result;
    void *address = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (address == MAP_FAILED)
        return CUDA_ERROR_OUT_OF_MEMORY;
    pthread_mutex_lock(&sim_lock);
    struct sim_memory *memory =
        sim_memory_add_locked(SIM_MANAGED, (uint64_t)address, bytes, context);
    memory->backed_bytes = bytes;
    memory->internal = true;
    pthread_mutex_unlock(&sim_lock);
    *address_out = (CUdeviceptr)address;
    return CUDA_SUCCESS;
}

void sim_memory_release(CUdeviceptr address)
{
    pthread_mutex_lock(&sim_lock);
    struct sim_memory *memory = sim_memory_find_locked(address);
    if (memory != NULL && memory->internal && memory->region.begin == address)
        sim_memory_destroy_locked(memory);
    pthread_mutex_unlock(&sim_lock);
}

static CUresult allocate(size_t bytes, CUdeviceptr *address_out)
{
    struct CUctx_st *context;
    struct sim_memory *memory;
    CUresult result = sim_context_get(&context);
    if (result == CUDA_SUCCESS)
        result = sim_capture_refuse_unsafe();
    if (result != CUDA_SUCCESS)
        return result;
    pthread_mutex_lock(&sim_lock);
    result = sim_memory_create_locked(context, SIM_DEVICE, context->device, bytes, &memory);
    if (result == CUDA_SUCCESS) {
        sim_stats.allocate_calls++;
        *address_out = memory->region.begin;
    }
    pthread_mutex_unlock(&sim_lock);
    return result;
}

CUresult cuMemAlloc_v2(CUdeviceptr *dptr, size_t bytesize)
{
    SIM_ENTER(cuMemAlloc_v2);
    if (dptr == NULL || bytesize == 0)
        return CUDA_ERROR_INVALID_VALUE;
    return allocate(bytesize, dptr);
}

CUresult cuMemAllocPitch_v2(CUdeviceptr *dptr, size_t *pPitch, size_t WidthInBytes, size_t Height,
                            unsigned int ElementSizeBytes)
{
    SIM_ENTER(cuMemAllocPitch_v2);
    const bool is_element =
        ElementSizeBytes == 4 || ElementSizeBytes == 8 || ElementSizeBytes == 16;
    size_t bytes;
    if (dptr == NULL || pPitch == NULL || WidthInBytes == 0 || Height == 0 || !is_element ||
        WidthInBytes > SIZE_MAX - PITCH_UNIT)
        return CUDA_ERROR_INVALID_VALUE;
    const size_t pitch = sim_round_up(WidthInBytes, PITCH_UNIT);
    if (__builtin_mul_overflow(pitch, Height, &bytes))
        return CUDA_ERROR_INVALID_VALUE;
    const CUresult result = allocate(bytes, dptr);
    if (result == CUDA_SUCCESS)
        *pPitch = pitch;
    return result;
}

/* NULL: it is of none, or nowhere. */
static struct CUctx_st *context_of(CUdeviceptr address)
{
    pthread_mutex_lock(&sim_lock);
    const struct sim_memory *memory = sim_memory_find_locked(address);
    struct CUctx_st *context = memory != NULL ? memory->context : NULL;
    pthread_mutex_unlock(&sim_lock);
    return context;
}

CUresult sim_context_get_to_free(uint64_t address, struct CUctx_st **context_out)
{
    const CUresult result = sim_context_get(context_out);
    if (result == CUDA_SUCCESS || !sim_config.frees_anywhere)
        return result;
    *context_out = context_of(address);
    return CUDA_SUCCESS;
}

/* The driver waits for the device before it frees: programs rely on it. */
CUresult cuMemFree_v2(CUdeviceptr dptr)
{
    SIM_ENTER(cuMemFree_v2);
    struct CUctx_st *context = NULL;
    CUresult result = sim_context_get_to_free(dptr, &context);
    if (result != CUDA_SUCCESS || dptr == 0)
        return result;
    result = sim_capture_refuse_unsafe();
    if (result != CUDA_SUCCESS)
        return result;
    if (context != NULL)
        sim_context_drain(context);
    pthread_mutex_lock(&sim_lock);
    struct sim_memory *memory = sim_memory_find_locked(dptr);
    const bool is_ours = memory != NULL && memory->region.begin == dptr && !memory->internal &&
                         !memory->freeing &&
                         (memory->kind == SIM_DEVICE || memory->owner != NULL ||
                          memory->kind == SIM_MANAGED || memory->kind == SIM_EXTERNAL);
    result = is_ours ? sim_sticky_error() : CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS && memory->owner == NULL)
        sim_memory_destroy_locked(memory);
    else if (result == CUDA_SUCCESS && !memory->owner->free_locked(memory))
        result = CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_unlock(&sim_lock);
    return result;
}

CUresult cuMemAllocManaged(CUdeviceptr *dptr, size_t bytesize, unsigned int flags)
{
    SIM_ENTER(cuMemAllocManaged);
    struct CUctx_st *context;
    CUresult result = sim_context_get(&context);
    if (result != CUDA_SUCCESS)
        return result;
    if (dptr == NULL || bytesize == 0 || bytesize > SIZE_MAX / 2 ||
        (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST))
        return CUDA_ERROR_INVALID_VALUE;
    result = sim_capture_refuse_unsafe();
    if (result != CUDA_SUCCESS)
        return result;
    void *memory = mmap(NULL, bytesize, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED)
        return CUDA_ERROR_OUT_OF_MEMORY;
    pthread_mutex_lock(&sim_lock);
    struct sim_memory *managed =
        sim_memory_add_locked(SIM_MANAGED, (uint64_t)memory, bytesize, context);
    managed->backed_bytes = bytesize;
    managed->flags = flags;
    sim_stats.allocate_calls++;
    pthread_mutex_unlock(&sim_lock);
    *dptr = (CUdeviceptr)memory;
    return CUDA_SUCCESS;
}

CUresult cuMemGetInfo_v2(size_t *free_out, size_t *total)
{
    SIM_ENTER(cuMemGetInfo_v2);
    CUdevice device;
    const CUresult result = sim_current_device(&device);
    if (result != CUDA_SUCCESS)
        return result;
    pthread_mutex_lock(&sim_lock);
    if (free_out != NULL)
        *free_out = sim_physical_free_bytes_locked(device);
    if (total != NULL)
        *total = sim_config.memory_bytes;
    pthread_mutex_unlock(&sim_lock);
    return CUDA_SUCCESS;
}
