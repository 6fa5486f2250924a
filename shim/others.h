/* SPDX-License-Identifier: Apache-2.0 */
/* Other libraries that replace functions of the driver, as quotas and profilers do. */
#pragma once

/* Logs a line for one that stands behind the shim, and so sees no call of the process: what it
 * limits is not limited, what it counts is not counted. Requires that the driver is known. */
void ms_others_tell(void);
