/* SPDX-License-Identifier: Apache-2.0 */
/* Other libraries that replace functions of the driver, such as quotas and profilers. All functions
 * require that the driver is known. */
#pragma once

/* Logs a line for a library that sees no call of the process, so that its limits or counts do not
 * work: it stands behind the shim; or it stands before the shim, but does not hand out its
 * functions of the driver, because the function that it would replace is the shim's, not the
 * driver's. */
void ms_others_tell(void);

/* The path of a library before the shim whose dlsym hands out the driver's own functions, so that
 * the shim would not see all calls; "" if there is none. Asks the library's dlsym, as a program
 * would. */
const char *ms_others_around(void);

/* The path of a library before the shim that answers dlsym or replaces functions of the driver, so
 * that calls may go around the shim; "" if there is none. */
const char *ms_others_before(void);
