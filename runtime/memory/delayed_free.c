/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/memory/delayed_free.h"

#include <stdatomic.h>

#include "runtime/base/heap.h"
#include "runtime/base/lock.h"
#include "runtime/driver/flags.h"
#include "runtime/memory/order.h"
#include "runtime/memory/publish.h"

static struct {
    struct ms_lock lock;
    struct ms_allocation *first;
    _Atomic bool is_any;
} delayed = {.lock = MS_LOCK_INIT(delayed_free)};

void ms_allocation_destroy(struct ms_allocation *allocation)
{
    ms_backing_release(&allocation->backing);
    ms_state_sample();
    ms_lineage_cleanup(&allocation->lineage);
    ms_gap_array_free(&allocation->blocks.gaps, allocation->blocks.all);
    ms_heap_free(allocation);
}

/* It counts as owned, so that calls which may free it still come to the shim. */
void ms_delay_free(struct ms_allocation *allocation)
{
    atomic_fetch_add(&ms_hot.owned, 1);
    ms_lock_take(&delayed.lock);
    allocation->next_delayed = delayed.first;
    delayed.first = allocation;
    atomic_store(&delayed.is_any, true);
    ms_lock_drop(&delayed.lock);
}

static struct ms_allocation *take_all(void)
{
    /* In a forked child nothing is owned (flags.h). */
    if (!ms_owns_any() || !atomic_load_explicit(&delayed.is_any, memory_order_relaxed))
        return NULL;
    ms_lock_take(&delayed.lock);
    struct ms_allocation *first = delayed.first;
    delayed.first = NULL;
    atomic_store(&delayed.is_any, false);
    ms_lock_drop(&delayed.lock);
    return first;
}

/* Of one context (NULL: of all). */
static bool destroy_done(CUcontext context, bool is_gone)
{
    bool is_any = false;
    for (struct ms_allocation *allocation = take_all(), *next; allocation != NULL;
         allocation = next) {
        const bool is_meant = context == NULL || allocation->context == context;
        next = allocation->next_delayed;
        atomic_fetch_sub(&ms_hot.owned, 1);
        if (is_meant && (is_gone || ms_context_wait(allocation->context) == CUDA_SUCCESS)) {
            ms_allocation_destroy(allocation);
            is_any = true;
        } else {
            ms_delay_free(allocation);
        }
    }
    return is_any;
}

bool ms_free_delayed(CUcontext context)
{
    return !ms_is_capturing() && destroy_done(context, false);
}

void ms_delayed_free_forget(CUcontext context)
{
    destroy_done(context, true);
}
