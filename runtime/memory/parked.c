/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/memory/parked.h"

#include <stdatomic.h>
#include <stddef.h>

#include "runtime/base/counted.h"
#include "runtime/base/heap.h"
#include "runtime/base/log.h"
#include "runtime/memory/backing.h"

struct ms_store {
    struct ms_counted counted; /* first: lineage.h */
    CUcontext context;         /* immutable */
    struct ms_backing backing; /* immutable, and all of it backed */
    _Atomic(CUevent) event;    /* set once; NULL: nothing is queued yet */
};

_Static_assert(offsetof(struct ms_store, counted) == 0, "as lineage wants it");

static CUresult wait_for(const struct ms_store *store, CUevent event)
{
    struct ms_driver_scope scope;
    CUresult result = ms_driver_enter(store->context, &scope);
    if (result != CUDA_SUCCESS)
        return result;
    result = ms_driver.event_synchronize(event);
    ms_driver_leave(&scope);
    return result;
}

/* A context that is gone has no work. */
static void destroy(struct ms_counted *counted)
{
    struct ms_store *store = (struct ms_store *)counted;
    const CUevent event = atomic_load(&store->event);
    if (event != NULL) {
        wait_for(store, event);
        ms_driver.event_destroy(event);
    }
    ms_backing_release(&store->backing);
    ms_heap_free(store);
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

CUresult ms_store_create(CUcontext context, CUdevice device, const struct ms_range *ranges,
                         size_t count, struct ms_store **store_out)
{
    size_t bytes = 0;
    struct ms_store *store = ms_heap_zalloc(sizeof(*store));
    if (store == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    for (size_t i = 0; i < count; i++)
        bytes += ranges[i].end - ranges[i].begin;
    CUresult result = ms_backing_reserve(&store->backing, device, bytes);
    if (result != CUDA_SUCCESS)
        goto err_free;
    result = cover_each(&store->backing, ranges, count);
    if (result != CUDA_SUCCESS)
        goto err_release;
    ms_counted_init(&store->counted, destroy);
    store->context = context;
    *store_out = store;
    return CUDA_SUCCESS;

err_release:
    ms_backing_release(&store->backing);
err_free:
    ms_heap_free(store);
    return result;
}

const struct ms_backing *ms_store_backing(const struct ms_store *store)
{
    return &store->backing;
}

CUdeviceptr ms_store_address(const struct ms_store *store)
{
    return store->backing.address;
}

CUdevice ms_store_device(const struct ms_store *store)
{
    return store->backing.device;
}

void ms_store_queued(struct ms_store *store, CUevent event)
{
    atomic_store(&store->event, event);
}

CUresult ms_store_wait(struct ms_store *store)
{
    const CUevent event = atomic_load(&store->event);
    if (event != NULL)
        return wait_for(store, event);
    ms_log(MS_ERROR, "bytes are used that a collective of an open group is to write");
    return CUDA_ERROR_NOT_PERMITTED;
}

void ms_store_drop(struct ms_store *store)
{
    if (store != NULL)
        ms_counted_drop(&store->counted);
}
