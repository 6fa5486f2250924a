/* SPDX-License-Identifier: Apache-2.0 */
/* The life of the runtime in a process: nothing before ms_lifetime_begin(), the report in
 * ms_lifetime_end(). */
#pragma once

#include "runtime/config/config.h"

/* Reads the configuration and begins to defer. ms_driver must be filled. Called after the program's
 * first successful cuInit; later calls do nothing. `around` is the path of a library through which
 * calls of the program go around the shim, or "". With such a library nothing begins: that is
 * logged, and put on the state page. */
void ms_lifetime_begin(char **environment, const char *around);

/* At exit, writes the summary line and the dump, if started. Calls no driver function. */
void ms_lifetime_end(void);
