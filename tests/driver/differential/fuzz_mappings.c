/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory that the program maps itself. Each operation makes addresses and handles of its own, does
 * some calls with them in any order, right and wrong ones, and ends everything. A byte is read only
 * if it was written through some mapping of its handle.
 */
#include "tests/driver/differential/fuzz.h"

#include <string.h>
#include <unistd.h>

enum { HANDLES = 3, PLACES = 8, STEPS = 12, LEAST = 256 << 10 };

/* The program's knowledge: places of some granules in the reservation, each mapped or not. */
static struct {
    CUdeviceptr base;
    size_t granule; /* of a place */
    struct {
        CUmemGenericAllocationHandle handle; /* as long as it has a reference; else it is known */
        unsigned references, mappings;
        size_t granules;
        bool is_defined;
    } handles[HANDLES];
    struct {
        int handle; /* index + 1; 0: nothing is mapped */
        bool is_accessible;
    } places[PLACES]; /* by granule; the first one of a mapping */
} own;

static CUmemAllocationProp prop_of(bool can_export)
{
    return (CUmemAllocationProp){.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                 .requestedHandleTypes =
                                     can_export ? CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
                                                : CU_MEM_HANDLE_TYPE_NONE,
                                 .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
}

static CUdeviceptr address_of(size_t place)
{
    return own.base + place * own.granule;
}

static size_t bytes_of(int handle)
{
    return own.handles[handle].granules * own.granule;
}

/* The mapping that covers a place: its first place, or PLACES. */
static size_t mapping_at(size_t place)
{
    for (size_t first = place < 1 ? 0 : place - 1; first <= place; first++) {
        const int index = own.places[first].handle - 1;
        if (index >= 0 && first + own.handles[index].granules > place)
            return first;
    }
    return PLACES;
}

static bool is_free(size_t place, size_t granules)
{
    for (size_t i = place; i < place + granules; i++) {
        if (i >= PLACES || mapping_at(i) != PLACES)
            return false;
    }
    return true;
}

static void create(int index)
{
    const CUmemAllocationProp prop = prop_of(fuzz_one_in(2));
    own.handles[index].granules = 1 + fuzz_below(2);
    own.handles[index].references = 1;
    own.handles[index].mappings = 0;
    own.handles[index].is_defined = false;
    SEE(CALL(cuMemCreate)(&own.handles[index].handle, bytes_of(index), &prop, 0));
}

static void set_access(size_t place, CUmemAccess_flags flags)
{
    const CUmemAccessDesc desc = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE},
                                  .flags = flags};
    const int index = own.places[place].handle - 1;
    SEE(CALL(cuMemSetAccess)(address_of(place), bytes_of(index), &desc, 1));
    own.places[place].is_accessible = flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
}

static void map(int index, size_t place)
{
    SEE(CALL(cuMemMap)(address_of(place), bytes_of(index), 0, own.handles[index].handle, 0));
    own.places[place].handle = index + 1;
    own.handles[index].mappings++;
}

static void unmap(size_t place)
{
    const int index = own.places[place].handle - 1;
    fuzz_wait();
    SEE(CALL(cuMemUnmap)(address_of(place), bytes_of(index)));
    memset(&own.places[place], 0, sizeof(own.places[place]));
    own.handles[index].mappings--;
}

static void release(int index)
{
    SEE(CALL(cuMemRelease)(own.handles[index].handle));
    own.handles[index].references--;
}

/* A mapping; PLACES if there is none. */
static size_t some_mapping(void)
{
    size_t place = fuzz_below(PLACES);
    for (int i = 0; i < PLACES; i++, place = (place + 1) % PLACES) {
        if (own.places[place].handle != 0)
            return place;
    }
    return PLACES;
}

static void define_all(CUdeviceptr at, size_t bytes)
{
    for (const CUdeviceptr end = at + bytes; at < end; at += LEAST)
        fuzz_define(at, LEAST);
}

/* All bytes of new memory are defined at once, so that they may be read later. */
static void map_new(void)
{
    const int index = (int)fuzz_below(HANDLES);
    const size_t place = fuzz_below(PLACES);
    if (own.handles[index].references + own.handles[index].mappings == 0)
        create(index);
    if (own.handles[index].references == 0 || !is_free(place, own.handles[index].granules))
        return;
    map(index, place);
    if (own.handles[index].is_defined && fuzz_one_in(4))
        return; /* mapped, and not accessible */
    set_access(place, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    if (!own.handles[index].is_defined)
        define_all(address_of(place), bytes_of(index));
    own.handles[index].is_defined = true;
}

/* The place behind some accessible mappings in a row, of different handles: in what order a copy
 * writes memory that is mapped twice in its destination, nobody says. */
static size_t end_of_use(size_t place)
{
    unsigned seen = 0;
    while (place < PLACES && own.places[place].handle != 0 && own.places[place].is_accessible) {
        const int index = own.places[place].handle - 1;
        if ((seen >> index & 1) != 0)
            break;
        seen |= 1u << index;
        place += own.handles[index].granules;
    }
    return place;
}

/* A range over one accessible mapping or more. */
static void use(void)
{
    const size_t first = some_mapping();
    if (first == PLACES || !own.places[first].is_accessible)
        return;
    const size_t all = (end_of_use(first) - first) * own.granule;
    const size_t bytes = 1 + fuzz_below(all < FUZZ_BUFFER_BYTES ? all : FUZZ_BUFFER_BYTES);
    const size_t border = own.handles[own.places[first].handle - 1].granules * own.granule;
    const size_t half = bytes / 2 < border ? bytes / 2 : border;
    size_t at = fuzz_one_in(2) && border < all ? border - half : fuzz_below(all - bytes + 1);
    if (at + bytes > all)
        at = all - bytes;
    switch (fuzz_below(4)) {
    case 0:
        fuzz_define(own.base + first * own.granule + at, bytes);
        break;
    case 1: {
        const struct fuzz_range range = fuzz_range(FUZZ_BLOCK_MOST, 1);
        const size_t count = bytes < range.bytes ? bytes : range.bytes;
        fuzz_default_stream(false);
        SEE(CALL(cuMemcpyDtoD_v2)(range.at, own.base + first * own.granule + at, count));
        break;
    }
    case 2: {
        const struct fuzz_range range = fuzz_range(FUZZ_BLOCK_MOST, 1);
        const size_t count = bytes < range.bytes ? bytes : range.bytes;
        fuzz_default_stream(false);
        SEE(CALL(cuMemcpyDtoD_v2)(own.base + first * own.granule + at, range.at, count));
        break;
    }
    default:
        fuzz_read(own.base + first * own.granule + at, bytes);
    }
}

static void change_access(void)
{
    const size_t place = some_mapping();
    if (place == PLACES)
        return;
    fuzz_wait();
    set_access(place,
               fuzz_one_in(3) ? CU_MEM_ACCESS_FLAGS_PROT_NONE : CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
}

static void count_references(void)
{
    const size_t place = some_mapping();
    if (place == PLACES)
        return;
    const int index = own.places[place].handle - 1;
    CUmemGenericAllocationHandle handle = 0;
    if (own.handles[index].references > 0 && fuzz_one_in(2)) {
        release(index);
        return;
    }
    SEE(CALL(cuMemRetainAllocationHandle)(&handle, (void *)(uintptr_t)(address_of(place) + 5)));
    own.handles[index].handle = handle;
    own.handles[index].references++;
}

static void unmap_some(void)
{
    const size_t place = some_mapping();
    if (place == PLACES)
        return;
    const size_t next = place + own.handles[own.places[place].handle - 1].granules;
    if (next < PLACES && own.places[next].handle != 0 && fuzz_one_in(3)) {
        /* Two at once. */
        const int first = own.places[place].handle - 1, second = own.places[next].handle - 1;
        fuzz_wait();
        SEE(CALL(cuMemUnmap)(address_of(place), bytes_of(first) + bytes_of(second)));
        memset(&own.places[place], 0, sizeof(own.places[place]));
        memset(&own.places[next], 0, sizeof(own.places[next]));
        own.handles[first].mappings--;
        own.handles[second].mappings--;
    } else {
        unmap(place);
    }
}

static void ask(void)
{
    const size_t place = fuzz_below(PLACES);
    const CUdeviceptr at = address_of(place) + 1000;
    const CUmemLocation location = {.type = CU_MEM_LOCATION_TYPE_DEVICE,
                                    .id = fuzz_one_in(5) ? 99 : 0};
    static const CUpointer_attribute all[] = {
        CU_POINTER_ATTRIBUTE_CONTEXT,      CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
        CU_POINTER_ATTRIBUTE_RANGE_SIZE,   CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
        CU_POINTER_ATTRIBUTE_MAPPED,       CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES,
        CU_POINTER_ATTRIBUTE_ACCESS_FLAGS, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE,
        CU_POINTER_ATTRIBUTE_IS_MANAGED,   CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE,
        CU_POINTER_ATTRIBUTE_MAPPING_SIZE, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS,
        CU_POINTER_ATTRIBUTE_HOST_POINTER, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE,
    };
    CUmemAllocationProp prop = {0};
    CUdeviceptr base = 0;
    size_t bytes = 0;
    uint64_t value = 0;
    unsigned long long flags = 0;
    SEE(CALL(cuMemGetAddressRange_v2)(&base, &bytes, at));
    fuzz_see(base == 0 ? 0 : at - base);
    fuzz_see(bytes);
    SEE(CALL(cuPointerGetAttribute)(&value, all[fuzz_below(sizeof(all) / sizeof(all[0]))], at));
    fuzz_see(value);
    SEE(CALL(cuMemGetAccess)(&flags, &location, at));
    fuzz_see(flags);
    const int index = (int)fuzz_below(HANDLES);
    if (own.handles[index].references == 0)
        return;
    SEE(CALL(cuMemGetAllocationPropertiesFromHandle)(&prop, own.handles[index].handle));
    fuzz_see_bytes(&prop, sizeof(prop));
}

/* Another mapping of the same memory, by way of a descriptor. */
static void share(void)
{
    const int index = (int)fuzz_below(HANDLES);
    int file = -1;
    CUdeviceptr at = 0;
    CUmemGenericAllocationHandle other = 0;
    const CUmemAccessDesc desc = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE},
                                  .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    if (own.handles[index].references == 0 || !own.handles[index].is_defined)
        return;
    fuzz_wait();
    SEE(CALL(cuMemExportToShareableHandle)(&file, own.handles[index].handle,
                                           CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    if (file < 0)
        return;
    SEE(CALL(cuMemImportFromShareableHandle)(&other, (void *)(intptr_t)file,
                                             CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    close(file);
    SEE(CALL(cuMemAddressReserve)(&at, bytes_of(index), 0, 0, 0));
    SEE(CALL(cuMemMap)(at, bytes_of(index), 0, other, 0));
    SEE(CALL(cuMemRelease)(other));
    SEE(CALL(cuMemSetAccess)(at, bytes_of(index), &desc, 1));
    fuzz_read(at + fuzz_below(100), 5000);
    SEE(CALL(cuMemsetD8_v2)(at + 7, (unsigned char)fuzz_random(), 3000));
    SEE(CALL(cuCtxSynchronize)());
    SEE(CALL(cuMemUnmap)(at, bytes_of(index)));
    SEE(CALL(cuMemAddressFree)(at, bytes_of(index)));
}

/* Calls that the driver refuses. */
static void misuse(void)
{
    const size_t granule = own.granule, place = fuzz_below(PLACES), mapped = some_mapping();
    const int index = (int)fuzz_below(HANDLES);
    const CUmemGenericAllocationHandle handle = own.handles[index].handle;
    const CUmemAllocationProp prop = prop_of(false);
    CUmemGenericAllocationHandle none = 0;
    const CUmemAccessDesc elsewhere = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 99},
                                       .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    fuzz_wait();
    switch (fuzz_below(9)) {
    case 0:
        if (mapped != PLACES && bytes_of(own.places[mapped].handle - 1) > granule)
            SEE(CALL(cuMemUnmap)(address_of(mapped) + granule, granule));
        break;
    case 1:
        if (mapped != PLACES && own.handles[index].references > 0)
            SEE(CALL(cuMemMap)(address_of(mapped), bytes_of(index), 0, handle, 0));
        break;
    case 2:
        SEE(CALL(cuMemMap)(address_of(place), granule, granule, handle, 0));
        break;
    case 3:
        SEE(CALL(cuMemMap)(address_of(place) + 4096, granule, 0, handle, 0));
        break;
    case 4:
        if (own.handles[index].references == 0)
            SEE(CALL(cuMemRelease)(handle));
        break;
    case 5:
        SEE(CALL(cuMemCreate)(&none, granule + 4096, &prop, 0));
        break;
    case 6:
        if (mapped != PLACES)
            SEE(CALL(cuMemSetAccess)(address_of(mapped), bytes_of(own.places[mapped].handle - 1),
                                     &elsewhere, 1));
        break;
    case 7:
        if (mapped != PLACES)
            SEE(CALL(cuMemAddressFree)(own.base, PLACES * granule));
        break;
    default:
        SEE(CALL(cuMemAddressFree)(own.base, granule));
    }
}

static void end_all(void)
{
    for (size_t place = 0; place < PLACES; place++) {
        if (own.places[place].handle == 0)
            continue;
        const int index = own.places[place].handle - 1;
        if (own.places[place].is_accessible)
            fuzz_read(address_of(place) + fuzz_below(own.granule - 10000), 10000);
        if (own.handles[index].references > 0 && fuzz_one_in(2))
            release(index);
        unmap(place);
    }
    for (int i = 0; i < HANDLES; i++) {
        while (own.handles[i].references > 0)
            release(i);
    }
    SEE(CALL(cuMemAddressFree)(own.base, PLACES * own.granule));
}

static void map_memory(void)
{
    static void (*const steps[])(void) = {map_new,    map_new,          use,           use, use,
                                          unmap_some, count_references, change_access, ask, share,
                                          misuse};
    const CUmemAllocationProp prop = prop_of(false);
    memset(&own, 0, sizeof(own));
    fuzz_wait();
    CALL(cuMemGetAllocationGranularity)(&own.granule, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
    own.granule = (LEAST + own.granule - 1) / own.granule * own.granule;
    SEE(CALL(cuMemAddressReserve)(&own.base, PLACES * own.granule, 0, 0, 0));
    map_new();
    for (size_t i = 4 + fuzz_below(STEPS); i > 0; i--)
        steps[fuzz_below(sizeof(steps) / sizeof(steps[0]))]();
    end_all();
}

/* Memory that is mapped and not yet used takes no room, and is counted all the same. */
static void count_memory(void)
{
    size_t before = 0, after = 0, total;
    const CUmemAllocationProp prop = prop_of(false);
    CUmemGenericAllocationHandle handle = 0;
    fuzz_wait();
    SEE(CALL(cuMemGetInfo_v2)(&before, &total));
    SEE(CALL(cuMemCreate)(&handle, 1 << 20, &prop, 0));
    SEE(CALL(cuMemGetInfo_v2)(&after, &total));
    fuzz_see(fuzz_driver_has("SIMCUDA_OTHERS") || after + (1 << 20) <= before);
    SEE(CALL(cuMemRelease)(handle));
}

const struct fuzz_operation fuzz_mappings[] = {
    {"map memory", map_memory, 12},
    {"count memory", count_memory, 2},
    {NULL, NULL, 0},
};
