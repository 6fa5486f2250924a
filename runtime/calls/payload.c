/* SPDX-License-Identifier: Apache-2.0 */

#include "runtime/calls/payload.h"

#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

#include "runtime/base/heap.h"
#include "runtime/base/log.h"
#include "runtime/base/thread.h"
#include "runtime/calls/host_memory.h"
#include "runtime/calls/pointer.h"
#include "runtime/calls/pointer_scan.h"
#include "runtime/driver/flags.h"
#include "runtime/memory/order.h"
#include "runtime/state/counters.h"

static bool is_clean(const struct ms_rows *rows)
{
    const unsigned char *begin = (const unsigned char *)(uintptr_t)rows->begin;
    for (size_t z = 0; z < rows->depth; z++) {
        for (size_t y = 0; y < rows->height; y++) {
            if (!ms_pointer_scan_is_clean(begin + z * rows->slice + y * rows->pitch, rows->width))
                return false;
        }
    }
    return true;
}

/* The stream, and with it its context, waits for this thread. */
static void *expose(void *argument)
{
    const struct ms_rows *rows = argument;
    ms_order_forbid_waits();
    const CUresult result = ms_pointer_scan_expose_rows(rows);
    if (result != CUDA_SUCCESS)
        ms_fatal("a copy of rows of %zu bytes is queued, they hold addresses of deferred memory, "
                 "and that cannot be brought into memory now: CUDA error %d",
                 rows->width, (int)result);
    return NULL;
}

static void expose_in_thread(struct ms_rows *rows)
{
    enum { PATIENCE_S = 10 };
    pthread_t thread;
    struct timespec until;
    const int error = ms_thread_create(&thread, expose, rows);
    if (error != 0)
        ms_fatal("a copy is queued that holds addresses of deferred memory, and no thread can be "
                 "started to bring that into memory: error %d",
                 error);
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += PATIENCE_S;
    if (pthread_timedjoin_np(thread, NULL, &until) == 0)
        return;
    ms_log(MS_WARN,
           "a stream waits for more than %d s until memory is there to which a copy of rows of "
           "%zu bytes points",
           PATIENCE_S, rows->width);
    pthread_join(thread, NULL);
}

/* Host functions must not call the driver. The memory is there: freeing it waits for the stream. */
static void CUDA_CB look(void *argument)
{
    struct ms_rows *rows = argument;
    if (ms_defers_any() && !is_clean(rows))
        expose_in_thread(rows);
    atomic_fetch_sub(&ms_hot.late_payloads, 1);
    ms_heap_free(rows);
}

/* Right before the copy is queued. False: the driver takes no host function there. */
static bool look_later(const struct ms_rows *rows, CUstream stream)
{
    struct ms_rows *kept = ms_heap_alloc(sizeof(*kept));
    if (kept == NULL)
        return false;
    *kept = *rows;
    atomic_fetch_add(&ms_hot.late_payloads, 1);
    if (ms_driver.launch_host_func(stream, look, kept) != CUDA_SUCCESS) {
        atomic_fetch_sub(&ms_hot.late_payloads, 1);
        ms_heap_free(kept);
        return false;
    }
    ms_counter_add(MS_COUNT_LATE_PAYLOADS, 1);
    return true;
}

CUresult ms_payload_expose_unowned(CUdeviceptr source)
{
    const bool is_plain = ms_pointer_is_device(source) && !ms_pointer_is(source, MS_MANAGED) &&
                          !ms_host_memory_holds(source);
    return is_plain ? CUDA_SUCCESS : ms_pointer_scan_expose_all();
}

/* Host memory that is copied in the order of stream. */
static CUresult expose_rows(const struct ms_rows *rows, CUstream stream)
{
    if (rows->begin == 0 || rows->width == 0)
        return CUDA_SUCCESS;
    /* Memory that is unreadable here may hold anything; what is captured is copied at any time. */
    if (!ms_pointer_is_host(rows->begin) || ms_is_capturing())
        return ms_pointer_scan_expose_all();
    /* Of pageable memory, the driver has taken the bytes when the call returns. */
    if (!ms_host_memory_holds(rows->begin) || !ms_order_host_may_change(stream))
        return ms_pointer_scan_expose_rows(rows);
    return look_later(rows, stream) ? CUDA_SUCCESS : ms_pointer_scan_expose_all();
}

CUresult ms_payload_expose(const struct ms_movement *movement)
{
    const struct ms_side *from = &movement->from;
    const CUdeviceptr begin = from->begin;
    if (ms_movement_is_empty(movement))
        return CUDA_SUCCESS;
    if (movement->element != 0)
        return ms_pointer_scan_expose_pattern(ms_movement_pattern(movement));
    if (from->type == 0 || from->type == CU_MEMORYTYPE_ARRAY || begin == 0 ||
        (ms_side_is_device(*from) && ms_pointer_is_owned(begin)))
        return CUDA_SUCCESS;
    if (ms_side_is_device(*from) &&
        (!ms_pointer_is_host(begin) ||
         (from->type == CU_MEMORYTYPE_DEVICE && !ms_pointer_is(begin, MS_PINNED))))
        return ms_payload_expose_unowned(begin);
    const struct ms_rows rows = ms_movement_rows(movement, from);
    return expose_rows(&rows, movement->stream);
}
