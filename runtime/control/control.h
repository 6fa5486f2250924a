/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What reaches a process from outside: the file of METASHARD_PLAN, which is read at the start and
 * checked four times a second, the socket of METASHARD_CONTROL, and the signal of
 * METASHARD_SUSPEND_SIGNAL. One thread with all signals blocked serves them; it runs
 * only if one of them is set.
 *
 * The socket is a UNIX stream socket with mode 0600; a peer of another user gets an error. A
 * request is one line, and its answer is one line, "ok ..." or "error ...". Whoever is accepted is
 * answered, in the order in which they connected, however long another request takes. What is no
 * request ends the connection, behind its answer; so do 10 s without one:
 *
 *     plan BYTES     followed by a plan of so many bytes, which becomes active; "ok" when what it
 *                    gives to this rank is in memory
 *     materialise    materialises everything deferred, as when the program settles
 *     suspend        gives device memory back; "ok " and a JSON object (suspension.h)
 *     suspend FOLDER the same, and what has to wait is in a file of that folder
 *     resume         takes it back
 *     status         "ok " and a JSON object (ms_control_status)
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "runtime/document/fault.h"

/* Reads the plan if its file exists; may start the thread. Called once, at the start. */
void ms_control_start(void);

/* A plan arrives: it becomes active, and what it gives to this rank comes into memory. `name` is
 * for messages. On failure the fault has the reason, and the old plan stays active. */
bool ms_control_text(const char *text, size_t bytes, const char *name, struct ms_fault *fault);
bool ms_control_file(const char *path, struct ms_fault *fault);

/* Writes the status for the socket and metashard_status, one JSON object in one line, cut to
 * `bytes` including the NUL. Returns its full length without the NUL. */
size_t ms_control_status(char *text, size_t bytes);
