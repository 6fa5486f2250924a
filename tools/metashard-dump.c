/* SPDX-License-Identifier: Apache-2.0 */
/* metashard-dump: what MetaShard did in a process, from its state page. */
#include <getopt.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "tools/dump.h"

static const char usage[] =
    "usage: metashard-dump list\n"
    "       metashard-dump show PID|FILE... [--json | --events]\n"
    "       metashard-dump show PID|FILE... --watch | [--html OUT] [--trace OUT]\n"
    "       metashard-dump diff PID|FILE PID|FILE\n"
    "       metashard-dump --help\n"
    "each takes --color auto|always|never, and --width CHARACTERS (0: lines are not cut)\n";

enum { LIST = 1, SHOW = 2, DIFF = 4 };

static const struct command {
    const char *name;
    unsigned bit;
    int (*run)(const struct options *);
    size_t files_least, files_most;
} commands[] = {
    {"list", LIST, run_list, 0, 0},
    {"show", SHOW, run_show, 1, MAX_FILES},
    {"diff", DIFF, run_diff, 2, 2},
};

/* `value` is where the text goes; a row without an argument gets its own name as text. */
static const struct row {
    const char *name;
    size_t value;
    int argument;
    unsigned commands;
} rows[] = {
#define TO(member) #member, offsetof(struct options, member)
    {TO(json), no_argument, SHOW},
    {TO(events), no_argument, SHOW},
    {TO(html), required_argument, SHOW},
    {TO(trace), required_argument, SHOW},
    {TO(watch), no_argument, SHOW},
    {TO(color), required_argument, LIST | SHOW | DIFF},
    {TO(width), required_argument, LIST | SHOW | DIFF},
    {TO(help), no_argument, LIST | SHOW | DIFF},
#undef TO
};

enum { ROWS = sizeof(rows) / sizeof(rows[0]) };

static const char **value_of(struct options *options, const struct row *row)
{
    return (const char **)((char *)options + row->value);
}

static const struct row *short_row(int letter)
{
    for (size_t i = 0; i < ROWS; i++) {
        if (letter == 'h' && strcmp(rows[i].name, "help") == 0)
            return &rows[i];
    }
    return NULL;
}

/* getopt_long says what is wrong with an option. */
static bool parse(int argc, char **argv, struct options *options)
{
    struct option names[ROWS + 1] = {{0}};
    int index;
    for (size_t i = 0; i < ROWS; i++)
        names[i] = (struct option){rows[i].name, rows[i].argument, NULL, 0};
    for (int found; (found = getopt_long(argc, argv, "h", names, &index)) >= 0;) {
        const struct row *row = found == 0 ? &rows[index] : short_row(found);
        if (row == NULL)
            return false;
        *value_of(options, row) = optarg != NULL ? optarg : row->name;
    }
    if (optind < argc)
        options->command = argv[optind++];
    options->files = (const char **)argv + optind;
    options->file_count = (size_t)(argc - optind);
    return true;
}

static const struct command *find_command(const struct options *options)
{
    for (size_t i = 0; options->command != NULL && i < sizeof(commands) / sizeof(commands[0]);
         i++) {
        if (strcmp(commands[i].name, options->command) == 0)
            return &commands[i];
    }
    return NULL;
}

/* No option goes unnoticed. */
static bool takes(const struct command *command, struct options *options)
{
    for (size_t i = 0; i < ROWS; i++) {
        if (*value_of(options, &rows[i]) != NULL && (rows[i].commands & command->bit) == 0) {
            fprintf(stderr, "metashard-dump: %s takes no --%s\n", command->name, rows[i].name);
            return false;
        }
    }
    return options->file_count >= command->files_least &&
           options->file_count <= command->files_most;
}

static int run(int argc, char **argv)
{
    struct options options = {0};
    if (!parse(argc, argv, &options))
        return USAGE;
    if (options.help != NULL) {
        fputs(usage, stdout);
        return GOOD;
    }
    const struct command *command = find_command(&options);
    return command != NULL && takes(command, &options) ? command->run(&options) : USAGE;
}

int main(int argc, char **argv)
{
    const int status = run(argc, argv);
    if (status == USAGE)
        fputs(usage, stderr);
    if (fflush(stdout) != 0 || ferror(stdout)) {
        fputs("metashard-dump: the output cannot be written\n", stderr);
        return BAD;
    }
    return status;
}
