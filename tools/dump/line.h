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

/* Prints one line, cut to the width, where it ends with an ellipsis. */
void line(enum color color, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Prints the text in as many lines as it takes, broken between words, each indented. */
void paragraph(enum color color, unsigned indent, const char *text);

/* The same, but the first line is not indented, and without a width there is only that one. */
void hanging(enum color color, unsigned indent, const char *text);

/* How many characters of a line are left; very many without a width. */
size_t line_room(size_t used);

/* The width is less than so many characters. */
bool line_is_narrow(size_t characters);

size_t text_length(const char *text);

/* The text in so many characters: all of it, or its begin or its end beside an ellipsis. Results
 * are a few buffers in turn. */
const char *text_begin(const char *text, size_t room);
const char *text_end(const char *text, size_t room);

/* "12.0 MiB"; a time as "1.234 s", "12.3 ms" or "12.3 us". Results are a few buffers in turn. */
const char *bytes_text(uint64_t bytes);
const char *time_text(uint64_t ns);
const char *total_text(const struct totals *totals, enum total which);
