/* SPDX-License-Identifier: Apache-2.0 */
/* The driver function that the program is in, for messages about what a call caused. */
#pragma once

#include <stdint.h>

/* Set by the entry points that may do something; a string that is never freed. The preloaded object
 * has static thread-local storage, so setting it is one store. NULL: no call yet, or a thread of
 * the shim. */
extern _Thread_local const char *ms_caller __attribute__((tls_model("initial-exec")));

/* The kernel that the call launches, while it is known; otherwise NULL. */
extern _Thread_local const char *ms_caller_kernel __attribute__((tls_model("initial-exec")));

/* Why bytes are materialised on this thread now (enum ms_reason of state/format.h); 0: because the
 * call needs them. A function that sets it restores the old value. */
extern _Thread_local uint32_t ms_caller_reason __attribute__((tls_model("initial-exec")));

/* How many calls of the shim this thread is in. A signal handler sees the calls that it
 * interrupted, whose locks and claims nobody gives up before the handler ends. */
extern _Thread_local uint32_t ms_calls_inside __attribute__((tls_model("initial-exec")));
