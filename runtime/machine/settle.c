/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/machine/settle.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <time.h>

#include "runtime/base/log.h"
#include "runtime/config/config.h"
#include "runtime/diag/counters.h"
#include "runtime/hot.h"
#include "runtime/machine/machine.h"
#include "runtime/machine/note.h"
#include "runtime/machine/pass.h"
#include "runtime/machine/promise.h"
#include "runtime/machine/shard.h"
#include "runtime/machine/space.h"

/* Fewer launches than this are no sign that the program has moved on, however long they take. */
enum { MIN_LAUNCHES = 64 };

static _Atomic uint64_t last_event_ms;
static _Atomic uint32_t launches_since;
static _Atomic bool in_vain; /* settling left something; not again before something new comes */

static _Atomic bool is_settled; /* and no allocation was deferred since */

static _Atomic(const char *) last_cause;

bool ms_settle_is_over(void)
{
    return atomic_load_explicit(&is_settled, memory_order_relaxed);
}

void ms_settle_open(void)
{
    atomic_store_explicit(&is_settled, false, memory_order_relaxed);
    ms_settle_postpone();
}

const char *ms_settle_last_cause(void)
{
    const char *cause = atomic_load(&last_cause);
    return cause != NULL ? cause : "";
}

/* Coarse: a read of memory, not a system call. */
static uint64_t now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

static void start_waiting(void)
{
    atomic_store_explicit(&last_event_ms, now_ms(), memory_order_relaxed);
    atomic_store_explicit(&launches_since, 0, memory_order_relaxed);
}

void ms_settle_postpone(void)
{
    start_waiting();
    atomic_store_explicit(&in_vain, false, memory_order_relaxed);
}

/* Block by allocation: one whose bytes are lost does not keep the others deferred. */
static bool materialise_all(void)
{
    bool all = true;
    CUdeviceptr at = 0;
    struct ms_block_facts facts;
    while (ms_space_first_behind(at, &facts)) {
        at = facts.address + facts.bytes;
        all = ms_prepare_kept(facts.address, facts.bytes) == CUDA_SUCCESS && all;
    }
    return all;
}

/* False: something stays deferred. */
static bool settle(const char *why)
{
    const uint64_t began = ms_state_now(), before = ms_counter_get(MS_COUNT_MATERIALISED_BYTES);
    const struct ms_why reason = ms_why_begin(MS_REASON_SETTLE);
    const bool passed = ms_pass_run(why);
    const bool is_good = materialise_all() && passed && !ms_defers_any();
    ms_why_end(reason);
    ms_state_event_for(MS_EVENT_SETTLE, MS_REASON_SETTLE, 0, 0,
                       ms_counter_get(MS_COUNT_MATERIALISED_BYTES) - before, began, why);
    return is_good;
}

void ms_settle_now(const char *why)
{
    if (!ms_defers_any())
        return;
    ms_log(MS_DEBUG, "settling: %s", why);
    atomic_store(&last_cause, why);
    ms_count(MS_COUNT_SETTLES, 1);
    atomic_store(&is_settled, true);
    ms_promise_settled();
    if (settle(why))
        return;
    /* What a plan gives to other ranks stays. */
    atomic_store_explicit(&in_vain, true, memory_order_relaxed);
    if (!ms_shard_is_active())
        ms_log(MS_INFO, "not everything could be materialised while settling; it stays deferred");
}

void ms_settle_consider(void)
{
    const uint32_t launches =
        atomic_fetch_add_explicit(&launches_since, 1, memory_order_relaxed) + 1;
    if (ms_config.settle_ms == 0 || launches < MIN_LAUNCHES ||
        atomic_load_explicit(&in_vain, memory_order_relaxed))
        return;
    const uint64_t last = atomic_load_explicit(&last_event_ms, memory_order_relaxed);
    if (now_ms() - last < ms_config.settle_ms)
        return;
    start_waiting(); /* other threads need not come here too */
    ms_settle_now("the program launches work and allocates and loads nothing");
}
