/* SPDX-License-Identifier: Apache-2.0 */
/* Lines of metashard-dump on a terminal: coloured as wholes, cut to its width; plain when piped. */
#ifndef METASHARD_TOOLS_DUMP_LINE_H
#define METASHARD_TOOLS_DUMP_LINE_H

#include <stdbool.h>
#include <stdint.h>

#include "tools/dump/dump.h"

enum color { PLAIN, BOLD, DIM, RED, YELLOW, GREEN, CYAN };

/* Red for a process that was killed, green for one that runs. */
enum color life_color(const struct ms_snapshot *snapshot, enum color otherwise);

/* By --color (auto, always, never) and --width, else as standard output is. False: one of them is not
 * understood, which was said. */
bool line_setup(const struct options *options);

/* One line: cut to the width, with its end. */
void line(enum color color, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* The text in as many lines as it takes, broken between words, each indented. */
void paragraph(enum color color, unsigned indent, const char *text);

/* "12.0 MiB"; the time as "1.234 s", "12.3 ms" or "12.3 us". The buffer is one of a few that take turns. */
const char *bytes_text(uint64_t bytes);
const char *time_text(uint64_t ns);

#endif
