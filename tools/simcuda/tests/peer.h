/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Another process with an event, for tests that wait for one: the program tools/simcuda/peer,
 * beside the simulated driver, without what is preloaded here. It ends when this process does.
 */
#pragma once

#include <cuda.h>
#include <fcntl.h>
#include <libgen.h>
#include <limits.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tools/simcuda/driver/order.h"

extern char **environ;

struct sim_peer {
    int to, from;
};

__attribute__((noreturn)) static inline void sim_peer_fail(const char *what)
{
    perror(what);
    exit(2);
}

/* The settings of this side are not the other's. */
static inline char **sim_peer_environment(void)
{
    size_t count = 0, kept = 0;
    while (environ[count] != NULL)
        count++;
    char **out = (char **)calloc(count + 1, sizeof(out[0]));
    for (size_t i = 0; i < count; i++) {
        if (strncmp(environ[i], "LD_PRELOAD=", 11) != 0 && strncmp(environ[i], "SIMCUDA_", 8) != 0)
            out[kept++] = environ[i];
    }
    return out;
}

/* In the folder tools/simcuda that is beside the program, or beside a folder above it. */
static inline struct sim_peer sim_peer_start(void)
{
    char self[PATH_MAX] = {0}, path[PATH_MAX + 32];
    int to[2], from[2];
    pid_t process;
    posix_spawn_file_actions_t actions;
    if (readlink("/proc/self/exe", self, sizeof(self) - 1) < 0 || pipe2(to, O_CLOEXEC) != 0 ||
        pipe2(from, O_CLOEXEC) != 0)
        sim_peer_fail("peer");
    do
        snprintf(path, sizeof(path), "%s/tools/simcuda/peer", dirname(self));
    while (access(path, X_OK) != 0 && strlen(self) > 1);
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, to[0], STDIN_FILENO);
    posix_spawn_file_actions_adddup2(&actions, from[1], STDOUT_FILENO);
    char *arguments[] = {path, NULL};
    char **environment = sim_peer_environment();
    if (posix_spawn(&process, path, &actions, NULL, arguments, environment) != 0)
        sim_peer_fail(path);
    posix_spawn_file_actions_destroy(&actions);
    free(environment);
    close(to[0]);
    close(from[1]);
    return (struct sim_peer){to[1], from[0]};
}

/* Records its event on a stream that is held back. The handle is the same each time. */
static inline CUipcEventHandle sim_peer_record(struct sim_peer peer)
{
    CUipcEventHandle handle;
    if (write(peer.to, "r", 1) != 1 || read(peer.from, &handle, sizeof(handle)) != sizeof(handle))
        sim_peer_fail("peer");
    return handle;
}

/* The stream goes on, and the record is done soon. */
static inline void sim_peer_go(struct sim_peer peer)
{
    sim_order_give();
    if (write(peer.to, "g", 1) != 1)
        sim_peer_fail("peer");
}
