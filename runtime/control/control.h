/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Control of a process from outside: by the file of METASHARD_PLAN, read at the start and checked
 * four times a second, by the socket of METASHARD_CONTROL, and by the signal of
 * METASHARD_SUSPEND_SIGNAL. One thread with all signals blocked serves all three; it runs only if
 * at least one is set.
 *
 * The socket is a UNIX stream socket with mode 0600; a peer of another user gets an error. A
 * request is one line, and its answer is one line, "ok ..." or "error ...". Accepted peers are
 * answered in the order in which they connected, however long a request takes. A line that is not a
 * request gets an error and ends the connection; so do 10 s without a request:
 *
 *     plan BYTES     followed by a plan of so many bytes, which becomes active; "ok" when the bytes
 *                    that the plan gives to this rank are in memory
 *     materialise    materialises everything deferred, as when the program settles
 *     suspend        gives device memory back; "ok " and a JSON object (suspension.h)
 *     suspend FOLDER suspends, and keeps modified data in a file of that folder
 *     resume         ends the suspension
 *     status         "ok " and a JSON object (ms_control_status)
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "runtime/document/fault.h"

/* Reads the plan if its file exists; may start the thread. Called once, at the start. */
void ms_control_start(void);

/* Activates a plan and materialises the bytes that it gives to this rank. `name` is for messages.
 * On failure the fault has the reason, and the old plan stays active. */
bool ms_control_text(const char *text, size_t bytes, const char *name, struct ms_fault *fault);
bool ms_control_file(const char *path, struct ms_fault *fault);

/* Writes the status for the socket and metashard_status as one JSON object in one line, cut to
 * `bytes` including the NUL. Returns the full length without the NUL. */
size_t ms_control_status(char *text, size_t bytes);
