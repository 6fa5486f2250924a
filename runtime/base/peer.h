/* SPDX-License-Identifier: Apache-2.0 */
/* The other side of a connected UNIX socket. */
#pragma once

#include <stdbool.h>
#include <sys/socket.h>
#include <unistd.h>

/* True if the peer is a process of the same user. */
static inline bool ms_peer_is_own_user(int descriptor)
{
    struct ucred peer;
    socklen_t length = sizeof(peer);
    return getsockopt(descriptor, SOL_SOCKET, SO_PEERCRED, &peer, &length) == 0 &&
           peer.uid == geteuid();
}
