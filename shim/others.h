/* SPDX-License-Identifier: Apache-2.0 */
/* Other libraries that replace functions of the driver, as quotas and profilers do. All functions
 * require that the driver is known. */
#pragma once

/* Logs a line for one that sees no call of the process: what it limits is not limited, what it
 * counts is not counted. It stands behind the shim; or before the shim, and has functions of the
 * driver that it does not hand out, because it takes none but the driver's for one. */
void ms_others_tell(void);

/* The path of a library before the shim whose dlsym hands out the driver's own functions, so that
 * the shim would not see all calls; "" if there is none. Asks that dlsym, as a program would. */
const char *ms_others_around(void);

/* The path of a library before the shim that answers dlsym or replaces functions of the driver, so
 * that calls may go around the shim; "" if there is none. */
const char *ms_others_before(void);
