/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Settling: the end of a window of deferral. Deferred bytes have a cost (a file may be overwritten,
 * and the shim searches the parameters of each launch), so the shim materialises them together once
 * the program has moved on: it launches work, and for METASHARD_SETTLE_MS has allocated and
 * recorded nothing. The next deferred allocation opens a new window.
 */
#pragma once

/* Settles now. `why` is a clause for the log and the state page, and must stay valid. Bytes that
 * cannot be materialised stay deferred, and are not tried again until something new is deferred. */
void ms_settle_now(const char *why);
