/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/state/process.h"

#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Reads a small file whole, as a text. */
static bool read_text(const char *path, char *text_out, size_t bytes)
{
    const int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return false;
    const ssize_t got = read(file, text_out, bytes - 1);
    close(file);
    if (got < 0)
        return false;
    text_out[got] = '\0';
    return true;
}

/* Field 22 of /proc/PID/stat; the name in field 2 may hold parentheses. 0: no such process. */
static uint64_t start_of(uint64_t pid, bool *is_dead_out)
{
    char path[64], text[1024];
    *is_dead_out = false;
    snprintf(path, sizeof(path), "/proc/%llu/stat", (unsigned long long)pid);
    if (!read_text(path, text, sizeof(text)))
        return 0;
    const char *at = strrchr(text, ')');
    if (at == NULL)
        return 0;
    at += 2;
    *is_dead_out = *at == 'Z' || *at == 'X';
    for (int field = 3; field < 22 && at != NULL; field++) {
        at = strchr(at, ' ');
        at = at != NULL ? at + 1 : NULL;
    }
    return at != NULL ? strtoull(at, NULL, 10) : 0;
}

void ms_process_identify(struct ms_process_identity *identity_out)
{
    bool is_dead;
    struct stat stat_of;
    *identity_out = (struct ms_process_identity){.pid = (uint64_t)getpid()};
    identity_out->start_ticks = start_of(identity_out->pid, &is_dead);
    if (stat("/proc/self/ns/pid", &stat_of) == 0)
        identity_out->pid_namespace = stat_of.st_ino;
    if (!read_text("/proc/sys/kernel/random/boot_id", identity_out->boot,
                   sizeof(identity_out->boot)))
        identity_out->boot[0] = '\0';
    identity_out->boot[strcspn(identity_out->boot, "\n")] = '\0';
}

enum ms_life ms_process_life(const struct ms_process_identity *own,
                             const struct ms_state_process *process)
{
    struct ms_process_identity found;
    bool is_dead;
    if (own == NULL) {
        ms_process_identify(&found);
        own = &found;
    }
    if (strncmp(own->boot, process->boot, sizeof(process->boot)) != 0)
        return own->boot[0] != '\0' && process->boot[0] != '\0' ? MS_LIFE_GONE : MS_LIFE_UNKNOWN;
    if (own->pid_namespace != process->pid_namespace || own->pid_namespace == 0)
        return MS_LIFE_UNKNOWN;
    const uint64_t start = start_of(process->pid, &is_dead);
    return start == process->start_ticks && start != 0 && !is_dead ? MS_LIFE_ALIVE : MS_LIFE_GONE;
}
