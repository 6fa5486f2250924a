/* SPDX-License-Identifier: Apache-2.0 */
/* The shim's start: by the program's own cuInit, and then by its first allocation. */
#pragma once

#include <stdbool.h>

/* True if the shim may defer the allocation that the program makes. The first call prepares what
 * only deferring needs, or steps aside if the driver lacks functions. */
bool ms_ready_to_defer(void);
