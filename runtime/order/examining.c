/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/order/examining.h"

#include <stdatomic.h>
#include <stdint.h>

#include "runtime/driver/facts.h"
#include "runtime/driver/peers.h"
#include "runtime/order/order.h"

/* For each device, 1 + ms_hot.unexamined when all unexamined work was last known to be over; 0:
 * never. */
static _Atomic uint64_t over[MS_MAX_DEVICES];

/* An entry is free if its context is NULL. A process that has more contexts than these defers
 * nothing. */
enum { MAX_CONTEXTS = 64 };
static struct {
    _Atomic(CUcontext) context;
    _Atomic CUdevice device;
} contexts[MAX_CONTEXTS];
static _Atomic int added; /* how many entries, from the first on, were ever used */
static _Atomic bool are_too_many;

static _Atomic uint64_t launches; /* launches not recorded, while something was deferred */

static _Atomic bool is_expected; /* ms_examining_expect */

static bool is_known(CUcontext context)
{
    const int used = atomic_load(&added), end = used < MAX_CONTEXTS ? used : MAX_CONTEXTS;
    int at = 0;
    while (at < end && atomic_load(&contexts[at].context) != context)
        at++;
    return at < end;
}

void ms_examining_add_context(CUcontext context, CUdevice device)
{
    if (is_known(context))
        return;
    if (atomic_load(&added) < MAX_CONTEXTS)
        atomic_fetch_add(&added, 1);
    for (int at = 0; at < MAX_CONTEXTS; at++) {
        CUcontext none = NULL;
        if (atomic_compare_exchange_strong(&contexts[at].context, &none, context)) {
            atomic_store(&contexts[at].device, device);
            return;
        }
    }
    atomic_store(&are_too_many, true);
}

void ms_examining_forget_context(CUcontext context)
{
    for (int at = 0; at < MAX_CONTEXTS; at++) {
        CUcontext gone = context;
        atomic_compare_exchange_strong(&contexts[at].context, &gone, NULL);
    }
}

/* A way to ask whether all work of a context is done, or is within `ms` milliseconds. */
typedef bool asked(CUcontext context, uint64_t ms);

/* A context counts as done if the driver cannot tell. */
static bool is_done(CUcontext context, uint64_t unused)
{
    const CUresult state = ms_order_context_poll(context);
    (void)unused;
    return state == CUDA_SUCCESS || state == CUDA_ERROR_NOT_SUPPORTED;
}

/* Waits without limit if the driver cannot tell. */
static bool ends_within(CUcontext context, uint64_t ms)
{
    return ms_fact_holds(MS_EVERY_DEVICE, MS_FACT_CONTEXT_EVENT)
               ? ms_order_context_ends_within(context, ms)
               : ms_order_context_wait(context) == CUDA_SUCCESS;
}

/* Asks about each context that can reach memory of the device; MS_EVERY_DEVICE: about each. */
static bool are_done(CUdevice device, asked *is_done_within, uint64_t ms)
{
    bool are = !atomic_load(&are_too_many);
    for (int at = 0; at < MAX_CONTEXTS && are; at++) {
        const CUcontext context = atomic_load(&contexts[at].context);
        const bool is_asked =
            context != NULL && (device == MS_EVERY_DEVICE ||
                                ms_peers_reach(device, atomic_load(&contexts[at].device)));
        are = !is_asked || is_done_within(context, ms);
    }
    return are;
}

bool ms_examining_end_within(uint64_t ms)
{
    return are_done(MS_EVERY_DEVICE, ends_within, ms);
}

void ms_examining_launched(void)
{
    atomic_fetch_add(&launches, 1);
}

bool ms_examining_no_kernel(CUcontext current)
{
    static struct ms_patience patience;
    static _Atomic uint64_t idle_after; /* `now` when all was last idle; 0: never */
    const uint64_t now = UINT64_C(1) + atomic_load(&launches) + atomic_load(&ms_hot.unexamined);
    const bool is_counted = ms_defers_any(); /* launches count; the end of that changes `now` */
    if (is_counted && atomic_load(&idle_after) == now)
        return true;
    const uint64_t ms = ms_order_patience(&patience);
    const bool is_idle = (is_known(current) || ms_order_context_ends_within(current, ms)) &&
                         are_done(MS_EVERY_DEVICE, ms_order_context_ends_within, ms);
    ms_order_waited(&patience, !is_idle);
    if (is_idle && is_counted)
        atomic_store(&idle_after, now);
    return is_idle;
}

void ms_examining_expect(void)
{
    atomic_store(&is_expected, true);
}

bool ms_examining_is_complete(CUcontext current, CUdevice device)
{
    if (!atomic_load(&is_expected))
        return true;
    const uint64_t now = UINT64_C(1) + atomic_load(&ms_hot.unexamined);
    if (atomic_load(&over[device]) == now)
        return true;
    if ((!is_known(current) && !is_done(current, 0)) || !are_done(device, is_done, 0))
        return false;
    atomic_store(&over[device], now);
    return true;
}
