/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Holding the program up, for what may drop bytes that the program could write meanwhile: a
 * suspension, and a plan that takes memory back in which something was written. Then no call of the
 * program is under way, and no work of its is queued.
 */
#pragma once

#include <stdbool.h>

#include "runtime/document/fault.h"

/* The caller holds no claim. Waits up to METASHARD_SUSPEND_MS. False: nothing is held up, and the
 * fault says why. */
bool ms_hold_up_begin(struct ms_fault *fault);

/* Again, when all that the caller needs is claimed: threads of the shim may have queued work. */
bool ms_hold_up_is_quiet(void);

void ms_hold_up_end(void);
