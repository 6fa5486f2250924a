/* SPDX-License-Identifier: Apache-2.0 */
/* What metashard-dump writes into files of its own. */
#ifndef METASHARD_TOOLS_DUMP_OUTPUT_FILE_H
#define METASHARD_TOOLS_DUMP_OUTPUT_FILE_H

#include "tools/dump/dump.h"

/* "-"; NULL is no path. */
bool is_standard(const char *path);

/* Each writes a file, or standard output for "-". False: it could not, which was said. */
bool write_html(const char *path, const struct view *view);
bool write_trace(const char *path, const struct view *view);

/* The same of what `write` writes; it returns false when memory is out. */
bool write_output(const char *path, const struct view *view,
                  bool (*write)(FILE *file, const struct view *view));

#endif
