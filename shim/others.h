/* SPDX-License-Identifier: Apache-2.0 */
/* Other libraries that replace functions of the driver, such as quotas and profilers. All functions
 * require that the driver is known. */
#pragma once

/* Logs a line for a library that sees no call of the process, so that its limits or counts do not
 * work. Either it stands behind the shim; or it stands before, but does not hand out its functions,
 * because it replaces only the driver's, and gets the shim's. */
void ms_others_tell(void);

/* The path of a library before the shim whose dlsym hands out the driver's own functions, so that
 * the shim would not see all calls; "" if there is none. Asks its dlsym, as a program would. */
const char *ms_others_around(void);

/* The path of a library before the shim that answers dlsym or replaces functions of the driver, so
 * that calls may go around the shim; "" if there is none. */
const char *ms_others_before(void);
