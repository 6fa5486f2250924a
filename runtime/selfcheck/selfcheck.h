/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checks once a device whether the driver does what the shim relies on (facts.def).
 *
 * A result is kept as a text beside the state pages, for the driver's version, the device and the
 * boot, and the next process reads it. The resolver is asked in each process: a tool that is loaded
 * into one process may answer in its place.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "runtime/driver/driver.h"

/* True if the resolver answers as it should. False: `seen` has its answer. */
typedef bool ms_resolver_check(char *seen, size_t bytes);
void ms_selfcheck_set_resolver(ms_resolver_check *check);

/*
 * True if an allocation may be deferred in the current context, which is of that device. The first
 * call checks, while other threads that ask for the device wait. If the check cannot finish (memory
 * is short, the device is busy, a capture begins), all facts count as true, and a later call checks
 * again.
 */
bool ms_selfcheck_allows(CUcontext context, CUdevice device);
