/* SPDX-License-Identifier: Apache-2.0 */
/* Whether the shim is off, and its start: by the program's own cuInit, then by its first allocation. */
#pragma once

#include <stdbool.h>

/* True with METASHARD=off: programs get the driver's functions. Known from the constructor on. */
bool ms_is_off(void);

/* The program allocates: true if the shim may defer that. The first call makes ready what only
 * deferring needs, or steps aside if the driver lacks functions. */
bool ms_ready_to_defer(void);
