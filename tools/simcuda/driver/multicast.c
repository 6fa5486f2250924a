/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Multicast objects, on devices with a switch between them (SIMCUDA_MULTICAST). Memory is bound to
 * and unbound from an object by handle or by address. simcuda_multicast_store of hook.h stands for
 * a kernel's store through the switch: kernels here know no such instructions, so an object cannot
 * be mapped; and it cannot be shared with other processes.
 */
#include "tools/simcuda/driver/hook.h"
#include "tools/simcuda/driver/newer.h"
#include "tools/simcuda/driver/state.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct binding {
    struct binding *next;
    CUdevice device;
    size_t begin, bytes;           /* in the object */
    struct sim_physical *physical; /* held as by a mapping */
    size_t inside;                 /* where in it */
};
struct multicast {
    struct sim_region region; /* begin: the handle value */
    size_t bytes;
    unsigned wanted, added; /* devices */
    bool has[SIM_DEVICES_MAX];
    struct binding *bindings;
};
static struct sim_table objects;

static struct multicast *find_locked(CUmemGenericAllocationHandle handle)
{
    return (struct multicast *)sim_table_find(&objects, handle);
}

static bool is_whole(size_t value)
{
    return value % SIM_GRANULE == 0;
}

static CUresult check_prop(const CUmulticastObjectProp *prop)
{
    if (!sim_config.has_switch)
        return CUDA_ERROR_NOT_SUPPORTED;
    if (prop == NULL || prop->numDevices == 0 || prop->flags != 0)
        return CUDA_ERROR_INVALID_VALUE;
    /* More than this process has would be of several processes. */
    if (prop->handleTypes != 0 || prop->numDevices > (unsigned)sim_config.devices)
        return CUDA_ERROR_NOT_SUPPORTED;
    return CUDA_SUCCESS;
}

CUresult cuMulticastGetGranularity(size_t *granularity, const CUmulticastObjectProp *prop,
                                   CUmulticastGranularity_flags option)
{
    SIM_ENTER(cuMulticastGetGranularity);
    const CUresult result = check_prop(prop);
    if (result != CUDA_SUCCESS)
        return result;
    if (granularity == NULL || (option != CU_MULTICAST_GRANULARITY_MINIMUM &&
                                option != CU_MULTICAST_GRANULARITY_RECOMMENDED))
        return CUDA_ERROR_INVALID_VALUE;
    *granularity = SIM_GRANULE;
    return CUDA_SUCCESS;
}

CUresult cuMulticastCreate(CUmemGenericAllocationHandle *mcHandle,
                           const CUmulticastObjectProp *prop)
{
    SIM_ENTER(cuMulticastCreate);
    const CUresult result = check_prop(prop);
    if (result != CUDA_SUCCESS)
        return result;
    if (mcHandle == NULL || prop->size == 0 || !is_whole(prop->size))
        return CUDA_ERROR_INVALID_VALUE;
    struct multicast *object = sim_zalloc(sizeof(*object));
    object->bytes = prop->size;
    object->wanted = prop->numDevices;
    pthread_mutex_lock(&sim_lock);
    /* Handles of memory are never in this range (vmm.c). */
    object->region = (struct sim_region){0x5144000000000000ull + sim_new_id_locked(), 1};
    sim_table_add(&objects, &object->region);
    *mcHandle = object->region.begin;
    pthread_mutex_unlock(&sim_lock);
    return CUDA_SUCCESS;
}

CUresult cuMulticastAddDevice(CUmemGenericAllocationHandle mcHandle, CUdevice dev)
{
    SIM_ENTER(cuMulticastAddDevice);
    if (!sim_config.has_switch)
        return CUDA_ERROR_NOT_SUPPORTED;
    CUresult result = sim_device_check(dev);
    pthread_mutex_lock(&sim_lock);
    struct multicast *object = find_locked(mcHandle);
    if (result == CUDA_SUCCESS &&
        (object == NULL || object->added == object->wanted || object->has[dev]))
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS) {
        object->has[dev] = true;
        object->added++;
        pthread_cond_broadcast(&sim_progress);
    }
    pthread_mutex_unlock(&sim_lock);
    return result;
}

/* --- binding */

static void unbind_locked(struct binding **link)
{
    struct binding *binding = *link;
    *link = binding->next;
    binding->physical->mappings--;
    sim_physical_drop_if_unused_locked(binding->physical);
    free(binding);
}

static bool is_bound(const struct multicast *object, CUdevice device, size_t begin, size_t bytes)
{
    for (const struct binding *each = object->bindings; each != NULL; each = each->next) {
        if (each->device == device && each->begin < begin + bytes &&
            begin < each->begin + each->bytes)
            return true;
    }
    return false;
}

/* "Will block until all devices have been added." The lock is given away meanwhile. NULL: none, or
 * the process ends. */
static struct multicast *wait_for_team_locked(CUmemGenericAllocationHandle handle)
{
    struct multicast *object;
    while ((object = find_locked(handle)) != NULL && object->added < object->wanted &&
           !sim_streams_are_stopping_locked())
        pthread_cond_wait(&sim_progress, &sim_lock);
    return object != NULL && object->added == object->wanted ? object : NULL;
}

static CUresult bind_locked(struct multicast *object, size_t begin, struct sim_physical *physical,
                            size_t inside, size_t bytes)
{
    if (bytes == 0 || !is_whole(begin) || !is_whole(inside) || !is_whole(bytes) ||
        bytes > object->bytes || begin > object->bytes - bytes || bytes > physical->bytes ||
        inside > physical->bytes - bytes || !object->has[physical->device] ||
        is_bound(object, physical->device, begin, bytes))
        return CUDA_ERROR_INVALID_VALUE;
    struct binding *binding = sim_zalloc(sizeof(*binding));
    *binding = (struct binding){object->bindings, physical->device, begin, bytes, physical, inside};
    object->bindings = binding;
    physical->mappings++;
    return CUDA_SUCCESS;
}

/* A negative device: that of the memory. */
static CUresult bind_memory(CUmemGenericAllocationHandle object_handle, CUdevice device,
                            size_t begin, CUmemGenericAllocationHandle handle, size_t inside,
                            size_t bytes, unsigned long long flags)
{
    if (!sim_config.has_switch)
        return CUDA_ERROR_NOT_SUPPORTED;
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&sim_lock);
    struct multicast *object = flags == 0 ? wait_for_team_locked(object_handle) : NULL;
    struct sim_physical *physical = (struct sim_physical *)sim_table_find(&sim_handles, handle);
    if (object != NULL && physical != NULL && (device < 0 || device == physical->device))
        result = bind_locked(object, begin, physical, inside, bytes);
    pthread_mutex_unlock(&sim_lock);
    return result;
}

CUresult cuMulticastBindMem(CUmemGenericAllocationHandle mcHandle, size_t mcOffset,
                            CUmemGenericAllocationHandle memHandle, size_t memOffset, size_t size,
                            unsigned long long flags)
{
    SIM_ENTER(cuMulticastBindMem);
    return bind_memory(mcHandle, -1, mcOffset, memHandle, memOffset, size, flags);
}

CUresult cuMulticastBindMem_v2(CUmemGenericAllocationHandle mcHandle, CUdevice dev, size_t mcOffset,
                               CUmemGenericAllocationHandle memHandle, size_t memOffset,
                               size_t size, unsigned long long flags)
{
    SIM_ENTER(cuMulticastBindMem_v2);
    const CUresult result = sim_device_check(dev);
    return result != CUDA_SUCCESS
               ? result
               : bind_memory(mcHandle, dev, mcOffset, memHandle, memOffset, size, flags);
}

/* Endpoints are not simulated: that memory could be bound is all that is said. */
CUresult cuLogicalEndpointBindMem(CUlogicalEndpointId leId, CUdevice dev, cuuint64_t offset,
                                  CUmemGenericAllocationHandle memHandle, cuuint64_t memOffset,
                                  cuuint64_t size, unsigned long long flags)
{
    SIM_ENTER(cuLogicalEndpointBindMem);
    (void)leId, (void)dev, (void)offset, (void)memOffset, (void)size;
    if (!sim_config.has_switch)
        return CUDA_ERROR_NOT_SUPPORTED;
    pthread_mutex_lock(&sim_lock);
    const bool is_memory = sim_table_find(&sim_handles, memHandle) != NULL;
    pthread_mutex_unlock(&sim_lock);
    return is_memory && flags == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* The memory of cuMemCreate that is mapped there, or memory of a pool. NULL: no one allocation has
 * all of the range. */
static struct sim_physical *find_memory_locked(CUdeviceptr address, size_t bytes,
                                               size_t *inside_out)
{
    const struct sim_mapping *mapping =
        (struct sim_mapping *)sim_table_find(&sim_mappings, address);
    const struct sim_memory *memory = sim_memory_find_locked(address);
    const struct sim_region *region = NULL;
    struct sim_physical *physical = NULL;
    uint64_t begin = 0;
    if (mapping != NULL) {
        region = &mapping->region;
        physical = mapping->physical;
    } else if (memory != NULL && memory->kind == SIM_POOLED) {
        region = &memory->region;
        physical = sim_memory_physical_locked(memory, &begin);
    }
    if (physical == NULL || bytes > region->bytes - (address - region->begin))
        return NULL;
    *inside_out = begin + (address - region->begin);
    return physical;
}

static CUresult bind_address(CUmemGenericAllocationHandle object_handle, CUdevice device,
                             size_t begin, CUdeviceptr address, size_t bytes,
                             unsigned long long flags)
{
    if (!sim_config.has_switch)
        return CUDA_ERROR_NOT_SUPPORTED;
    size_t inside;
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&sim_lock);
    struct multicast *object = flags == 0 ? wait_for_team_locked(object_handle) : NULL;
    struct sim_physical *physical = find_memory_locked(address, bytes, &inside);
    if (object != NULL && physical != NULL && is_whole(address) &&
        (device < 0 || device == physical->device))
        result = bind_locked(object, begin, physical, inside, bytes);
    pthread_mutex_unlock(&sim_lock);
    return result;
}

CUresult cuMulticastBindAddr(CUmemGenericAllocationHandle mcHandle, size_t mcOffset,
                             CUdeviceptr memptr, size_t size, unsigned long long flags)
{
    SIM_ENTER(cuMulticastBindAddr);
    return bind_address(mcHandle, -1, mcOffset, memptr, size, flags);
}

CUresult cuMulticastBindAddr_v2(CUmemGenericAllocationHandle mcHandle, CUdevice dev,
                                size_t mcOffset, CUdeviceptr memptr, size_t size,
                                unsigned long long flags)
{
    SIM_ENTER(cuMulticastBindAddr_v2);
    const CUresult result = sim_device_check(dev);
    return result != CUDA_SUCCESS ? result
                                  : bind_address(mcHandle, dev, mcOffset, memptr, size, flags);
}

CUresult cuLogicalEndpointBindAddr(CUlogicalEndpointId leId, CUdevice dev, cuuint64_t offset,
                                   void *ptr, cuuint64_t size, unsigned long long flags)
{
    SIM_ENTER(cuLogicalEndpointBindAddr);
    (void)leId, (void)dev, (void)offset;
    if (!sim_config.has_switch)
        return CUDA_ERROR_NOT_SUPPORTED;
    size_t inside;
    pthread_mutex_lock(&sim_lock);
    const bool is_memory = find_memory_locked((CUdeviceptr)(uintptr_t)ptr, size, &inside) != NULL;
    pthread_mutex_unlock(&sim_lock);
    return is_memory && flags == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* Anything but what was bound is "undefined behavior", and refused here. */
CUresult cuMulticastUnbind(CUmemGenericAllocationHandle mcHandle, CUdevice dev, size_t mcOffset,
                           size_t size)
{
    SIM_ENTER(cuMulticastUnbind);
    if (!sim_config.has_switch)
        return CUDA_ERROR_NOT_SUPPORTED;
    CUresult result = sim_device_check(dev);
    if (result != CUDA_SUCCESS)
        return result;
    pthread_mutex_lock(&sim_lock);
    struct multicast *object = find_locked(mcHandle);
    struct binding **link = object != NULL ? &object->bindings : NULL;
    while (link != NULL && *link != NULL &&
           ((*link)->device != dev || (*link)->begin != mcOffset || (*link)->bytes != size))
        link = &(*link)->next;
    const bool is_found = link != NULL && *link != NULL;
    if (is_found)
        unbind_locked(link);
    pthread_mutex_unlock(&sim_lock);
    return is_found ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

bool sim_multicast_is_one_locked(CUmemGenericAllocationHandle handle)
{
    return find_locked(handle) != NULL;
}

bool sim_multicast_release_locked(CUmemGenericAllocationHandle handle)
{
    struct multicast *object = find_locked(handle);
    if (object == NULL)
        return false;
    sim_table_remove(&objects, &object->region);
    while (object->bindings != NULL)
        unbind_locked(&object->bindings);
    free(object);
    return true;
}

/* --- through the switch */

static const struct binding *find_binding(const struct multicast *object, CUdevice device,
                                          size_t begin, size_t bytes)
{
    const struct binding *each = object->bindings;
    while (each != NULL && (each->device != device || begin < each->begin ||
                            begin - each->begin + bytes > each->bytes))
        each = each->next;
    return each;
}

__attribute__((visibility("default"))) CUresult
simcuda_multicast_store(CUmemGenericAllocationHandle handle, size_t begin, const void *bytes,
                        size_t count)
{
    CUresult result = CUDA_SUCCESS;
    pthread_mutex_lock(&sim_lock);
    const struct multicast *object = find_locked(handle);
    if (object == NULL)
        result = CUDA_ERROR_INVALID_VALUE;
    for (CUdevice i = 0; result == CUDA_SUCCESS && i < sim_config.devices; i++) {
        const struct binding *binding =
            object->has[i] ? find_binding(object, i, begin, count) : NULL;
        if (!object->has[i])
            continue;
        if (binding == NULL || pwrite(binding->physical->file, bytes, count,
                                      (off_t)(binding->physical->offset + binding->inside + begin -
                                              binding->begin)) != (ssize_t)count)
            result = CUDA_ERROR_ILLEGAL_ADDRESS;
    }
    pthread_mutex_unlock(&sim_lock);
    return result;
}
