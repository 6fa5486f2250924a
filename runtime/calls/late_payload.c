/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/calls/late_payload.h"

#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

#include "runtime/base/heap.h"
#include "runtime/base/log.h"
#include "runtime/base/thread.h"
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

bool ms_late_payload_add(const struct ms_rows *rows, CUstream stream)
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
    ms_count(MS_COUNT_LATE_PAYLOADS, 1);
    return true;
}
