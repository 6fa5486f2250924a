/* SPDX-License-Identifier: Apache-2.0 */
/* Arrival of a plan: parses and activates it, and materialises what it gives to this rank. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "runtime/document/fault.h"

/* `name` is for messages. On failure the fault has the reason, and the old plan stays active. */
bool ms_arrive_text(const char *text, size_t bytes, const char *name, struct ms_fault *fault);
bool ms_arrive_file(const char *path, struct ms_fault *fault);

/* Writes the status for the socket and metashard_status, one JSON object in one line, cut to
 * `bytes` including the NUL. Returns its full length without the NUL. */
size_t ms_arrive_status(char *text, size_t bytes);
