/* SPDX-License-Identifier: Apache-2.0 */
/* Lines of metashard-dump on a terminal: each in one colour, cut to its width; plain when piped. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "tools/dump/dump.h"

enum color { PLAIN, BOLD, DIM, RED, YELLOW, GREEN, CYAN };

/* Red for a process that was killed, green for one that runs. */
enum color life_color(const struct ms_snapshot *snapshot, enum color otherwise);

/* By --color (auto, always, never) and --width, else as standard output is. False: one of them is
 * not understood, which was said. */
bool line_setup(const struct options *options);

/* Prints one line, cut to the width, with its end. */
void line(enum color color, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Prints the text in as many lines as it takes, broken between words, each indented. */
void paragraph(enum color color, unsigned indent, const char *text);

/* "12.0 MiB"; a time as "1.234 s", "12.3 ms" or "12.3 us". Results are a few buffers in turn. */
const char *bytes_text(uint64_t bytes);
const char *time_text(uint64_t ns);
const char *total_text(const struct totals *totals, enum total which);
