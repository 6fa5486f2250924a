/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/memory/parked.h"

#include <stdatomic.h>

#include "runtime/base/counted.h"
#include "runtime/base/heap.h"
#include "runtime/base/log.h"
#include "runtime/memory/addresses.h"

_Static_assert(offsetof(struct ms_parked, counted) == 0, "as lineage wants it");

/* Ignores a failure of the wait: a context that is gone has no work. */
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

CUresult ms_parked_create(CUcontext context, CUdevice device, size_t bytes, bool is_filled,
                          struct ms_parked **parked_out)
{
    struct ms_parked *parked = ms_heap_zalloc(sizeof(*parked));
    if (parked == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = ms_addresses_reserve_backing(&parked->backing, device, bytes);
    if (result != CUDA_SUCCESS)
        goto err_free;
    result = ms_backing_cover(&parked->backing, 0, bytes);
    if (result != CUDA_SUCCESS)
        goto err_release;
    ms_counted_init(&parked->counted, destroy);
    parked->context = context;
    parked->is_filled = is_filled;
    *parked_out = parked;
    return CUDA_SUCCESS;

err_release:
    ms_backing_release(&parked->backing);
err_free:
    ms_heap_free(parked);
    return result;
}

CUresult ms_parked_wait(struct ms_parked *parked)
{
    const CUevent event = atomic_load(&parked->event);
    if (parked->is_filled)
        return CUDA_SUCCESS;
    if (event != NULL)
        return ms_driver_wait_for(parked->context, event);
    ms_log(MS_ERROR, "bytes are used that a collective of an open group is to write");
    return CUDA_ERROR_NOT_PERMITTED;
}
