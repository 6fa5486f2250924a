/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/loading/pinned_pool.h"

#include <sys/mman.h>

#include "runtime/base/headroom.h"
#include "runtime/base/lock.h"
#include "runtime/base/log.h"
#include "runtime/state/state.h"

/* More areas are in use at once only if more threads fill memory at once. */
enum { MAX_KEPT = 16 };

static struct {
    struct ms_lock lock; /* guards the table; not held across driver calls */
    struct ms_pinned_area areas[MAX_KEPT];
    int count;
} kept = {.lock = MS_LOCK_INIT(pinned_pool)};

/* Takes an area out of the table. */
static bool find(CUcontext context, size_t bytes, struct ms_pinned_area *staging_out)
{
    bool found = false;
    ms_lock_take(&kept.lock);
    for (int i = 0; i < kept.count && !found; i++) {
        found = kept.areas[i].context == context && kept.areas[i].bytes >= bytes;
        if (found) {
            *staging_out = kept.areas[i];
            kept.areas[i] = kept.areas[--kept.count];
        }
    }
    ms_lock_drop(&kept.lock);
    return found;
}

static CUresult make(CUcontext context, size_t bytes, struct ms_pinned_area *staging_out)
{
    void *memory;
    const CUresult result = ms_driver.mem_host_alloc(&memory, bytes, 0);
    if (result != CUDA_SUCCESS) {
        ms_log(MS_DEBUG, "no pinned memory for staging (CUDA error %d): using pageable memory",
               (int)result);
        memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (memory == MAP_FAILED)
            return CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (result == CUDA_SUCCESS)
        ms_state_event(&(struct ms_event){.kind = MS_EVENT_PIN,
                                          .address = (uintptr_t)memory,
                                          .bytes = bytes,
                                          .text = "host memory, to read files through"});
    *staging_out = (struct ms_pinned_area){memory, bytes, result == CUDA_SUCCESS, context};
    return CUDA_SUCCESS;
}

CUresult ms_pinned_pool_take(CUcontext context, size_t least, size_t bytes,
                             struct ms_pinned_area *staging_out)
{
    if (find(context, bytes, staging_out))
        return CUDA_SUCCESS;
    const bool has_room =
        least == bytes || bytes <= ms_headroom_share(ms_headroom_find(MS_HEADROOM_MEMORY).bytes);
    if (!has_room && find(context, least, staging_out))
        return CUDA_SUCCESS;
    return make(context, has_room ? bytes : least, staging_out);
}

static void free_pinned(const struct ms_pinned_area *staging)
{
    const CUresult result = ms_driver.mem_free_host(staging->memory);
    if (result != CUDA_SUCCESS)
        ms_log(MS_DEBUG, "%zu bytes of pinned memory cannot be freed: CUDA error %d",
               staging->bytes, (int)result);
}

void ms_pinned_pool_drop(const struct ms_pinned_area *staging)
{
    if (!staging->is_pinned) {
        munmap(staging->memory, staging->bytes);
        return;
    }
    ms_lock_take(&kept.lock);
    const bool has_room = kept.count < MAX_KEPT;
    if (has_room)
        kept.areas[kept.count++] = *staging;
    ms_lock_drop(&kept.lock);
    if (!has_room)
        free_pinned(staging);
}

void ms_pinned_pool_give_back(CUcontext context)
{
    struct ms_pinned_area staging;
    struct ms_driver_scope scope;
    while (find(context, 0, &staging)) {
        if (ms_driver_enter(context, &scope) != CUDA_SUCCESS)
            return;
        free_pinned(&staging);
        ms_driver_leave(&scope);
    }
}

void ms_pinned_pool_forget(CUcontext context)
{
    struct ms_pinned_area staging;
    while (find(context, 0, &staging))
        ;
}
