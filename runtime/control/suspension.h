/* SPDX-License-Identifier: Apache-2.0 */
/* Suspending the process and taking everything back (fill/suspend.h), as metashard.h and the
 * control socket ask for it. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "runtime/document/fault.h"

/* folder: an absolute path, or NULL or "" for host memory. Writes what became of the memory to
 * `text`, as one JSON object in one line, cut to `bytes`. False: nothing has changed. */
bool ms_suspension_begin(const char *folder, char *text, size_t bytes, struct ms_fault *fault);

bool ms_suspension_end(struct ms_fault *fault);
