/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The command line of a tool: a command, files, and options, each with the commands that take it.
 * It is read from tables, which also make the completions and the check of the manual pages
 * (completions/tool_table.py).
 */
#ifndef METASHARD_TOOLS_COMMAND_LINE_H
#define METASHARD_TOOLS_COMMAND_LINE_H

#include <getopt.h>
#include <stddef.h>

/* Defined by each tool. Its members for options are `const char *`, NULL if not given. */
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
};
#define TO(member) #member, offsetof(struct options, member)

/* A short option for a long one. */
struct letter {
    char letter;
    const char *name;
};

/* The words that are not options. */
struct words {
    const char *command; /* NULL if there is none */
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

/* Fills `options`, which is all zero, and runs the command. Reports errors on stderr; if the output
 * cannot be written, the result is `bad`. */
int command_line_run(const struct command_line *line, int argc, char **argv,
                     struct options *options);

#endif
