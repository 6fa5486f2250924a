/* SPDX-License-Identifier: Apache-2.0 */
/* Whether the shim is off. */
#pragma once

#include <stdbool.h>

/* True with METASHARD=off: programs get the driver's functions. A constructor sets it. */
bool ms_is_off(void);
