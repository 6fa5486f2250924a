/* SPDX-License-Identifier: Apache-2.0 */
/* Virtual memory management: reservations, physical handles, mappings, access. */
#include "tools/simcuda/driver/state.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define HOST_PAGE ((size_t)4096)
#define PHYSICAL_MAX ((size_t)1 << 41)

static struct sim_physical *find_handle_locked(CUmemGenericAllocationHandle handle)
{
    return (struct sim_physical *)sim_table_find(&sim_handles, handle);
}

static void add_handle_locked(struct sim_physical *physical)
{
    /* Numbers that look like no pointer, so that mixing them up fails at once. */
    physical->region = (struct sim_region){0x5143000000000000ull + sim_new_id_locked(), 1};
    physical->users = 1;
    sim_table_add(&sim_handles, &physical->region);
}

static void drop_user_locked(struct sim_physical *physical)
{
    if (--physical->users == 0)
        sim_table_remove(&sim_handles, &physical->region);
    sim_physical_drop_if_unused_locked(physical);
}

static bool is_multiple(uint64_t value, size_t unit)
{
    return value % unit == 0;
}

/* The granule of memory, which a broken driver doubles for memory that can be exported. */
static size_t granule_of(const CUmemAllocationProp *prop, enum sim_broken broken)
{
    return prop->requestedHandleTypes != 0 && sim_is_broken(broken) ? 2 * SIM_GRANULE : SIM_GRANULE;
}

/* --- reservations */

CUresult cuMemAddressReserve(CUdeviceptr *ptr, size_t size, size_t alignment, CUdeviceptr addr,
                             unsigned long long flags)
{
    SIM_ENTER(cuMemAddressReserve);
    if (ptr == NULL || size == 0 || !is_multiple(size, HOST_PAGE) || flags != 0 ||
        (alignment & (alignment - 1)) != 0)
        return CUDA_ERROR_INVALID_VALUE;
    const size_t aligned = alignment < SIM_GRANULE ? SIM_GRANULE : alignment;
    pthread_mutex_lock(&sim_lock);
    const CUresult result = sim_space_reserve_locked(size, aligned, addr, ptr);
    if (result == CUDA_SUCCESS)
        sim_memory_add_locked(SIM_RESERVED, *ptr, size, NULL);
    pthread_mutex_unlock(&sim_lock);
    return result;
}

CUresult cuMemAddressFree(CUdeviceptr ptr, size_t size)
{
    SIM_ENTER(cuMemAddressFree);
    pthread_mutex_lock(&sim_lock);
    struct sim_memory *memory = sim_memory_find_locked(ptr);
    const bool is_free = memory != NULL && memory->kind == SIM_RESERVED &&
                         memory->region.begin == ptr && memory->region.bytes == size &&
                         !sim_table_overlaps(&sim_mappings, ptr, size);
    if (is_free) {
        sim_memory_destroy_locked(memory);
        sim_space_unreserve_locked(ptr, size);
    }
    pthread_mutex_unlock(&sim_lock);
    return is_free ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* --- physical memory */

static CUresult check_prop(const CUmemAllocationProp *prop)
{
    if (prop == NULL || prop->type != CU_MEM_ALLOCATION_TYPE_PINNED ||
        prop->location.type == CU_MEM_LOCATION_TYPE_INVALID || prop->win32HandleMetaData != NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (prop->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
        return CUDA_ERROR_NOT_SUPPORTED;
    if ((prop->requestedHandleTypes & ~CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) != 0 ||
        prop->allocFlags.compressionType != CU_MEM_ALLOCATION_COMP_NONE)
        return CUDA_ERROR_NOT_SUPPORTED;
    if (prop->allocFlags.gpuDirectRDMACapable > 1 || prop->allocFlags.usage != 0)
        return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS;
}

CUresult cuMemGetAllocationGranularity(size_t *granularity, const CUmemAllocationProp *prop,
                                       CUmemAllocationGranularity_flags option)
{
    SIM_ENTER(cuMemGetAllocationGranularity);
    if (granularity == NULL || (option != CU_MEM_ALLOC_GRANULARITY_MINIMUM &&
                                option != CU_MEM_ALLOC_GRANULARITY_RECOMMENDED))
        return CUDA_ERROR_INVALID_VALUE;
    const CUresult result = check_prop(prop);
    if (result == CUDA_SUCCESS)
        *granularity = granule_of(prop, SIM_BROKEN_GRANULARITY);
    return result;
}

static void poison_locked(struct sim_physical *physical)
{
    CUdeviceptr address;
    if (sim_space_take_locked(physical->bytes, SIM_GRANULE, &address) != CUDA_SUCCESS)
        return;
    if (sim_space_map_locked(address, physical, physical->bytes, true)) {
        memset((void *)address, sim_poison_byte_locked(), physical->bytes);
        sim_space_unmap_locked(address, physical->bytes);
        physical->mappings--;
    }
    sim_space_give_locked(address, physical->bytes);
}

CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size,
                     const CUmemAllocationProp *prop, unsigned long long flags)
{
    SIM_ENTER(cuMemCreate);
    struct sim_physical *physical;
    if (handle == NULL || size == 0 || !is_multiple(size, SIM_GRANULE) || flags != 0)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = check_prop(prop);
    if (result == CUDA_SUCCESS &&
        (prop->location.id < 0 || prop->location.id >= sim_config.devices))
        result = CUDA_ERROR_INVALID_DEVICE;
    if (result == CUDA_SUCCESS && (!is_multiple(size, granule_of(prop, SIM_BROKEN_MEMORY)) ||
                                   !is_multiple(size, granule_of(prop, SIM_BROKEN_GRANULARITY))))
        result = CUDA_ERROR_INVALID_VALUE;
    if (result != CUDA_SUCCESS)
        return result;
    pthread_mutex_lock(&sim_lock);
    result = size > PHYSICAL_MAX ? CUDA_ERROR_OUT_OF_MEMORY
                                 : sim_physical_create_locked(prop->location.id, size, &physical);
    if (result == CUDA_SUCCESS) {
        add_handle_locked(physical);
        physical->prop = *prop;
        sim_stats.create_calls++;
        if (sim_config.poison)
            poison_locked(physical);
        *handle = physical->region.begin;
    }
    pthread_mutex_unlock(&sim_lock);
    return result;
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle)
{
    SIM_ENTER(cuMemRelease);
    pthread_mutex_lock(&sim_lock);
    struct sim_physical *physical = find_handle_locked(handle);
    if (physical != NULL)
        drop_user_locked(physical);
    const bool is_released = physical != NULL || sim_multicast_release_locked(handle);
    pthread_mutex_unlock(&sim_lock);
    return is_released ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *addr)
{
    SIM_ENTER(cuMemRetainAllocationHandle);
    if (handle == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&sim_lock);
    const struct sim_mapping *mapping =
        (struct sim_mapping *)sim_table_find(&sim_mappings, (uint64_t)addr);
    if (mapping != NULL) {
        struct sim_physical *physical = mapping->physical;
        /* The handle value outlives its last release while the memory is mapped. */
        if (physical->users++ == 0)
            sim_table_add(&sim_handles, &physical->region);
        *handle = physical->region.begin;
    }
    pthread_mutex_unlock(&sim_lock);
    return mapping != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *prop,
                                                CUmemGenericAllocationHandle handle)
{
    SIM_ENTER(cuMemGetAllocationPropertiesFromHandle);
    if (prop == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&sim_lock);
    const struct sim_physical *physical = find_handle_locked(handle);
    if (physical != NULL)
        *prop = physical->prop;
    pthread_mutex_unlock(&sim_lock);
    return physical != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* --- mappings */

size_t sim_bytes_of_one_handle(CUdeviceptr address, size_t bytes)
{
    pthread_mutex_lock(&sim_lock);
    const struct sim_region *row = sim_table_find(&sim_mappings, address);
    const size_t left = row == NULL ? bytes : row->begin + row->bytes - address;
    pthread_mutex_unlock(&sim_lock);
    return left < bytes ? left : bytes;
}

CUresult cuMemMap(CUdeviceptr ptr, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
                  unsigned long long flags)
{
    SIM_ENTER(cuMemMap);
    if (ptr == 0 || size == 0 || flags != 0)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = CUDA_SUCCESS;
    pthread_mutex_lock(&sim_lock);
    struct sim_physical *physical = find_handle_locked(handle);
    const struct sim_memory *memory = sim_memory_find_locked(ptr);
    const bool is_inside = memory != NULL && memory->kind == SIM_RESERVED &&
                           size <= memory->region.bytes - (ptr - memory->region.begin);
    if (sim_multicast_is_one_locked(handle) ||
        (physical != NULL && (offset != 0 || size != physical->bytes))) {
        /* Memory is mapped by whole handles. */
        result = CUDA_ERROR_NOT_SUPPORTED;
    } else if (physical == NULL || !is_multiple(ptr, SIM_GRANULE) || !is_inside ||
               sim_table_overlaps(&sim_mappings, ptr, size)) {
        result = CUDA_ERROR_INVALID_VALUE;
    } else if (!sim_space_map_locked(ptr, physical, size, false)) {
        result = CUDA_ERROR_OUT_OF_MEMORY;
    } else {
        struct sim_mapping *mapping = sim_zalloc(sizeof(*mapping));
        mapping->region = (struct sim_region){ptr, size};
        mapping->physical = physical;
        mapping->buffer_id = sim_new_id_locked();
        sim_table_add(&sim_mappings, &mapping->region);
        sim_stats.map_calls++;
    }
    pthread_mutex_unlock(&sim_lock);
    return result;
}

/* Is the range made of whole mappings, with no hole? */
static bool is_whole_mappings(CUdeviceptr ptr, size_t size)
{
    const CUdeviceptr end = ptr + size;
    if (end < ptr)
        return false;
    while (ptr < end) {
        const struct sim_region *row = sim_table_find(&sim_mappings, ptr);
        if (row == NULL || row->begin != ptr)
            return false;
        ptr = row->begin + row->bytes;
    }
    return ptr == end;
}

/* The first mapping that ends behind the address and begins before the end; NULL: none. */
static struct sim_mapping *next_mapping(CUdeviceptr at, CUdeviceptr end)
{
    struct sim_region *row = sim_table_at_or_after(&sim_mappings, at);
    return row != NULL && row->begin < end ? (struct sim_mapping *)row : NULL;
}

/* May the range be unmapped? It is of one reservation or several, and cuts no mapping; there may be
 * holes in it. */
static bool cuts_nothing(CUdeviceptr ptr, size_t size)
{
    const CUdeviceptr end = ptr + size;
    for (CUdeviceptr at = ptr; at < end;) {
        const struct sim_memory *memory = sim_memory_find_locked(at);
        if (memory == NULL || memory->kind != SIM_RESERVED)
            return false;
        at = memory->region.begin + memory->region.bytes;
    }
    const struct sim_region *first = sim_table_find(&sim_mappings, ptr);
    const struct sim_region *last = sim_table_find(&sim_mappings, end - 1);
    return end > ptr && (first == NULL || first->begin == ptr) &&
           (last == NULL || last->begin + last->bytes == end);
}

static void unmap_locked(struct sim_mapping *mapping)
{
    sim_table_remove(&sim_mappings, &mapping->region);
    if (sim_is_broken(SIM_BROKEN_REMAP))
        sim_space_keep_stale_locked(mapping->region.begin, mapping->physical);
    sim_space_unmap_locked(mapping->region.begin, mapping->region.bytes);
    mapping->physical->mappings--;
    sim_physical_drop_if_unused_locked(mapping->physical);
    free(mapping);
}

CUresult cuMemUnmap(CUdeviceptr ptr, size_t size)
{
    SIM_ENTER(cuMemUnmap);
    if (ptr == 0 || size == 0)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = CUDA_SUCCESS;
    pthread_mutex_lock(&sim_lock);
    if (cuts_nothing(ptr, size)) {
        sim_streams_retire_range_locked(ptr, size, "memory was unmapped");
        /* The lock was open while work ran out: look again. */
        if (!cuts_nothing(ptr, size))
            result = CUDA_ERROR_INVALID_VALUE;
        struct sim_mapping *mapping;
        while (result == CUDA_SUCCESS && (mapping = next_mapping(ptr, ptr + size)) != NULL)
            unmap_locked(mapping);
    } else {
        result = CUDA_ERROR_INVALID_VALUE;
    }
    pthread_mutex_unlock(&sim_lock);
    return result;
}

/* As on machines where the host reaches the device's memory; here it always does. */
static bool is_of_host(const CUmemAccessDesc *desc)
{
    return desc->location.type == CU_MEM_LOCATION_TYPE_HOST;
}

static CUresult check_access(const CUmemAccessDesc *desc, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        const CUmemAccess_flags flags = desc[i].flags;
        if (desc[i].location.type == CU_MEM_LOCATION_TYPE_INVALID)
            return CUDA_ERROR_INVALID_VALUE;
        if (desc[i].location.type != CU_MEM_LOCATION_TYPE_DEVICE && !is_of_host(&desc[i]))
            return CUDA_ERROR_NOT_SUPPORTED;
        if (!is_of_host(&desc[i]) &&
            (desc[i].location.id < 0 || desc[i].location.id >= sim_config.devices))
            return CUDA_ERROR_INVALID_VALUE;
        if (flags != CU_MEM_ACCESS_FLAGS_PROT_NONE && flags != CU_MEM_ACCESS_FLAGS_PROT_READ &&
            flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
            return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
}

static void set_access_locked(struct sim_mapping *mapping, const CUmemAccessDesc *desc,
                              size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (!is_of_host(&desc[i]))
            mapping->access[desc[i].location.id] = (unsigned char)desc[i].flags;
    }
    bool is_accessible = false;
    for (int i = 0; i < sim_config.devices; i++)
        is_accessible |= mapping->access[i] != CU_MEM_ACCESS_FLAGS_PROT_NONE;
    /* One work item may run on while its access is taken; retiring the range waits for it. */
    if (!is_accessible)
        sim_streams_retire_range_locked(mapping->region.begin, mapping->region.bytes,
                                        "access to memory was taken");
    sim_space_set_access_locked(mapping->region.begin, mapping->region.bytes, is_accessible);
}

CUresult cuMemSetAccess(CUdeviceptr ptr, size_t size, const CUmemAccessDesc *desc, size_t count)
{
    SIM_ENTER(cuMemSetAccess);
    if (ptr == 0 || size == 0 || desc == NULL || count == 0)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = check_access(desc, count);
    if (result != CUDA_SUCCESS)
        return result;
    pthread_mutex_lock(&sim_lock);
    if (!is_whole_mappings(ptr, size))
        result = CUDA_ERROR_INVALID_VALUE;
    for (CUdeviceptr at = ptr; result == CUDA_SUCCESS && at < ptr + size;) {
        struct sim_mapping *mapping = (struct sim_mapping *)sim_table_find(&sim_mappings, at);
        if (mapping == NULL) {
            result = CUDA_ERROR_INVALID_VALUE;
            break;
        }
        at += mapping->region.bytes;
        set_access_locked(mapping, desc, count);
    }
    pthread_mutex_unlock(&sim_lock);
    return result;
}

CUresult cuMemGetAccess(unsigned long long *flags, const CUmemLocation *location, CUdeviceptr ptr)
{
    SIM_ENTER(cuMemGetAccess);
    if (flags == NULL || location == NULL || location->type != CU_MEM_LOCATION_TYPE_DEVICE)
        return CUDA_ERROR_INVALID_VALUE;
    if (location->id < 0 || location->id >= sim_config.devices)
        return CUDA_ERROR_INVALID_DEVICE;
    pthread_mutex_lock(&sim_lock);
    const struct sim_mapping *mapping = (struct sim_mapping *)sim_table_find(&sim_mappings, ptr);
    if (mapping != NULL)
        *flags = mapping->access[location->id];
    pthread_mutex_unlock(&sim_lock);
    return mapping != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* --- export */

CUresult cuMemExportToShareableHandle(void *shareableHandle, CUmemGenericAllocationHandle handle,
                                      CUmemAllocationHandleType handleType,
                                      unsigned long long flags)
{
    SIM_ENTER(cuMemExportToShareableHandle);
    if (shareableHandle == NULL || flags != 0 ||
        handleType != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&sim_lock);
    struct sim_physical *physical = find_handle_locked(handle);
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    if (physical != NULL && (physical->prop.requestedHandleTypes & handleType) != 0) {
        const int file = sim_physical_open_locked(physical);
        result = file < 0 ? CUDA_ERROR_OPERATING_SYSTEM : CUDA_SUCCESS;
        if (file >= 0)
            *(int *)shareableHandle = file;
    }
    pthread_mutex_unlock(&sim_lock);
    return result;
}

CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *osHandle,
                                        CUmemAllocationHandleType shHandleType)
{
    SIM_ENTER(cuMemImportFromShareableHandle);
    if (handle == NULL || shHandleType != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&sim_lock);
    struct sim_physical *physical = sim_physical_import_locked((int)(intptr_t)osHandle);
    if (physical != NULL && physical->device >= sim_config.devices) {
        sim_physical_drop_if_unused_locked(physical);
        physical = NULL;
    }
    if (physical != NULL) {
        add_handle_locked(physical);
        physical->prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
        physical->prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
        physical->prop.location.id = physical->device;
        physical->prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
        *handle = physical->region.begin;
    }
    pthread_mutex_unlock(&sim_lock);
    return physical != NULL ? CUDA_SUCCESS : CUDA_ERROR_UNKNOWN;
}

/*
 * Stands in for a dma-buf: a file whose content at its position is the memory. The range has to
 * lie in one allocation.
 */
CUresult cuMemGetHandleForAddressRange(void *handle, CUdeviceptr dptr, size_t size,
                                       CUmemRangeHandleType handleType, unsigned long long flags)
{
    SIM_ENTER(cuMemGetHandleForAddressRange);
    if (handle == NULL || size == 0 || !is_multiple(dptr, HOST_PAGE) ||
        !is_multiple(size, HOST_PAGE) || handleType != CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD ||
        (flags & ~(unsigned long long)CU_MEM_RANGE_FLAG_DMA_BUF_MAPPING_TYPE_PCIE) != 0)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&sim_lock);
    const struct sim_memory *memory = sim_memory_find_locked(dptr);
    const struct sim_mapping *mapping = (struct sim_mapping *)sim_table_find(&sim_mappings, dptr);
    const struct sim_region *region = NULL;
    struct sim_physical *physical = NULL;
    uint64_t inside = 0;
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    if (mapping != NULL) {
        physical = mapping->physical;
        region = &mapping->region;
    } else if (memory != NULL && (memory->slab != NULL || memory->physical != NULL)) {
        physical = sim_memory_physical_locked(memory, &inside);
        region = &memory->region;
    }
    if (physical != NULL && size <= region->bytes - (dptr - region->begin)) {
        const int file = sim_physical_open_locked(physical);
        result = file < 0 ? CUDA_ERROR_OPERATING_SYSTEM : CUDA_SUCCESS;
        if (file >= 0) {
            lseek(file, (off_t)(inside + dptr - region->begin), SEEK_CUR);
            *(int *)handle = file;
        }
    }
    pthread_mutex_unlock(&sim_lock);
    return result;
}
