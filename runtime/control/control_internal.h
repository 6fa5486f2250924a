/* SPDX-License-Identifier: Apache-2.0 */
/* The control socket (control.h), for its unit test: connections, and requests in them. Only the
 * control thread uses it, except for opening, before the thread starts, and closing, after it
 * ends. */
#pragma once

#include <stdbool.h>

enum { MS_CONTROL_CLIENTS = 32 };

/* Replaces a socket that no process serves. Returns false if it cannot be made, which is logged. */
bool ms_control_open(const char *path);

/* Closes all connections, and removes the socket if its name still belongs to this process. */
void ms_control_close(void);

/* Waits until something is ready, at most so many milliseconds (-1: for ever), and serves it.
 * Returns false if `wake` can be read, instead. */
bool ms_control_serve(int wake, int patience_ms);
