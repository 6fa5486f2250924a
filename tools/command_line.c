/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/command_line.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

enum { MAX_ROWS = 32 };

static const char **value_of(struct options *options, const struct row *row)
{
    return (const char **)(void *)((char *)options + row->value);
}

/* Fills getopt_long's tables. */
static void list_options(const struct row *row, struct option *names, char *letters)
{
    for (; row->name != NULL; row++) {
        *names++ = (struct option){row->name, row->argument, NULL, row->letter};
        if (row->letter != 0)
            *letters++ = row->letter;
        if (row->letter != 0 && row->argument == required_argument)
            *letters++ = ':';
    }
    *names = (struct option){0};
    *letters = '\0';
}

/* Finds the command's name, or NULL. getopt_long reports what is wrong with an option. */
static bool parse(const struct row *rows, int argc, char **argv, struct options *options,
                  const char **name_out)
{
    struct option names[MAX_ROWS + 1];
    char letters[2 * MAX_ROWS + 1];
    int index;
    list_options(rows, names, letters);
    for (int found; (found = getopt_long(argc, argv, letters, names, &index)) >= 0;) {
        const struct row *row = found == 0 ? &rows[index] : rows;
        while (found != 0 && row->name != NULL && row->letter != found)
            row++;
        if (row->name == NULL)
            return false;
        *value_of(options, row) = optarg != NULL ? optarg : row->name;
    }
    *name_out = argv[optind];
    const int first = optind + (optind < argc);
    *(struct words *)(void *)options =
        (struct words){(const char *const *)argv + first, (size_t)(argc - first)};
    return true;
}

/* Reports options that the command does not take. */
static bool takes(const struct command_line *line, const struct command *command,
                  struct options *options)
{
    const struct words *words = (const struct words *)(const void *)options;
    for (const struct row *row = line->rows; row->name != NULL; row++) {
        if (*value_of(options, row) != NULL && (row->commands & command->bit) == 0) {
            fprintf(stderr, "%s: %s takes no --%s\n", line->program, command->name, row->name);
            return false;
        }
    }
    return words->file_count >= command->files_least && words->file_count <= command->files_most;
}

static int run(const struct command_line *line, int argc, char **argv, struct options *options)
{
    const struct row *help = line->rows;
    const struct command *command = line->commands;
    const char *name;
    if (!parse(line->rows, argc, argv, options, &name))
        return USAGE;
    while (strcmp(help->name, "help") != 0)
        help++;
    if (*value_of(options, help) != NULL) {
        fputs(line->usage, stdout);
        return GOOD;
    }
    while (name != NULL && command->name != NULL && strcmp(command->name, name) != 0)
        command++;
    if (name == NULL || command->name == NULL || !takes(line, command, options))
        return USAGE;
    return command->run(options);
}

int command_line_run(const struct command_line *line, int argc, char **argv,
                     struct options *options)
{
    const int status = run(line, argc, argv, options);
    if (status == USAGE)
        fputs(line->usage, stderr);
    if (fflush(stdout) != 0 || ferror(stdout)) {
        fprintf(stderr, "%s: the output cannot be written\n", line->program);
        return BAD;
    }
    return status;
}
