/* SPDX-License-Identifier: Apache-2.0 */
/* A plan arrives: it is parsed, put in force, and what it gives to this rank is materialised. */
#ifndef METASHARD_RUNTIME_CONTROL_ARRIVE_H
#define METASHARD_RUNTIME_CONTROL_ARRIVE_H

#include <stdbool.h>
#include <stddef.h>

#include "runtime/document/fault.h"

/* `name` is for messages. False: the fault says why, and the plan that was in force still is. */
bool ms_arrive_text(const char *text, size_t bytes, const char *name, struct ms_fault *fault);
bool ms_arrive_file(const char *path, struct ms_fault *fault);

/* What is told over the socket and by metashard_status: one JSON object in one line, cut to `bytes` with its
 * NUL. Returns the length that it has whole. */
size_t ms_arrive_status(char *text, size_t bytes);

#endif
