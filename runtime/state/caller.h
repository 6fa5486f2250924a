/* SPDX-License-Identifier: Apache-2.0 */
/* The driver function that the program is in, for messages about what a call has caused. */
#ifndef METASHARD_RUNTIME_STATE_CALLER_H
#define METASHARD_RUNTIME_STATE_CALLER_H

#include <stdint.h>

/* Set by the entry points that may do something; a string that lives on. The preloaded object has static
 * thread-local storage, so that this is one store. NULL: none yet, or a thread of our own. */
extern _Thread_local const char *ms_caller __attribute__((tls_model("initial-exec")));

/* The kernel that it launches, while that is known; else NULL. */
extern _Thread_local const char *ms_caller_kernel __attribute__((tls_model("initial-exec")));

/* Why bytes are brought into memory on this thread now (enum ms_reason of state/format.h); 0: because the call
 * needs them. Whoever sets it puts back what was there. */
extern _Thread_local uint32_t ms_caller_reason __attribute__((tls_model("initial-exec")));

#endif
