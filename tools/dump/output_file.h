/* SPDX-License-Identifier: Apache-2.0 */
/* The files that metashard-dump writes. */
#ifndef METASHARD_TOOLS_DUMP_OUTPUT_FILE_H
#define METASHARD_TOOLS_DUMP_OUTPUT_FILE_H

#include "tools/dump/dump.h"

/* True for "-"; false for NULL. */
bool is_standard(const char *path);

/* Each writes a file, or standard output for "-". Reports a failure and returns false. */
bool write_html(const char *path, const struct view *view);
bool write_trace(const char *path, const struct view *view);

/* Writes what `write` writes, in the same way; `write` returns false if out of memory. */
bool write_output(const char *path, const struct view *view,
                  bool (*write)(FILE *file, const struct view *view));

#endif
