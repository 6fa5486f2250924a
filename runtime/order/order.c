/* SPDX-License-Identifier: Apache-2.0 */
#include <sched.h>
#include <stdatomic.h>
#include <time.h>

#include "runtime/base/clock.h"
#include "runtime/config/config.h"
#include "runtime/driver/facts.h"
#include "runtime/driver/flags.h"
#include "runtime/order/order.h"
#include "runtime/state/why.h"

CUresult ms_order_event_poll(CUevent event, uint64_t ms)
{
    enum { SPINS = 64, STEP_NS = 50 * 1000 };
    const uint64_t steps = ms * (UINT64_C(1000000) / STEP_NS);
    CUresult state = ms_driver.event_query(event);
    for (uint64_t i = 0; i < SPINS + steps && state == CUDA_ERROR_NOT_READY; i++) {
        if (i < SPINS)
            sched_yield();
        else
            nanosleep(&(struct timespec){.tv_nsec = STEP_NS}, NULL);
        state = ms_driver.event_query(event);
    }
    return state;
}

enum { TIMES = 50, LONG_MS = 1000 }; /* TIMES the usual wait of 20 ms is a second */
#define LONG_WAITS_NS (UINT64_C(10) * MS_NS_PER_S)

uint64_t ms_order_patience(struct ms_patience *patience)
{
    const uint64_t usual = ms_config.idle_ms,
                   longer = usual < LONG_MS / TIMES ? usual * TIMES : LONG_MS;
    atomic_store(&patience->began_ns, ms_clock_ns(CLOCK_MONOTONIC));
    if (atomic_load(&patience->was_in_vain))
        return 0;
    return atomic_load(&patience->spent_ns) >= LONG_WAITS_NS || usual > longer ? usual : longer;
}

/* Threads that wait at the same time count as one, which began when the last of them did. */
void ms_order_waited(struct ms_patience *patience, bool is_in_vain)
{
    const uint64_t waited = ms_clock_ns(CLOCK_MONOTONIC) - atomic_load(&patience->began_ns);
    if (is_in_vain && !atomic_load(&patience->was_in_vain))
        atomic_store(&patience->spent_ns, LONG_WAITS_NS);
    else if (waited > MS_NS_PER_MS && waited < LONG_WAITS_NS)
        atomic_fetch_add(&patience->spent_ns, waited);
    atomic_store(&patience->was_in_vain, is_in_vain);
}

/* No capture begins while ms_hot.marking is set (ms_order_set_capture). */
CUresult ms_order_context_record(CUcontext context, CUevent event)
{
    if (!ms_fact_holds(MS_EVERY_DEVICE, MS_FACT_CONTEXT_EVENT))
        return CUDA_ERROR_NOT_SUPPORTED;
    atomic_fetch_add(&ms_hot.marking, 1);
    const CUresult result = atomic_load(&ms_hot.captures) != 0
                                ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
                                : ms_driver.ctx_record_event(context, event);
    atomic_fetch_sub(&ms_hot.marking, 1);
    return result;
}

/*
 * CUDA_SUCCESS if all work that is queued on the stream, or in the context, ends within `ms`
 * milliseconds. Records an event, because a query of the stream ignores the other streams that work
 * on the legacy stream, or on a stream that blocks with it, would wait for.
 */
static CUresult poll_queued_relaxed(CUstream stream, CUcontext context, uint64_t ms)
{
    CUevent event;
    CUresult state = ms_driver.event_create(&event, CU_EVENT_DISABLE_TIMING);
    if (state != CUDA_SUCCESS)
        return state;
    state = context != NULL ? ms_order_context_record(context, event)
                            : ms_driver.event_record(event, stream);
    if (state == CUDA_SUCCESS)
        state = ms_order_event_poll(event, ms);
    ms_driver.event_destroy(event);
    return state;
}

/* In relaxed mode, so that it ends no capture that another thread may begin meanwhile. */
static CUresult poll_queued(CUstream stream, CUcontext context, uint64_t ms)
{
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    CUresult state = ms_driver.exchange_capture_mode(&mode);
    if (state != CUDA_SUCCESS)
        return state;
    state = poll_queued_relaxed(stream, context, ms);
    ms_driver.exchange_capture_mode(&mode);
    return state;
}

/* Polls for a moment. Streams and contexts have separate patience: a context may be busy for long
 * while the stream of a copy is not. */
static CUresult wait_a_moment(CUstream stream, CUcontext context)
{
    static struct ms_patience kinds[2];
    struct ms_patience *patience = &kinds[context != NULL];
    const CUresult state = poll_queued(stream, context, ms_order_patience(patience));
    if (state == CUDA_SUCCESS || state == CUDA_ERROR_NOT_READY)
        ms_order_waited(patience, state == CUDA_ERROR_NOT_READY);
    return state;
}

CUresult ms_order_context_poll(CUcontext context)
{
    struct ms_driver_scope scope;
    CUresult result = ms_driver_enter(context, &scope);
    if (result != CUDA_SUCCESS)
        return result;
    result = wait_a_moment(NULL, context);
    ms_driver_leave(&scope);
    return result;
}

bool ms_order_context_ends_within(CUcontext context, uint64_t ms)
{
    struct ms_driver_scope scope;
    if (ms_driver_enter(context, &scope) != CUDA_SUCCESS)
        return false;
    const bool has_ended = poll_queued(NULL, context, ms) == CUDA_SUCCESS;
    ms_driver_leave(&scope);
    return has_ended;
}

CUcontext ms_order_stream_context(CUstream stream)
{
    CUcontext context;
    const bool is_default = stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD;
    const CUresult result = is_default ? ms_driver.ctx_get_current(&context)
                                       : ms_driver.stream_get_ctx(stream, &context);
    return result == CUDA_SUCCESS ? context : NULL;
}

/* Calls in relaxed mode, in which the call does not end the capture of another stream. */
static CUresult call_relaxed(CUresult (*call)(CUstream stream), CUstream stream)
{
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    CUresult result = ms_driver.exchange_capture_mode(&mode);
    if (result != CUDA_SUCCESS)
        return result;
    result = call(stream);
    ms_driver.exchange_capture_mode(&mode);
    return result;
}

CUresult ms_order_stream_wait(CUstream stream)
{
    return call_relaxed(ms_driver.stream_synchronize, stream);
}

CUresult ms_order_stream_query(CUstream stream)
{
    return call_relaxed(ms_driver.stream_query, stream);
}

bool ms_order_event_passes(CUevent event, CUcontext context, bool patient)
{
    static struct ms_patience patience;
    struct ms_driver_scope scope;
    if (ms_driver_enter(context, &scope) != CUDA_SUCCESS)
        return false;
    const CUresult state = patient ? ms_order_event_poll(event, ms_order_patience(&patience))
                                   : ms_driver.event_query(event);
    if (patient)
        ms_order_waited(&patience, state == CUDA_ERROR_NOT_READY);
    ms_driver_leave(&scope);
    return state == CUDA_SUCCESS;
}

/* Avoids cuCtxSynchronize, which ends captures that begin meanwhile, if the driver can record an
 * event of the context. */
static CUresult wait_in(CUcontext context)
{
    CUevent event;
    if (ms_driver.event_create(&event, CU_EVENT_DISABLE_TIMING) != CUDA_SUCCESS)
        return ms_driver.ctx_synchronize();
    CUresult result = ms_order_context_record(context, event);
    if (result == CUDA_SUCCESS)
        result = ms_driver.event_synchronize(event);
    else if (result != CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED)
        result = ms_driver.ctx_synchronize();
    ms_driver.event_destroy(event);
    return result;
}

static _Thread_local bool may_not_wait;

void ms_order_forbid_waits(void)
{
    may_not_wait = true;
}

CUresult ms_order_context_wait(CUcontext context)
{
    struct ms_driver_scope scope;
    if (may_not_wait)
        return CUDA_ERROR_NOT_READY;
    CUresult result = ms_driver_enter(context, &scope);
    if (result != CUDA_SUCCESS)
        return result;
    result = wait_in(context);
    ms_driver_leave(&scope);
    return result;
}

CUresult ms_order_capture_allows(void)
{
    CUevent event;
    if (!ms_is_capturing() ||
        ms_driver.event_create(&event, CU_EVENT_DISABLE_TIMING) != CUDA_SUCCESS)
        return CUDA_SUCCESS;
    const CUresult result = ms_driver.event_query(event);
    ms_driver.event_destroy(event);
    return result;
}

bool ms_order_may_record(CUstream stream)
{
    if (ms_is_capturing())
        return false;
    if (ms_is_gated()) {
        const CUresult state = wait_a_moment(stream, NULL);
        if (state == CUDA_ERROR_NOT_READY)
            ms_why_fall_back(MS_REASON_BUSY_STREAM, 0);
        return state == CUDA_SUCCESS;
    }
    /* The query also fails for handles that are no streams, and after errors of earlier work: such
     * a call goes to the driver, which refuses it. */
    const CUresult state = ms_order_stream_query(stream);
    return state == CUDA_SUCCESS || state == CUDA_ERROR_NOT_READY;
}

/* The query comes first: a busy stream needs no event. */
bool ms_order_host_may_change(CUstream stream)
{
    return ms_is_gated() && (ms_order_stream_query(stream) == CUDA_ERROR_NOT_READY ||
                             poll_queued(stream, NULL, 0) != CUDA_SUCCESS);
}

/* The thunks of launches set ms_hot.gated alone, so gated_copies tells whether both are set. */
void ms_order_add_gate(void)
{
    if (atomic_load_explicit(&ms_hot.gated_copies, memory_order_relaxed) != 0 || !ms_is_started())
        return;
    atomic_store_explicit(&ms_hot.gated, 1, memory_order_relaxed);
    atomic_store_explicit(&ms_hot.gated_copies, 1, memory_order_relaxed);
}

void ms_order_set_capture(bool begun)
{
    if (begun) {
        atomic_fetch_add(&ms_hot.captures, 1);
        while (atomic_load(&ms_hot.marking) != 0)
            sched_yield();
        return;
    }
    uint32_t now = atomic_load(&ms_hot.captures);
    while (now > 0 && !atomic_compare_exchange_weak(&ms_hot.captures, &now, now - 1))
        ;
}
