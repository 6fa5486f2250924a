/* SPDX-License-Identifier: Apache-2.0 */
/* Where state pages are, and whether their processes live. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "runtime/config/config.h"

#define MS_STATE_PREFIX "metashard-"
#define MS_STATE_SUFFIX ".state"

/* The folder that the configuration selects. `index` counts the places to try in turn. Returns
 * false after the last, or if METASHARD_STATE_DIR is empty. */
bool ms_state_folder(const struct ms_config *config, unsigned index, char path_out[MS_PATH_BYTES]);

/* True for the name of a state page. */
bool ms_state_is_page(const char *name);

/* What identifies a process on this machine. */
struct ms_state_identity {
    uint64_t pid, start_ticks, pid_namespace;
    char boot[40];
};
void ms_state_identify(struct ms_state_identity *identity_out);

/* Whether the process runs, as far as its numbers mean the same here. */
enum ms_life { MS_LIFE_ALIVE, MS_LIFE_GONE, MS_LIFE_UNKNOWN };
enum ms_life ms_state_life(const struct ms_state_identity *identity);

/* The same, by a process that has identified itself. */
enum ms_life ms_state_life_beside(const struct ms_state_identity *own,
                                  const struct ms_state_identity *identity);
