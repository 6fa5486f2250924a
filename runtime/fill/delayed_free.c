/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/fill/delayed_free.h"

#include <stdatomic.h>

#include "runtime/base/lock.h"
#include "runtime/config/config.h"
#include "runtime/driver/flags.h"
#include "runtime/memory/allocation.h"
#include "runtime/order/order.h"

static struct {
    struct ms_lock lock;
    struct ms_allocation *first;
    _Atomic bool is_any;
    _Atomic uint64_t backed_bytes; /* of allocations with an event, as bytes is */
    _Atomic uint64_t bytes[MS_MAX_DEVICES];
} delayed = {.lock = MS_LOCK_INIT(delayed_free)};

/* sign: 1 or -1. */
static void count(const struct ms_allocation *allocation, int64_t sign)
{
    if (allocation->freed.event == NULL)
        return;
    const size_t backed = ms_backing_bytes(ms_allocation_backing(allocation));
    atomic_fetch_add(&delayed.backed_bytes, (uint64_t)(sign * (int64_t)backed));
    atomic_fetch_add(&delayed.bytes[allocation->device],
                     (uint64_t)(sign * (int64_t)allocation->granule_bytes));
}

/* Counts the allocation as owned, so that calls which may free it still come to the shim. */
static void add(struct ms_allocation *allocation)
{
    atomic_fetch_add(&ms_hot.owned, 1);
    count(allocation, 1);
    ms_lock_take(&delayed.lock);
    allocation->freed.next = delayed.first;
    delayed.first = allocation;
    atomic_store(&delayed.is_any, true);
    ms_lock_drop(&delayed.lock);
}

void ms_delayed_free_add(struct ms_allocation *allocation, CUevent freed, CUcontext freed_in)
{
    allocation->freed.event = freed;
    allocation->freed.context = freed_in;
    add(allocation);
}

static struct ms_allocation *take_all(void)
{
    /* A forked child owns nothing (flags.h). */
    if (!ms_owns_any() || !atomic_load_explicit(&delayed.is_any, memory_order_relaxed))
        return NULL;
    ms_lock_take(&delayed.lock);
    struct ms_allocation *first = delayed.first;
    delayed.first = NULL;
    atomic_store(&delayed.is_any, false);
    ms_lock_drop(&delayed.lock);
    return first;
}

enum how { BY_EVENTS, PATIENTLY, BY_WAITING, AS_GONE };

/* The context whose work may use the memory, and to which the event belongs. */
static CUcontext user_of(const struct ms_allocation *allocation)
{
    return allocation->freed.context != NULL ? allocation->freed.context : allocation->context;
}

static bool is_done(const struct ms_allocation *allocation, enum how how)
{
    const CUcontext context = user_of(allocation);
    if (how == AS_GONE ||
        (allocation->freed.event != NULL &&
         ms_order_event_passes(allocation->freed.event, context, how == PATIENTLY)))
        return true;
    return how == BY_WAITING && ms_order_context_wait(context) == CUDA_SUCCESS;
}

static void destroy(struct ms_allocation *allocation, enum how how)
{
    if (allocation->freed.event != NULL && how != AS_GONE)
        ms_driver.event_destroy(allocation->freed.event);
    ms_allocation_destroy(allocation);
}

/* Destroys the allocations that work of the context (NULL: of any) may use, if `how` finds that
 * work done. True if there was one. */
static bool destroy_done(CUcontext context, enum how how)
{
    enum { MOST_ASKED = 8 }; /* not done; the list turns round each time, so others come next */
    bool is_any = false;
    unsigned asked = 0;
    for (struct ms_allocation *allocation = take_all(), *next; allocation != NULL;
         allocation = next) {
        const bool is_meant = context == NULL || user_of(allocation) == context;
        next = allocation->freed.next;
        atomic_fetch_sub(&ms_hot.owned, 1);
        count(allocation, -1);
        const bool is_asked = how >= BY_WAITING || asked < MOST_ASKED;
        if (is_meant && is_asked && is_done(allocation, how)) {
            destroy(allocation, how);
            is_any = true;
        } else {
            asked += is_asked;
            add(allocation);
        }
    }
    return is_any;
}

bool ms_delayed_free_run(CUcontext context)
{
    return !ms_is_capturing() && destroy_done(context, BY_WAITING);
}

void ms_delayed_free_pass(bool patient)
{
    const bool is_much = atomic_load(&delayed.backed_bytes) > ms_config.dead_bytes;
    if (!ms_is_capturing())
        destroy_done(NULL, patient && is_much ? PATIENTLY : BY_EVENTS);
}

bool ms_delayed_free_holds(CUdeviceptr address)
{
    if (!ms_owns_any() || !atomic_load_explicit(&delayed.is_any, memory_order_relaxed))
        return false;
    ms_lock_take(&delayed.lock);
    const struct ms_allocation *at = delayed.first;
    while (at != NULL && address - at->address >= at->granule_bytes)
        at = at->freed.next;
    ms_lock_drop(&delayed.lock);
    return at != NULL;
}

uint64_t ms_delayed_free_bytes(CUdevice device)
{
    return device >= 0 && device < MS_MAX_DEVICES ? atomic_load(&delayed.bytes[device]) : 0;
}

void ms_delayed_free_forget(CUcontext context)
{
    destroy_done(context, AS_GONE);
}
