/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/state/why.h"

#include "runtime/state/caller.h"
#include "runtime/state/explain.h"

/* Bytes that the thread has materialised. */
static _Thread_local uint64_t thread_bytes __attribute__((tls_model("initial-exec")));

struct ms_why ms_why_begin(enum ms_reason reason)
{
    const uint64_t began = reason != MS_REASON_CALL ? ms_state_now() : 0;
    const struct ms_why why = {ms_caller_reason, began, thread_bytes};
    if (ms_caller_reason == MS_REASON_CALL)
        ms_caller_reason = reason;
    return why;
}

void ms_why_end(const struct ms_why *why)
{
    const enum ms_reason reason = (enum ms_reason)ms_caller_reason;
    const uint64_t bytes = thread_bytes - why->bytes;
    ms_caller_reason = why->before;
    if (why->before != MS_REASON_CALL || bytes == 0 || !ms_explain(reason, NULL, NULL, NULL, 0))
        return;
    ms_counter_add(MS_COUNT_FALLBACKS, 1);
    ms_state_event(&(struct ms_event){
        .kind = MS_EVENT_FALLBACK, .reason = reason, .bytes = bytes, .began = why->began});
}

void ms_why_add(uint64_t bytes)
{
    thread_bytes += bytes;
}
