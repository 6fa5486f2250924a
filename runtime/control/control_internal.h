/* SPDX-License-Identifier: Apache-2.0 */
/* The control socket (control.h), for its unit test: connections and their requests. Only the
 * control thread uses it, except to open it before the thread starts and close it afterwards. */
#pragma once

#include <stdbool.h>

enum { MS_CONTROL_CLIENTS = 32 };

/* Makes the socket, in place of one that no process serves. Returns false, and logs it, on
 * failure. */
bool ms_control_open(const char *path);

/* Closes all connections, and removes the socket if it is still this process's. */
void ms_control_close(void);

/* Waits at most patience_ms (-1: for ever) for a client or the signal, and serves it. Returns
 * false, and serves nothing, if `wake` is readable. */
bool ms_control_serve(int wake, int patience_ms);
