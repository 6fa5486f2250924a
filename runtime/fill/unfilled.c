/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/fill/unfilled.h"

#include <stdatomic.h>
#include <string.h>

#include "runtime/base/lock.h"
#include "runtime/driver/flags.h"
#include "runtime/memory/examining.h"

static struct {
    struct ms_lock lock;
    CUdeviceptr granules[MS_MAX_UNFILLED];
    size_t count; /* also in ms_hot.unfilled, for those without the lock */
} list = {.lock = MS_LOCK_INIT(unfilled)};

static void set_count_locked(size_t count)
{
    list.count = count;
    atomic_store(&ms_hot.unfilled, (uint32_t)count);
}

/* While some are noted, no kernel can have been queued: its launch would have filled them. */
static bool may_wait(CUcontext context)
{
    return !ms_is_capturing() && !ms_has_late_payloads() &&
           (ms_has_unfilled() || ms_examining_no_kernel(context));
}

static bool add_locked(CUdeviceptr granule)
{
    for (size_t i = 0; i < list.count; i++) {
        if (list.granules[i] == granule)
            return true;
    }
    if (list.count == MS_MAX_UNFILLED)
        return false;
    list.granules[list.count] = granule;
    set_count_locked(list.count + 1);
    return true;
}

bool ms_unfilled_add(CUdeviceptr granule, CUcontext context)
{
    if (!may_wait(context))
        return false;
    ms_lock_take(&list.lock);
    const bool is_noted = add_locked(granule);
    ms_lock_drop(&list.lock);
    return is_noted;
}

void ms_unfilled_remove(CUdeviceptr begin, CUdeviceptr end)
{
    if (!ms_has_unfilled())
        return;
    ms_lock_take(&list.lock);
    size_t kept = 0;
    for (size_t i = 0; i < list.count; i++) {
        if (list.granules[i] < begin || list.granules[i] >= end)
            list.granules[kept++] = list.granules[i];
    }
    set_count_locked(kept);
    ms_lock_drop(&list.lock);
}

size_t ms_unfilled_list(CUdeviceptr granules_out[MS_MAX_UNFILLED])
{
    ms_lock_take(&list.lock);
    const size_t count = list.count;
    memcpy(granules_out, list.granules, count * sizeof(*granules_out));
    ms_lock_drop(&list.lock);
    return count;
}
