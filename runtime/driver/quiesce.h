/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The calls of the program under way, from the entry into the shim to the driver's answer. What
 * holds the program up (fill/hold_up.h) lets new ones wait, waits until there is none, and lets
 * them go when it has ended.
 *
 *     another thread   | call |          | waits                         | call
 *     the suspension          | begin    : none is under way | ... | end |
 *
 * Counting costs a call two atomic additions. So calls are counted where a suspension is to be
 * expected: from the start on if it can be asked for from outside, else from the first on. Not
 * known is a call that was under way when counting began: it gets 100 ms, since a thread of a busy
 * machine may not run for a while. Nor is one known that is not modelled (shim/seal.h), after it
 * has left the shim: it gets 10 ms.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "runtime/driver/flags.h"

/* This thread's call is counted. */
extern _Thread_local bool ms_quiesce_is_counted __attribute__((tls_model("initial-exec")));

/* A call begins, while calls are counted: it waits for a suspension that is under way. Calls within
 * it are part of it. */
void ms_quiesce_enter(void);

/* A call that is counted ends. */
void ms_quiesce_leave(void);

/* Calls are counted from now on. */
void ms_quiesce_start(void);

/* One thread at a time. Holds calls up, those of this thread excepted. False, and they are not held
 * up: within the time some call under way has not returned. */
bool ms_quiesce_begin(uint64_t ms);
void ms_quiesce_end(void);
