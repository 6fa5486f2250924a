/* SPDX-License-Identifier: Apache-2.0 */
/* The control socket (control.h): connections, and requests in them. Used by the control thread alone, apart
 * from opening, before it is there, and closing, when it is gone. */
#ifndef METASHARD_RUNTIME_CONTROL_SOCKET_H
#define METASHARD_RUNTIME_CONTROL_SOCKET_H

#include <poll.h>
#include <stdbool.h>
#include <stddef.h>

enum { MS_SOCKET_CLIENTS = 32, MS_SOCKET_POLLED = 1 + MS_SOCKET_CLIENTS };

/* A socket that is there and that nobody serves is replaced. False: it cannot be made, as was logged. */
bool ms_socket_open(const char *path);

/* Closes all connections, and removes the socket if it is still ours. */
void ms_socket_close(void);

/* What to wait for; returns how many. */
size_t ms_socket_list(struct pollfd *polled_out);

/* Serves what is there to serve; answers may take as long as a plan does. */
void ms_socket_serve(const struct pollfd *polled, size_t count);

#endif
