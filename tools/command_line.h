/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The command line of a tool: a command, files, and options, each of which says which commands take it. Read
 * from tables, from which completions and the check of the manual pages are made too (completions/tool_table.py).
 */
#ifndef METASHARD_TOOLS_COMMAND_LINE_H
#define METASHARD_TOOLS_COMMAND_LINE_H

#include <getopt.h>
#include <stddef.h>

/* The tool's own; its members for options are `const char *`, NULL when the option is not given. */
struct options;

struct command {
    const char *name;
    unsigned bit;
    int (*run)(const struct options *); /* returns the exit status */
    size_t files_least, files_most;
};

/* `value` is where the text goes; an option without an argument gets its own name as text. */
struct row {
    const char *name;
    size_t value;
    int argument; /* no_argument or required_argument */
    unsigned commands;
};
#define TO(member) #member, offsetof(struct options, member)

/* A short option for a long one. */
struct letter {
    char letter;
    const char *name;
};

/* What is no option. */
struct words {
    const char *command; /* NULL: none */
    const char **files;
    size_t file_count;
};

struct command_line {
    const char *program, *usage;
    const struct command *commands;
    size_t command_count;
    const struct row *rows; /* one of them is help */
    size_t row_count;
    const struct letter *letters;
    size_t letter_count;
    void (*take_words)(struct options *options, const struct words *words);
    int good, bad, wrong_usage; /* exit statuses */
};

/* Fills `options`, which is all zero, and runs the command. What is wrong is said on stderr; output that cannot be
 * written is bad. */
int command_line_run(const struct command_line *line, int argc, char **argv,
                     struct options *options);

#endif
