/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Settling: the end of a window of deferral. Deferred bytes have a cost (a file may be overwritten,
 * and each launch has its parameters searched), so they are materialised together once the program
 * has moved on: it launches work, and for METASHARD_SETTLE_MS it allocated and recorded nothing.
 * The next deferred allocation opens a new window.
 */
#pragma once

/* Settles now. `why` is a clause for the log and the state page; it must stay valid. What cannot be
 * materialised stays deferred, and is not tried again until something new is deferred. */
void ms_settle_now(const char *why);
