/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Holding the program up, while the shim drops bytes that the program could write: for a
 * suspension, and for a plan that takes back memory that was written. Meanwhile no call of the
 * program is under way, and none of its work is queued.
 */
#pragma once

#include <stdbool.h>

#include "runtime/document/fault.h"
#include "runtime/driver/quiesce.h"

/* Waits up to METASHARD_SUSPEND_MS. False: the program goes on, and *fault says why. The caller
 * holds no claim. */
bool ms_hold_up_begin(struct ms_fault *fault);

/* Checks again that nothing is queued, after the caller has made its claims: threads of the shim
 * may have queued work meanwhile. */
bool ms_hold_up_is_quiet(void);

static inline void ms_hold_up_end(void)
{
    ms_quiesce_end();
}
