/* SPDX-License-Identifier: Apache-2.0 */
/* The shim's start: by the program's own cuInit, and then by its first allocation. */
#pragma once

#include <stdbool.h>

/* The program allocates: true if the shim may defer that. The first call makes ready what only
 * deferring needs, or steps aside if the driver lacks functions. */
bool ms_ready_to_defer(void);
