/* SPDX-License-Identifier: Apache-2.0 */
/* Suspends and resumes the process (fill/suspend.h) for metashard.h and the control socket. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "runtime/document/fault.h"

/* folder: an absolute path, or NULL or "" for host memory. Writes the figures of the suspension to
 * `text`, as one JSON object in one line, cut to `bytes`. False: nothing has changed. */
bool ms_suspension_begin(const char *folder, char *text, size_t bytes, struct ms_fault *fault);

bool ms_suspension_end(struct ms_fault *fault);
