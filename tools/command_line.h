/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The command line of a tool: a command, files, and options, each with the commands that take it.
 * It is read from tables, which also make the completions and the check of the manual pages
 * (completions/tool_table.py).
 */
#pragma once

#include <getopt.h>
#include <stddef.h>

/* Exit statuses. BAD: an input does not exist or is not valid, or the output cannot be written.
 * USAGE: the command line is wrong, and one line said how. */
enum { GOOD, BAD, USAGE };

/* The words that are not options. */
struct words {
    const char *const *files; /* ended by NULL */
    size_t file_count;
};

/* Defined by each tool: first its words, then its options, each a `const char *`, NULL if it is not
 * given. */
struct options;

struct command {
    const char *name;
    unsigned bit;
    int (*run)(const struct options *); /* returns the exit status */
    size_t files_least, files_most;
};

/* `value` is the member for the text; an option without an argument gets its own name as text. */
struct row {
    const char *name;
    size_t value;
    int argument; /* no_argument or required_argument */
    unsigned commands;
    char letter; /* that stands for it, or 0 */
};
#define TO(member) #member, offsetof(struct options, member)

/* An option of other programs, which people try; and what to type. */
struct instead {
    const char *name, *words;
};

struct command_line {
    const char *program, *usage;
    const struct command *commands; /* ended by one without a name, as the rows */
    const struct row *rows;         /* two of them are help and version; quiet discards stdout */
    const struct instead *instead;  /* ended by one without a name; or NULL */
    const char *explained; /* a line for each option, behind the usage that --help prints */
};

/* Reports what is wrong with the command line, in one printable line. Returns USAGE. */
int usage_fault(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Fills `options`, which is all zero, and runs the command. Reports each error in one line on
 * stderr; without a command, prints the usage there. If the output cannot be written, the result is
 * BAD. */
int command_line_run(const struct command_line *line, int argc, char **argv,
                     struct options *options);
