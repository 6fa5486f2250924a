/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/selfcheck/selfcheck.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "runtime/base/clock.h"
#include "runtime/base/lock.h"
#include "runtime/config/config.h"
#include "runtime/driver/flags.h"
#include "runtime/selfcheck/kept.h"
#include "runtime/state/state.h"

/* Other threads wait for the check of their device, so that all of a program's allocations are
 * treated alike. */
static struct ms_lock lock = MS_LOCK_INIT(selfcheck);
static _Atomic bool is_checked[MS_MAX_DEVICES];
static unsigned attempts[MS_MAX_DEVICES] MS_GUARDED_BY(lock);

static ms_resolver_check *resolver;

void ms_selfcheck_set_resolver(ms_resolver_check *check)
{
    resolver = check;
}

/* Asks again if a call has failed: it may have failed for a reason of its own. */
static void run(CUcontext context, CUdevice device, struct ms_check_report *report_out)
{
    const uint64_t began = ms_clock_ns(CLOCK_MONOTONIC);
    ms_checks_run(context, device, report_out);
    if (report_out->refused != 0)
        ms_checks_run(context, device, report_out);
    ms_log(MS_DEBUG, "the self-check of device %d took %.1f ms", device,
           (double)(ms_clock_ns(CLOCK_MONOTONIC) - began) / 1e6);
}

static enum ms_check_state check(CUcontext context, CUdevice device,
                                 struct ms_check_report *report_out)
{
    struct ms_check_subject subject;
    *report_out = (struct ms_check_report){0};
    if (ms_config.self_check == MS_SELF_CHECK_OFF)
        return MS_CHECK_OFF;
    const bool is_named = ms_check_subject_find(device, &subject);
    if (is_named && ms_config.self_check == MS_SELF_CHECK_ON &&
        ms_check_kept_read(&subject, report_out))
        return MS_CHECK_KEPT;
    run(context, device, report_out);
    if (report_out->unknown != 0)
        return MS_CHECK_INCOMPLETE;
    if (is_named)
        ms_check_kept_write(&subject, report_out);
    return MS_CHECK_RUN;
}

static void ask_resolver(struct ms_check_report *report)
{
    if (resolver != NULL && !resolver(report->seen[MS_FACT_RESOLVER], MS_SEEN_BYTES))
        report->unmet |= MS_FACT_BIT(MS_FACT_RESOLVER);
}

/* One line for each fact that does not hold. */
static void publish(CUdevice device, enum ms_check_state state,
                    const struct ms_check_report *report)
{
    char text[MS_FACT_COUNT * (MS_SEEN_BYTES + 24)] = "";
    size_t used = 0;
    for (enum ms_fact fact = 0; fact < MS_FACT_COUNT; fact++) {
        const struct ms_fact_row *row = &ms_facts[fact];
        if ((report->unmet & MS_FACT_BIT(fact)) == 0)
            continue;
        ms_log(row->level == MS_WARN ? MS_WARN : MS_INFO,
               "self-check of device %d: %s (%s: %s): %s", device, row->fault, row->name,
               report->seen[fact], row->remedy);
        used += (size_t)snprintf(text + used, sizeof(text) - used, "%s%s: %s", used > 0 ? "; " : "",
                                 row->name, report->seen[fact]);
    }
    ms_state_set_check((uint32_t)device, state, !ms_facts_allow(device), text);
}

MS_HOLDS(lock) static void check_locked(CUcontext context, CUdevice device)
{
    enum { MOST_ATTEMPTS = 16 };
    struct ms_check_report report;
    const enum ms_check_state state = check(context, device, &report);
    if (state != MS_CHECK_OFF)
        ask_resolver(&report);
    ms_facts_set_unmet(device, report.unmet);
    publish(device, state, &report);
    /* Work of the program may be queued for long: that fact is not asked again. */
    const uint32_t unknown = report.unknown & ~MS_FACT_BIT(MS_FACT_CONTEXT_EVENT);
    if (unknown == 0 || report.is_stuck || !ms_facts_allow(device) ||
        ++attempts[device] == MOST_ATTEMPTS)
        atomic_store_explicit(&is_checked[device], true, memory_order_release);
}

bool ms_selfcheck_allows(CUcontext context, CUdevice device)
{
    if (!atomic_load_explicit(&is_checked[device], memory_order_acquire)) {
        ms_lock_take(&lock);
        if (!atomic_load_explicit(&is_checked[device], memory_order_relaxed) && !ms_is_capturing())
            check_locked(context, device);
        ms_lock_drop(&lock);
    }
    return ms_facts_allow(device);
}
