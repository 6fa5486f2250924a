/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What reaches a process from outside: the file of METASHARD_PLAN, which is read at the start and
 * checked four times a second, and the socket of METASHARD_CONTROL. One thread with all signals
 * blocked serves both; it runs only if one of the two is set.
 *
 * The socket is a UNIX stream socket with mode 0600; a peer of another user gets an error. A
 * request is one line, and its answer is one line, "ok ..." or "error ...":
 *
 *     plan BYTES     followed by a plan of so many bytes, which becomes active; "ok" when what it
 *                    gives to this rank is in memory
 *     materialise    materialises everything deferred, as when the program settles
 *     status         "ok " and a JSON object (arrive.h)
 */
#pragma once

/* Reads the plan if its file exists; may start the thread. Called once, at the start. */
void ms_control_start(void);
