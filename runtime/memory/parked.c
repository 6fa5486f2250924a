/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/memory/parked.h"

#include <stdatomic.h>

#include "runtime/base/counted.h"
#include "runtime/base/heap.h"
#include "runtime/base/log.h"
#include "runtime/memory/addresses.h"

struct ms_parked {
    struct ms_counted counted; /* first: lineage.h */
    CUcontext context;         /* immutable */
    struct ms_backing backing; /* immutable, and all of it backed */
    _Atomic(CUevent) event;    /* set once; NULL: nothing is queued yet */
};

_Static_assert(offsetof(struct ms_parked, counted) == 0, "as lineage wants it");

/* A context that is gone has no work. */
static void destroy(struct ms_counted *counted)
{
    struct ms_parked *parked = (struct ms_parked *)counted;
    const CUevent event = atomic_load(&parked->event);
    if (event != NULL) {
        ms_driver_wait_for(parked->context, event);
        ms_driver.event_destroy(event);
    }
    ms_backing_release(&parked->backing);
    ms_heap_free(parked);
}

/* A chunk for each of them. */
static CUresult cover_each(struct ms_backing *backing, const struct ms_range *ranges, size_t count)
{
    CUresult result = CUDA_SUCCESS;
    size_t at = 0;
    for (size_t i = 0; i < count && result == CUDA_SUCCESS; i++) {
        const size_t bytes = ranges[i].end - ranges[i].begin;
        result = ms_backing_cover(backing, at, at + bytes);
        at += bytes;
    }
    return result;
}

CUresult ms_parked_create(CUcontext context, CUdevice device, const struct ms_range *ranges,
                          size_t count, struct ms_parked **parked_out)
{
    size_t bytes = 0;
    struct ms_parked *parked = ms_heap_zalloc(sizeof(*parked));
    if (parked == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    for (size_t i = 0; i < count; i++)
        bytes += ranges[i].end - ranges[i].begin;
    CUresult result = ms_addresses_reserve_backing(&parked->backing, device, bytes);
    if (result != CUDA_SUCCESS)
        goto err_free;
    result = cover_each(&parked->backing, ranges, count);
    if (result != CUDA_SUCCESS)
        goto err_release;
    ms_counted_init(&parked->counted, destroy);
    parked->context = context;
    *parked_out = parked;
    return CUDA_SUCCESS;

err_release:
    ms_backing_release(&parked->backing);
err_free:
    ms_heap_free(parked);
    return result;
}

const struct ms_backing *ms_parked_backing(const struct ms_parked *parked)
{
    return &parked->backing;
}

CUdeviceptr ms_parked_address(const struct ms_parked *parked)
{
    return parked->backing.address;
}

CUdevice ms_parked_device(const struct ms_parked *parked)
{
    return parked->backing.device;
}

void ms_parked_attach_event(struct ms_parked *parked, CUevent event)
{
    atomic_store(&parked->event, event);
}

CUresult ms_parked_wait(struct ms_parked *parked)
{
    const CUevent event = atomic_load(&parked->event);
    if (event != NULL)
        return ms_driver_wait_for(parked->context, event);
    ms_log(MS_ERROR, "bytes are used that a collective of an open group is to write");
    return CUDA_ERROR_NOT_PERMITTED;
}

void ms_parked_drop(struct ms_parked *parked)
{
    if (parked != NULL)
        ms_counted_drop(&parked->counted);
}
