/* SPDX-License-Identifier: Apache-2.0 */
/* The control socket (control.h): connections, and requests in them. Only the control thread uses
 * it, except for opening, before the thread starts, and closing, after it ends. */
#pragma once

#include <poll.h>
#include <stdbool.h>
#include <stddef.h>

enum { MS_SOCKET_CLIENTS = 32, MS_SOCKET_POLLED = 1 + MS_SOCKET_CLIENTS };

/* Replaces a socket that no process serves. Returns false if it cannot be made, which is logged. */
bool ms_socket_open(const char *path);

/* Closes all connections, and removes the socket if its name still belongs to this process. */
void ms_socket_close(void);

/* Lists the descriptors to poll; returns how many. */
size_t ms_socket_list(struct pollfd *polled_out);

/* Serves what is ready; an answer may take as long as a plan does. */
void ms_socket_serve(const struct pollfd *polled, size_t count);
