/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Settling: the end of a window of deferral. What is still deferred is a debt (a file may be
 * overwritten, a launch costs a look at every parameter), so it is materialised in one pass once the
 * program has moved on: it launches work, and for METASHARD_SETTLE_MS nothing was allocated or
 * recorded. The next deferred allocation opens a new window by itself.
 */
#ifndef METASHARD_RUNTIME_FILL_SETTLE_H
#define METASHARD_RUNTIME_FILL_SETTLE_H

/* The program launched work. May settle. */
void ms_settle_consider(void);

/* Settles now. `why` is a clause for the log and the state page, and is kept. What cannot be materialised stays deferred,
 * and is not tried again before something new is deferred. */
void ms_settle_now(const char *why);

#endif
