/* SPDX-License-Identifier: Apache-2.0 */
/* What the process leaves at exit: a summary line, explanations, and a copy of the state page. */
#ifndef METASHARD_RUNTIME_START_EXIT_REPORT_H
#define METASHARD_RUNTIME_START_EXIT_REPORT_H

#include "runtime/config/config.h"

void ms_report(const struct ms_config *config);

/* Copies the state page, which metashard-dump shows, to a file. After its end. */
void ms_report_dump(const char *path);

#endif
