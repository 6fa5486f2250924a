/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/memory/parked.h"

#include <stdatomic.h>

#include "runtime/base/counted.h"
#include "runtime/base/heap.h"
#include "runtime/base/lock.h"
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
    if (atomic_load(&parked->is_mapped))
        ms_backing_release(&parked->backing);
    else
        ms_backing_end_pieces(&parked->pieces, parked->device);
    ms_heap_free(parked);
}

CUresult ms_parked_create(CUcontext context, CUdevice device, size_t bytes, bool is_filled,
                          struct ms_parked **parked_out)
{
    struct ms_parked *parked = ms_heap_zalloc(sizeof(*parked));
    if (parked == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    const CUresult result = ms_backing_create_pieces(device, bytes, &parked->pieces);
    if (result != CUDA_SUCCESS) {
        ms_heap_free(parked);
        return result;
    }
    ms_counted_init(&parked->counted, destroy);
    parked->context = context;
    parked->device = device;
    parked->bytes = bytes;
    parked->is_filled = is_filled;
    *parked_out = parked;
    return CUDA_SUCCESS;
}

static CUresult map_locked(struct ms_parked *parked)
{
    CUresult result = ms_addresses_reserve_backing(&parked->backing, parked->device, parked->bytes);
    if (result != CUDA_SUCCESS)
        return result;
    result = ms_backing_put_pieces(&parked->backing, 0, &parked->pieces, true);
    if (result != CUDA_SUCCESS) {
        ms_backing_release(&parked->backing);
        return result;
    }
    atomic_store(&parked->is_mapped, true);
    return CUDA_SUCCESS;
}

static CUresult map(struct ms_parked *parked)
{
    static struct ms_lock lock = MS_LOCK_INIT(parked);
    CUresult result = CUDA_SUCCESS;
    if (atomic_load(&parked->is_mapped))
        return CUDA_SUCCESS;
    ms_lock_take(&lock);
    if (!atomic_load(&parked->is_mapped))
        result = map_locked(parked);
    ms_lock_drop(&lock);
    return result;
}

static CUresult wait_for_work(struct ms_parked *parked)
{
    const CUevent event = atomic_load(&parked->event);
    if (parked->is_filled)
        return CUDA_SUCCESS;
    if (event != NULL)
        return ms_driver_wait_for(parked->context, event);
    ms_log(MS_ERROR, "bytes are used that a collective of an open group is to write");
    return CUDA_ERROR_NOT_PERMITTED;
}

CUresult ms_parked_read(struct ms_parked *parked, CUdeviceptr *address_out)
{
    CUresult result = wait_for_work(parked);
    if (result == CUDA_SUCCESS)
        result = map(parked);
    *address_out = result == CUDA_SUCCESS ? parked->backing.address : 0;
    return result;
}
