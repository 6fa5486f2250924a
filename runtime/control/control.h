/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What reaches a process from outside: the file of METASHARD_PLAN, which is read at the start and looked at
 * four times a second, and the socket of METASHARD_CONTROL. One thread, with all signals blocked, which is
 * there only when one of the two is set.
 *
 * Socket: a UNIX stream socket with mode 0600; a peer of another user gets an error. A request is a line, and
 * its answer is one line, "ok ..." or "error ...":
 *
 *     plan BYTES     followed by so many bytes: a plan, which is put in force; "ok" when what it gives to
 *                    this rank is in memory
 *     materialise    everything deferred is materialised, as when the program settles
 *     status         "ok " and a JSON object (arrive.h)
 */
#ifndef METASHARD_RUNTIME_CONTROL_CONTROL_H
#define METASHARD_RUNTIME_CONTROL_CONTROL_H

/* Reads the plan, when its file is there; may start the thread. Once, at the start. */
void ms_control_start(void);

#endif
