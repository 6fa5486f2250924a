/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/calls/handles.h"

#include "runtime/base/array.h"
#include "runtime/base/heap.h"
#include "runtime/base/sorted.h"
#include "runtime/driver/device_memory.h"

/* A number consists of the mark, how often its place was used before, and the place. */
#define MARK (UINT64_C(0x6d73) << 48)
#define USES_SHIFT 32

static struct {
    struct place {
        struct ms_handle *handle; /* NULL: the place is free */
        uint32_t next_free;       /* like first_free */
        uint16_t uses;
    } * all;
    size_t count, capacity;
    uint32_t first_free; /* the place that was freed last, plus 1; 0: none is free */
} places;

static uint32_t place_of(CUmemGenericAllocationHandle number)
{
    return (uint32_t)number;
}

static bool add_place(void)
{
    if (places.count == UINT32_MAX || !MS_ARRAY_GROW(places.all, places.count, places.capacity))
        return false;
    places.all[places.count++] = (struct place){0};
    places.first_free = (uint32_t)places.count;
    return true;
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
    if (places.first_free == 0 && !add_place())
        return NULL;
    struct ms_handle *handle = ms_heap_zalloc(sizeof(*handle));
    if (handle == NULL)
        return NULL;
    const uint32_t at = places.first_free - 1;
    struct place *place = &places.all[at];
    places.first_free = place->next_free;
    *handle = (struct ms_handle){
        .number = MARK | (uint64_t)place->uses++ << USES_SHIFT | at,
        .bytes = bytes,
        .prop = *prop,
        .context = context,
        .users = 1,
    };
    place->handle = handle;
    return handle;
}

struct ms_handle *ms_handle_find(CUmemGenericAllocationHandle number)
{
    if (!ms_handle_is_ours(number) || place_of(number) >= places.count)
        return NULL;
    struct ms_handle *handle = places.all[place_of(number)].handle;
    return handle != NULL && handle->number == number ? handle : NULL;
}

void ms_handle_end_if_unused(struct ms_handle *handle)
{
    if (handle->users > 0 || handle->mappings > 0)
        return;
    ms_backing_end_pieces(&handle->pieces, handle->prop.location.id);
    const uint32_t at = place_of(handle->number);
    places.all[at] = (struct place){.next_free = places.first_free, .uses = places.all[at].uses};
    places.first_free = at + 1;
    ms_heap_free(handle);
}

/* --- reservations */

static struct ms_sorted reservations = {.item_bytes = sizeof(struct ms_reservation)};

bool ms_handle_add_reservation(CUdeviceptr address, size_t bytes)
{
    const struct ms_reservation added = {.address = address, .bytes = bytes};
    struct ms_position at = ms_sorted_find(&reservations, address);
    const struct ms_reservation *there = ms_sorted_item(&reservations, at);
    if (there != NULL && there->address <= address)
        at = ms_sorted_next(&reservations, at);
    return ms_sorted_insert(&reservations, at, &added, 1);
}

void ms_handle_remove_reservation(CUdeviceptr address)
{
    const struct ms_position at = ms_sorted_find(&reservations, address);
    const struct ms_reservation *there = ms_sorted_item(&reservations, at);
    if (there != NULL && there->address == address)
        ms_sorted_remove(&reservations, at, 1);
}

struct ms_reservation *ms_handle_find_reservation(CUdeviceptr address, size_t bytes)
{
    struct ms_reservation *there =
        ms_sorted_item(&reservations, ms_sorted_find(&reservations, address));
    if (there == NULL || address < there->address)
        return NULL;
    const uint64_t offset = address - there->address;
    return offset <= there->bytes && bytes <= there->bytes - offset ? there : NULL;
}
