/* SPDX-License-Identifier: Apache-2.0 */
/* Which function of the shim stands in for which of the driver's. */
#pragma once

#include <stdbool.h>

#include "shim/entries.h"

/*
 * Returns what the program gets instead of `real`, which the driver returned for the name `base`,
 * version and per-thread flag: the shim's function, a spare thunk if the table does not know the
 * function, or `real` itself.
 */
void *ms_substitute(void *real, const char *base, int version, bool per_thread);

/* True if the shim has a function for the entry. */
bool ms_has_wrapper(enum ms_entry entry);
