/* SPDX-License-Identifier: Apache-2.0 */
/* Small texts that outlive the process, as files in the folder of state pages. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "runtime/config/config.h"

/*
 * Reads a text of less than `bytes` bytes. False if there is none, or it is longer, or another user
 * could have written it.
 */
bool ms_kept_text_read(const struct ms_config *config, const char *name, char *text_out,
                       size_t bytes);

/* Writes it whole or not at all. Errors are silent: the next process finds none. */
void ms_kept_text_write(const struct ms_config *config, const char *name, const char *text);
