/* SPDX-License-Identifier: Apache-2.0 */
/* Why bytes come into memory, and how many the thread has brought. */
#pragma once

#include <stdint.h>

#include "runtime/state/counters.h"
#include "runtime/state/state.h"

/*
 * Gives the bytes that the thread materialises this reason, unless an outer reason is set, until
 * the end of the C block in which the variable stands:
 *
 *     MS_WHY const struct ms_why why = ms_why_begin(MS_REASON_SETTLE);
 *
 * The end publishes a fallback if the thread has materialised anything and ms_explain knows the
 * reason.
 */
#define MS_WHY __attribute__((cleanup(ms_why_end), unused))
struct ms_why {
    uint32_t before;
    uint64_t began, bytes;
};
struct ms_why ms_why_begin(enum ms_reason reason);
void ms_why_end(const struct ms_why *why);

/* The thread has materialised `bytes` bytes. */
void ms_why_add(uint64_t bytes);

/* Something could not stay deferred. */
static inline void ms_why_fall_back(enum ms_reason reason, uint64_t bytes)
{
    ms_counter_add(MS_COUNT_FALLBACKS, 1);
    ms_state_event(&(struct ms_event){.kind = MS_EVENT_FALLBACK, .reason = reason, .bytes = bytes});
}
