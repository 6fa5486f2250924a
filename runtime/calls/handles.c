/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/calls/handles.h"

#include <string.h>

#include "runtime/base/array.h"
#include "runtime/base/heap.h"
#include "runtime/driver/device_memory.h"

/* A number consists of the mark, how often its place was used before, and the place. */
#define MARK (UINT64_C(0x6d73) << 48)
#define USES_SHIFT 32

static struct {
    struct ms_handle **all; /* by place; NULL: free */
    uint16_t *uses;         /* of each place */
    uint32_t *free_places;
    size_t count, free_count;
    size_t all_capacity, uses_capacity, free_capacity;
} handles;

static uint32_t place_of(CUmemGenericAllocationHandle number)
{
    return (uint32_t)number;
}

static bool grow(void)
{
    return MS_ARRAY_GROW(handles.all, handles.count, handles.all_capacity) &&
           MS_ARRAY_GROW(handles.uses, handles.count, handles.uses_capacity) &&
           MS_ARRAY_GROW(handles.free_places, handles.count, handles.free_capacity);
}

bool ms_handle_serves(const CUmemAllocationProp *prop, CUdevice device)
{
    if (prop == NULL || prop->type != CU_MEM_ALLOCATION_TYPE_PINNED ||
        prop->location.type != CU_MEM_LOCATION_TYPE_DEVICE || prop->location.id != device ||
        prop->win32HandleMetaData != NULL)
        return false;
    const CUmemAllocationProp ours = ms_device_memory_properties(device);
    return (prop->requestedHandleTypes & ~ours.requestedHandleTypes) == 0 &&
           prop->allocFlags.compressionType == CU_MEM_ALLOCATION_COMP_NONE &&
           prop->allocFlags.gpuDirectRDMACapable <= ours.allocFlags.gpuDirectRDMACapable &&
           prop->allocFlags.usage == 0;
}

struct ms_handle *ms_handle_create(size_t bytes, const CUmemAllocationProp *prop, CUcontext context)
{
    if (handles.free_count == 0) {
        if (handles.count == UINT32_MAX || !grow())
            return NULL;
        handles.uses[handles.count] = 0;
        handles.free_places[handles.free_count++] = (uint32_t)handles.count++;
    }
    struct ms_handle *handle = ms_heap_zalloc(sizeof(*handle));
    if (handle == NULL)
        return NULL;
    const uint32_t place = handles.free_places[--handles.free_count];
    *handle = (struct ms_handle){
        .number = MARK | (uint64_t)handles.uses[place]++ << USES_SHIFT | place,
        .bytes = bytes,
        .prop = *prop,
        .context = context,
        .users = 1,
    };
    handles.all[place] = handle;
    return handle;
}

struct ms_handle *ms_handle_find(CUmemGenericAllocationHandle number)
{
    if (!ms_handle_is_ours(number) || place_of(number) >= handles.count)
        return NULL;
    struct ms_handle *handle = handles.all[place_of(number)];
    return handle != NULL && handle->number == number ? handle : NULL;
}

void ms_handle_end_if_unused(struct ms_handle *handle)
{
    if (handle->users > 0 || handle->mappings > 0)
        return;
    ms_backing_end_pieces(&handle->pieces, handle->prop.location.id);
    handles.all[place_of(handle->number)] = NULL;
    handles.free_places[handles.free_count++] = place_of(handle->number);
    ms_heap_free(handle);
}

/* --- reservations: few, sorted */

static struct {
    struct ms_reservation *all;
    size_t count, capacity;
} reservations;

/* The index of the first reservation that begins behind address. */
static size_t behind(CUdeviceptr address)
{
    return MS_ARRAY_FIND(at, reservations.count, reservations.all[at].address <= address);
}

bool ms_handle_add_reservation(CUdeviceptr address, size_t bytes)
{
    if (!MS_ARRAY_GROW(reservations.all, reservations.count, reservations.capacity))
        return false;
    const size_t at = behind(address);
    memmove(&reservations.all[at + 1], &reservations.all[at],
            (reservations.count - at) * sizeof(*reservations.all));
    reservations.all[at] = (struct ms_reservation){.address = address, .bytes = bytes};
    reservations.count++;
    return true;
}

void ms_handle_remove_reservation(CUdeviceptr address)
{
    const size_t at = behind(address);
    if (at == 0 || reservations.all[at - 1].address != address)
        return;
    memmove(&reservations.all[at - 1], &reservations.all[at],
            (reservations.count - at) * sizeof(*reservations.all));
    reservations.count--;
}

struct ms_reservation *ms_handle_find_reservation(CUdeviceptr address, size_t bytes)
{
    const size_t at = behind(address);
    if (at == 0)
        return NULL;
    struct ms_reservation *found = &reservations.all[at - 1];
    const uint64_t offset = address - found->address;
    return offset <= found->bytes && bytes <= found->bytes - offset ? found : NULL;
}
