/* SPDX-License-Identifier: Apache-2.0 */
/* Where state pages lie, and whether their processes live. */
#ifndef METASHARD_RUNTIME_STATE_FOLDER_H
#define METASHARD_RUNTIME_STATE_FOLDER_H

#include <stdbool.h>
#include <stdint.h>

#include "runtime/config/config.h"

#define MS_STATE_PREFIX "metashard-"
#define MS_STATE_SUFFIX ".state"

/* The folder that the configuration means. False: none; METASHARD_STATE_DIR is empty. `index` counts the
 * places that are tried one after the other; false also behind the last. */
bool ms_state_folder(const struct ms_config *config, unsigned index, char path_out[MS_PATH_BYTES]);

/* True for the name of a state page. */
bool ms_state_is_page(const char *name);

/* A process as this machine tells it apart from all others. */
struct ms_state_identity {
    uint64_t pid, start_ticks, pid_namespace;
    char boot[40];
};
void ms_state_identify(struct ms_state_identity *identity_out);

/* Whether it runs: as far as can be told here, where its numbers mean the same. */
enum ms_life { MS_LIFE_ALIVE, MS_LIFE_GONE, MS_LIFE_UNKNOWN };
enum ms_life ms_state_life(const struct ms_state_identity *identity);

#endif
