/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/command_line.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

enum { MAX_ROWS = 32, MAX_LETTERS = 8 };

static const char **value_of(struct options *options, const struct row *row)
{
    return (const char **)(void *)((char *)options + row->value);
}

static const struct row *find_row(const struct command_line *line, const char *name)
{
    for (size_t i = 0; i < line->row_count; i++) {
        if (strcmp(line->rows[i].name, name) == 0)
            return &line->rows[i];
    }
    return NULL;
}

static const struct row *short_row(const struct command_line *line, int letter)
{
    for (size_t i = 0; i < line->letter_count; i++) {
        if (line->letters[i].letter == letter)
            return find_row(line, line->letters[i].name);
    }
    return NULL;
}

/* Fills getopt_long's tables. */
static void list_options(const struct command_line *line, struct option names[MAX_ROWS + 1],
                         char letters[2 * MAX_LETTERS + 1])
{
    for (size_t i = 0; i < line->row_count; i++)
        names[i] = (struct option){line->rows[i].name, line->rows[i].argument, NULL, 0};
    names[line->row_count] = (struct option){0};
    for (size_t i = 0; i < line->letter_count; i++) {
        *letters++ = line->letters[i].letter;
        if (find_row(line, line->letters[i].name)->argument == required_argument)
            *letters++ = ':';
    }
    *letters = '\0';
}

/* getopt_long reports what is wrong with an option. */
static bool parse(const struct command_line *line, int argc, char **argv, struct options *options,
                  struct words *words)
{
    struct option names[MAX_ROWS + 1];
    char letters[2 * MAX_LETTERS + 1];
    int index;
    list_options(line, names, letters);
    for (int found; (found = getopt_long(argc, argv, letters, names, &index)) >= 0;) {
        const struct row *row = found == 0 ? &line->rows[index] : short_row(line, found);
        if (row == NULL)
            return false;
        *value_of(options, row) = optarg != NULL ? optarg : row->name;
    }
    if (optind < argc)
        words->command = argv[optind++];
    words->files = (const char **)argv + optind;
    words->file_count = (size_t)(argc - optind);
    return true;
}

static const struct command *find_command(const struct command_line *line, const char *name)
{
    for (size_t i = 0; name != NULL && i < line->command_count; i++) {
        if (strcmp(line->commands[i].name, name) == 0)
            return &line->commands[i];
    }
    return NULL;
}

/* Reports options that the command does not take. */
static bool takes(const struct command_line *line, const struct command *command,
                  struct options *options, const struct words *words)
{
    for (size_t i = 0; i < line->row_count; i++) {
        const struct row *row = &line->rows[i];
        if (*value_of(options, row) != NULL && (row->commands & command->bit) == 0) {
            fprintf(stderr, "%s: %s takes no --%s\n", line->program, command->name, row->name);
            return false;
        }
    }
    return words->file_count >= command->files_least && words->file_count <= command->files_most;
}

static int run(const struct command_line *line, int argc, char **argv, struct options *options)
{
    struct words words = {0};
    if (!parse(line, argc, argv, options, &words))
        return line->wrong_usage;
    if (*value_of(options, find_row(line, "help")) != NULL) {
        fputs(line->usage, stdout);
        return line->good;
    }
    const struct command *command = find_command(line, words.command);
    if (command == NULL || !takes(line, command, options, &words))
        return line->wrong_usage;
    line->take_words(options, &words);
    return command->run(options);
}

int command_line_run(const struct command_line *line, int argc, char **argv,
                     struct options *options)
{
    const int status = run(line, argc, argv, options);
    if (status == line->wrong_usage)
        fputs(line->usage, stderr);
    if (fflush(stdout) != 0 || ferror(stdout)) {
        fprintf(stderr, "%s: the output cannot be written\n", line->program);
        return line->bad;
    }
    return status;
}
