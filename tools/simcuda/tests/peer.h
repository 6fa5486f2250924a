/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Another process: the program tools/simcuda/peer, beside the simulated driver. It has an event,
 * for tests that wait for one, and nothing of what is preloaded here; or it opens memory of this
 * process, and has what is preloaded. It ends when this process does.
 */
#pragma once

#include <cuda.h>
#include <fcntl.h>
#include <libgen.h>
#include <limits.h>
#include <spawn.h>
#include <stdbool.h>
#include <stdint.h>
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

static inline bool sim_peer_begins(const char *text, const char *begin)
{
    return strncmp(text, begin, strlen(begin)) == 0;
}

/* One that shares memory has the same devices; nothing else of this side is the other's. */
static inline bool sim_peer_keeps(const char *setting, bool is_alike)
{
    if (is_alike)
        return !sim_peer_begins(setting, "METASHARD") &&
               !sim_peer_begins(setting, "SIMCUDA_STATS=") &&
               !sim_peer_begins(setting, "SIMCUDA_LOG=") &&
               !sim_peer_begins(setting, "SIMCUDA_FAULT");
    return !sim_peer_begins(setting, "SIMCUDA_") && !sim_peer_begins(setting, "LD_PRELOAD=");
}

static inline char **sim_peer_environment(bool is_alike)
{
    size_t count = 0, kept = 0;
    while (environ[count] != NULL)
        count++;
    char **out = (char **)calloc(count + 1, sizeof(out[0]));
    for (size_t i = 0; i < count; i++) {
        if (sim_peer_keeps(environ[i], is_alike))
            out[kept++] = environ[i];
    }
    return out;
}

/* In the folder tools/simcuda that is beside the program, or beside a folder above it. */
static inline struct sim_peer sim_peer_start_as(const char *role)
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
    char *arguments[] = {path, (char *)role, NULL};
    char **environment = sim_peer_environment(role != NULL);
    if (posix_spawn(&process, path, &actions, NULL, arguments, environment) != 0)
        sim_peer_fail(path);
    posix_spawn_file_actions_destroy(&actions);
    free(environment);
    close(to[0]);
    close(from[1]);
    return (struct sim_peer){to[1], from[0]};
}

static inline struct sim_peer sim_peer_start(void)
{
    return sim_peer_start_as(NULL);
}

/* The peer's answer about memory of this process. */
struct sim_peer_shared {
    CUresult result; /* of opening it */
    uint64_t sum;    /* of its words, before it added 1 to each */
};

/* By a peer that was started as "memory": it opens the memory, adds 1 to each word, and closes
 * it. */
static inline struct sim_peer_shared sim_peer_add(struct sim_peer peer, CUipcMemHandle handle,
                                                  size_t bytes)
{
    struct sim_peer_shared answer;
    if (write(peer.to, &handle, sizeof(handle)) != sizeof(handle) ||
        write(peer.to, &bytes, sizeof(bytes)) != sizeof(bytes) ||
        read(peer.from, &answer, sizeof(answer)) != sizeof(answer))
        sim_peer_fail("peer");
    return answer;
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
