/* SPDX-License-Identifier: Apache-2.0 */
/* Identifies processes on this machine, and tells whether they live. */
#pragma once

#include <stdint.h>

#include "runtime/state/format.h"

struct ms_process_identity {
    uint64_t pid, start_ticks, pid_namespace;
    char boot[40];
};
/* Identifies this process. */
void ms_process_identify(struct ms_process_identity *identity_out);

/* Tells whether the process of a page runs, as far as its numbers mean the same here. `own` is the
 * answer of ms_process_identify, or NULL. */
enum ms_life { MS_LIFE_ALIVE, MS_LIFE_GONE, MS_LIFE_UNKNOWN };
enum ms_life ms_process_life(const struct ms_process_identity *own,
                             const struct ms_state_process *process);
