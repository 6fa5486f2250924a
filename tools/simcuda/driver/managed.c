/* SPDX-License-Identifier: Apache-2.0 */
/* Hints for managed memory: checked, remembered for each page, and without effect. */
#include "tools/simcuda/driver/state.h"

#include <string.h>

enum { PAGE_BYTES = 4096, CPU_BIT = SIM_DEVICES_MAX };

/* The advice for a page. A location of type CU_MEM_LOCATION_TYPE_INVALID: none was given. */
struct sim_advice {
    bool is_read_mostly;
    CUmemLocation preferred, prefetched;
    unsigned accessed_by; /* a bit for each device, and one for the processor */
};

/* The pages that a range lies in, of managed memory. */
struct pages {
    struct sim_advice *first;
    size_t count;
};

static bool find_memory_locked(CUdeviceptr address, size_t bytes, struct sim_memory **memory_out)
{
    struct sim_memory *memory = sim_memory_find_locked(address);
    *memory_out = memory;
    return memory != NULL && memory->kind == SIM_MANAGED && bytes > 0 &&
           bytes <= memory->region.bytes - (address - memory->region.begin);
}

static bool find_pages_locked(CUdeviceptr address, size_t bytes, struct pages *pages_out)
{
    struct sim_memory *memory;
    if (!find_memory_locked(address, bytes, &memory))
        return false;
    if (memory->advice == NULL)
        memory->advice = sim_zalloc(sim_round_up(memory->region.bytes, PAGE_BYTES) / PAGE_BYTES *
                                    sizeof(memory->advice[0]));
    const size_t begin = (address - memory->region.begin) / PAGE_BYTES;
    const size_t end = (address - memory->region.begin + bytes - 1) / PAGE_BYTES + 1;
    *pages_out = (struct pages){memory->advice + begin, end - begin};
    return true;
}

/* Is it a device, the processor, or one of the processor's nodes? */
static CUresult check_location(CUmemLocation location)
{
    switch ((int)location.type) {
    case CU_MEM_LOCATION_TYPE_DEVICE:
        return sim_device_check(location.id);
    case CU_MEM_LOCATION_TYPE_HOST:
    case CU_MEM_LOCATION_TYPE_HOST_NUMA:
    case CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT:
        return CUDA_SUCCESS;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
}

static CUmemLocation location_of(CUdevice device)
{
    return device == CU_DEVICE_CPU
               ? (CUmemLocation){.type = CU_MEM_LOCATION_TYPE_HOST}
               : (CUmemLocation){.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device};
}

static CUresult check_range(CUdeviceptr address, size_t bytes)
{
    struct sim_memory *memory;
    pthread_mutex_lock(&sim_lock);
    const bool is_managed = find_memory_locked(address, bytes, &memory);
    pthread_mutex_unlock(&sim_lock);
    return is_managed ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static void do_nothing(struct sim_work *work)
{
    (void)work;
}

static CUresult hint_in_stream(CUdeviceptr address, size_t bytes, CUstream stream, bool per_thread)
{
    const CUresult result = check_range(address, bytes);
    if (result != CUDA_SUCCESS)
        return result;
    struct sim_work *work = sim_zalloc(sizeof(*work));
    work->run = do_nothing;
    work->name = "cuMemPrefetchAsync";
    return sim_stream_submit(stream, per_thread, work);
}

static CUresult prefetch(CUdeviceptr address, size_t bytes, CUmemLocation location, CUstream stream,
                         bool per_thread)
{
    struct pages pages = {NULL, 0};
    CUresult result = check_location(location);
    if (result == CUDA_SUCCESS)
        result = hint_in_stream(address, bytes, stream, per_thread);
    if (result != CUDA_SUCCESS)
        return result;
    pthread_mutex_lock(&sim_lock);
    find_pages_locked(address, bytes, &pages);
    for (size_t i = 0; i < pages.count; i++)
        pages.first[i].prefetched = location;
    pthread_mutex_unlock(&sim_lock);
    return CUDA_SUCCESS;
}

static void advise_page(struct sim_advice *page, CUmem_advise advice, CUmemLocation location)
{
    const unsigned accessor =
        1u << (location.type == CU_MEM_LOCATION_TYPE_DEVICE ? location.id : CPU_BIT);
    switch ((int)advice) {
    case CU_MEM_ADVISE_SET_READ_MOSTLY:
    case CU_MEM_ADVISE_UNSET_READ_MOSTLY:
        page->is_read_mostly = advice == CU_MEM_ADVISE_SET_READ_MOSTLY;
        break;
    case CU_MEM_ADVISE_SET_PREFERRED_LOCATION:
        page->preferred = location;
        break;
    case CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION:
        page->preferred = (CUmemLocation){.type = CU_MEM_LOCATION_TYPE_INVALID};
        break;
    case CU_MEM_ADVISE_SET_ACCESSED_BY:
        page->accessed_by |= accessor;
        break;
    default:
        page->accessed_by &= ~accessor;
        break;
    }
}

/* The location is ignored by those that do not use it. */
static CUresult advise(CUdeviceptr address, size_t bytes, CUmem_advise advice,
                       CUmemLocation location)
{
    struct pages pages = {NULL, 0};
    CUresult result = CUDA_SUCCESS;
    if (advice < CU_MEM_ADVISE_SET_READ_MOSTLY || advice > CU_MEM_ADVISE_UNSET_ACCESSED_BY)
        return CUDA_ERROR_INVALID_VALUE;
    const bool is_of_accessors =
        advice == CU_MEM_ADVISE_SET_ACCESSED_BY || advice == CU_MEM_ADVISE_UNSET_ACCESSED_BY;
    if (is_of_accessors && location.type != CU_MEM_LOCATION_TYPE_DEVICE &&
        location.type != CU_MEM_LOCATION_TYPE_HOST)
        return CUDA_ERROR_INVALID_VALUE;
    if (is_of_accessors || advice == CU_MEM_ADVISE_SET_PREFERRED_LOCATION)
        result = check_location(location);
    else
        location = location_of(CU_DEVICE_CPU);
    if (result != CUDA_SUCCESS)
        return result;
    pthread_mutex_lock(&sim_lock);
    if (!find_pages_locked(address, bytes, &pages))
        result = CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < pages.count; i++)
        advise_page(&pages.first[i], advice, location);
    pthread_mutex_unlock(&sim_lock);
    return result;
}

CUresult cuMemAdvise(CUdeviceptr devPtr, size_t count, CUmem_advise advice, CUdevice device)
{
    SIM_ENTER(cuMemAdvise);
    return advise(devPtr, count, advice, location_of(device));
}

CUresult cuMemAdvise_v2(CUdeviceptr devPtr, size_t count, CUmem_advise advice,
                        CUmemLocation location)
{
    SIM_ENTER(cuMemAdvise_v2);
    return advise(devPtr, count, advice, location);
}

SIM_TWINS(cuMemPrefetchAsync, _ptsz,
          (CUdeviceptr devPtr, size_t count, CUdevice dstDevice, CUstream hStream),
          prefetch(devPtr, count, location_of(dstDevice), hStream, per_thread))

SIM_TWINS(cuMemPrefetchAsync_v2, _ptsz,
          (CUdeviceptr devPtr, size_t count, CUmemLocation location, unsigned int flags,
           CUstream hStream),
          flags != 0 ? CUDA_ERROR_INVALID_VALUE
                     : prefetch(devPtr, count, location, hStream, per_thread))

CUresult cuStreamAttachMemAsync(CUstream hStream, CUdeviceptr dptr, size_t length,
                                unsigned int flags)
{
    SIM_ENTER(cuStreamAttachMemAsync);
    (void)flags;
    return hint_in_stream(dptr, length == 0 ? 1 : length, hStream, false);
}

CUresult cuStreamAttachMemAsync_ptsz(CUstream hStream, CUdeviceptr dptr, size_t length,
                                     unsigned int flags)
{
    SIM_ENTER(cuStreamAttachMemAsync_ptsz);
    (void)flags;
    return hint_in_stream(dptr, length == 0 ? 1 : length, hStream, true);
}

/* The advice that holds for all pages of a range. */
static struct sim_advice common_advice(const struct pages *pages)
{
    struct sim_advice common = pages->first[0];
    for (size_t i = 1; i < pages->count; i++) {
        const struct sim_advice *page = &pages->first[i];
        common.is_read_mostly &= page->is_read_mostly;
        common.accessed_by &= page->accessed_by;
        if (memcmp(&page->preferred, &common.preferred, sizeof(common.preferred)) != 0)
            common.preferred = (CUmemLocation){.type = CU_MEM_LOCATION_TYPE_INVALID};
        if (memcmp(&page->prefetched, &common.prefetched, sizeof(common.prefetched)) != 0)
            common.prefetched = (CUmemLocation){.type = CU_MEM_LOCATION_TYPE_INVALID};
    }
    return common;
}

static int number_of(CUmemLocation location)
{
    if (location.type == CU_MEM_LOCATION_TYPE_INVALID)
        return CU_DEVICE_INVALID;
    return location.type == CU_MEM_LOCATION_TYPE_DEVICE ? location.id : CU_DEVICE_CPU;
}

/* Devices first, then the processor; what is left over is filled. */
static void list_accessors(unsigned accessed_by, int *list, size_t room)
{
    size_t count = 0;
    for (int bit = 0; bit <= CPU_BIT && count < room; bit++) {
        if ((accessed_by & (1u << bit)) != 0)
            list[count++] = bit == CPU_BIT ? CU_DEVICE_CPU : bit;
    }
    while (count < room)
        list[count++] = CU_DEVICE_INVALID;
}

static CUresult attribute_locked(const struct pages *pages, CUmem_range_attribute attribute,
                                 int *data, size_t bytes)
{
    const struct sim_advice common = common_advice(pages);
    if (data == NULL || bytes == 0 || bytes % sizeof(int) != 0 ||
        (attribute != CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY && bytes != sizeof(int)))
        return CUDA_ERROR_INVALID_VALUE;
    switch ((int)attribute) {
    case CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY:
        *data = common.is_read_mostly;
        return CUDA_SUCCESS;
    case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION:
        *data = number_of(common.preferred);
        return CUDA_SUCCESS;
    case CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY:
        list_accessors(common.accessed_by, data, bytes / sizeof(int));
        return CUDA_SUCCESS;
    case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION:
        *data = number_of(common.prefetched);
        return CUDA_SUCCESS;
    case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_TYPE:
        *data = (int)common.preferred.type;
        return CUDA_SUCCESS;
    case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_ID:
        *data = common.preferred.id;
        return CUDA_SUCCESS;
    case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_TYPE:
        *data = (int)common.prefetched.type;
        return CUDA_SUCCESS;
    case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_ID:
        *data = common.prefetched.id;
        return CUDA_SUCCESS;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
}

CUresult cuMemRangeGetAttributes(void **data, size_t *dataSizes, CUmem_range_attribute *attributes,
                                 size_t numAttributes, CUdeviceptr devPtr, size_t count)
{
    SIM_ENTER(cuMemRangeGetAttributes);
    struct pages pages;
    if (data == NULL || dataSizes == NULL || attributes == NULL || numAttributes == 0)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&sim_lock);
    CUresult result =
        find_pages_locked(devPtr, count, &pages) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < numAttributes && result == CUDA_SUCCESS; i++)
        result = attribute_locked(&pages, attributes[i], data[i], dataSizes[i]);
    pthread_mutex_unlock(&sim_lock);
    return result;
}

CUresult cuMemRangeGetAttribute(void *data, size_t dataSize, CUmem_range_attribute attribute,
                                CUdeviceptr devPtr, size_t count)
{
    SIM_ENTER(cuMemRangeGetAttribute);
    struct pages pages;
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&sim_lock);
    if (find_pages_locked(devPtr, count, &pages))
        result = attribute_locked(&pages, attribute, data, dataSize);
    pthread_mutex_unlock(&sim_lock);
    return result;
}
