/* SPDX-License-Identifier: Apache-2.0 */
/* What identifies a process on this machine, and whether it lives. */
#pragma once

#include <stdint.h>

#include "runtime/state/format.h"

struct ms_process_identity {
    uint64_t pid, start_ticks, pid_namespace;
    char boot[40];
};
/* Of this process. */
void ms_process_identify(struct ms_process_identity *identity_out);

/* Whether the process of a page runs, as far as its numbers mean the same here. `own` is what
 * ms_process_identify found, or NULL. */
enum ms_life { MS_LIFE_ALIVE, MS_LIFE_GONE, MS_LIFE_UNKNOWN };
enum ms_life ms_process_life(const struct ms_process_identity *own,
                             const struct ms_state_process *process);
