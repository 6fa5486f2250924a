/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Counts the program's calls under way, from the entry into the shim to the driver's answer. A
 * thread that holds the program up (fill/hold_up.h) makes new calls wait, waits until no call is
 * under way, and finally lets the waiting calls go.
 *
 *     another thread   | call |          | waits                         | call
 *     the suspension          | begin    : none is under way | ... | end |
 *
 * Counting costs a call two atomic additions, so calls are counted only where a suspension is to be
 * expected: from the start if one can be requested from outside, else from the first suspension on.
 * Two kinds of calls under way are not counted, and get time to reach the driver: a call that began
 * before counting gets 100 ms, as a busy machine may not run its thread for a while; a call that is
 * not modelled (shim/seal.h) gets 10 ms after it has left the shim.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "runtime/driver/flags.h"

/* This thread's call is counted. */
extern _Thread_local bool ms_quiesce_is_counted __attribute__((tls_model("initial-exec")));

/* Begins a call, while calls are counted; waits while calls are held up. Nested calls are part of
 * the call. */
void ms_quiesce_enter(void);

/* Ends a counted call. */
void ms_quiesce_leave(void);

/* Starts to count calls. */
void ms_quiesce_start(void);

/* Holds up the calls of all other threads; one thread at a time may do so. Returns false, and holds
 * nothing up, if a call under way has not returned within `ms` milliseconds. */
bool ms_quiesce_begin(uint64_t ms);
void ms_quiesce_end(void);
