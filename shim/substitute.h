/* SPDX-License-Identifier: Apache-2.0 */
/* The shim's functions that stand in for the driver's. */
#pragma once

#include <stdbool.h>

#include "shim/entries.h"

/*
 * Returns the function that the program gets instead of `real`, the driver's answer for the name
 * `base`, version and per-thread flag: the shim's function, a spare thunk if the table does not
 * know `real`, or `real` itself.
 */
void *ms_substitute(void *real, const char *base, int version, bool per_thread);

/* True if the shim has a function for the entry. */
bool ms_has_wrapper(enum ms_entry entry);
