/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/command_line.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "runtime/base/nearest.h"
#include "runtime/base/utf8.h"
#include "runtime/base/version.h"

enum { MAX_ROWS = 32 };

static const char **value_of(struct options *options, const struct row *row)
{
    return (const char **)(void *)((char *)options + row->value);
}

int usage_fault(const char *format, ...)
{
    char text[1024];
    va_list arguments;
    va_start(arguments, format);
    /* LLVM 14 loses track of it. NOLINTNEXTLINE(clang-analyzer-valist.Uninitialized) */
    vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    ms_utf8_make_printable(text);
    fprintf(stderr, "%s\n", text);
    return USAGE;
}

/* Reports a word that is none of the names, with the nearest of them. */
static int refuse_word(const struct command_line *line, const char *what,
                       const struct ms_nearest *nearest, const char *dashes)
{
    if (nearest->word != NULL)
        return usage_fault("%s: %s%s is no %s; did you mean %s%s?", line->program, dashes,
                           nearest->text, what, dashes, nearest->word);
    return usage_fault("%s: %s%s is no %s; %s --help lists them", line->program, dashes,
                       nearest->text, what, line->program);
}

/* Fills getopt_long's tables: a missing value is told apart. */
static void list_options(const struct row *row, struct option *names, char *letters)
{
    *letters++ = ':';
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

/* Reports an option that getopt_long did not take. */
static int refuse_option(const struct command_line *line, const char *word, bool has_no_value)
{
    char name[64];
    struct ms_nearest nearest = {.text = name};
    const struct row *row = line->rows;
    if (strncmp(word, "--", 2) != 0)
        return usage_fault(has_no_value ? "%s: expected a value behind -%c"
                                        : "%s: -%c is no option",
                           line->program, optopt);
    snprintf(name, sizeof(name), "%.*s", (int)strcspn(word + 2, "="), word + 2);
    if (has_no_value)
        return usage_fault("%s: expected a value behind --%s", line->program, name);
    for (const struct instead *other = line->instead; other != NULL && other->name != NULL; other++)
        if (strcmp(other->name, name) == 0)
            return usage_fault("%s: --%s is no option; type %s", line->program, name, other->words);
    for (; row->name != NULL; row++) {
        if (strcmp(row->name, name) == 0)
            return usage_fault("%s: expected no value behind --%s", line->program, name);
        ms_nearest_try(&nearest, row->name);
    }
    return refuse_word(line, "option", &nearest, "--");
}

/* Finds the command's name, or NULL. */
static int parse(const struct command_line *line, int argc, char **argv, struct options *options,
                 const char **name_out)
{
    struct option names[MAX_ROWS + 1];
    char letters[2 * MAX_ROWS + 2];
    int index;
    list_options(line->rows, names, letters);
    opterr = 0;
    for (int found; (found = getopt_long(argc, argv, letters, names, &index)) >= 0;) {
        const struct row *row = found == 0 ? &line->rows[index] : line->rows;
        while (found != 0 && row->name != NULL && row->letter != found)
            row++;
        if (row->name == NULL)
            return refuse_option(line, argv[optind - 1], found == ':');
        *value_of(options, row) = optarg != NULL ? optarg : row->name;
    }
    *name_out = argv[optind];
    const int first = optind + (optind < argc);
    *(struct words *)(void *)options =
        (struct words){(const char *const *)argv + first, (size_t)(argc - first)};
    return GOOD;
}

/* Reports an option that the command does not take, and a command that does. */
static int check_options(const struct command_line *line, const struct command *command,
                         struct options *options)
{
    for (const struct row *row = line->rows; row->name != NULL; row++) {
        if (*value_of(options, row) == NULL || (row->commands & command->bit) != 0)
            continue;
        const struct command *taker = line->commands;
        while (taker->name != NULL && (row->commands & taker->bit) == 0)
            taker++;
        return usage_fault("%s: %s takes no --%s, %s does", line->program, command->name, row->name,
                           taker->name);
    }
    return GOOD;
}

/* Reports too few or too many words, with the command's line of the usage. */
static int check_words(const struct command_line *line, const struct command *command,
                       const struct words *words)
{
    char start[64], count[32];
    const size_t least = command->files_least, most = command->files_most;
    if (words->file_count >= least && words->file_count <= most)
        return GOOD;
    const size_t limit = words->file_count < least ? least : most;
    snprintf(count, sizeof(count), "%s%zu argument%s",
             least == most   ? ""
             : limit == most ? "at most "
                             : "at least ",
             limit, limit == 1 ? "" : "s");
    snprintf(start, sizeof(start), "%s %s", line->program, command->name);
    const char *usage = strstr(line->usage, start);
    return usage_fault("%s: %s: expected %s, found %zu: %.*s", line->program, command->name, count,
                       words->file_count, usage != NULL ? (int)strcspn(usage, "\n") : 0, usage);
}

static bool is_asked(const struct command_line *line, struct options *options, const char *name)
{
    const struct row *row = line->rows;
    while (row->name != NULL && strcmp(row->name, name) != 0)
        row++;
    return row->name != NULL && *value_of(options, row) != NULL;
}

static const struct command *find_command(const struct command_line *line, const char *name)
{
    const struct command *command = line->commands;
    while (command->name != NULL && name != NULL && strcmp(command->name, name) != 0)
        command++;
    return name != NULL && command->name != NULL ? command : NULL;
}

/* Prints the lines of the usage that are the command's: each begins with the program's name, or
 * continues the one before. */
static void print_usage(const struct command_line *line, const struct command *command)
{
    enum { INDENT = 7 }; /* "usage: " */
    const size_t program = strlen(line->program), name = strlen(command->name);
    const char *start = "usage: ";
    bool is_its = false;
    for (const char *at = line->usage; *at != '\0';) {
        const size_t length = strcspn(at, "\n");
        const bool is_line = length > INDENT + program && (*at == 'u' || *at == ' ');
        const char *words = is_line ? at + INDENT : at;
        if (is_line && strncmp(words, line->program, program) == 0) {
            is_its = strncmp(words + program + 1, command->name, name) == 0 &&
                     strchr(" \n", words[program + 1 + name]) != NULL;
            if (is_its) {
                printf("%s%.*s\n", start, (int)(length - INDENT), words);
                start = "       ";
            }
        } else if (is_line && is_its) {
            printf("%.*s\n", (int)length, at);
        }
        at += length + (at[length] == '\n');
    }
}

static bool takes_option(const struct command_line *line, const struct command *command,
                         const char *text)
{
    const char *name = strstr(text, "--");
    for (const struct row *row = line->rows; row->name != NULL && name != NULL; row++) {
        const size_t length = strlen(row->name);
        if (strncmp(name + 2, row->name, length) == 0 && name[2 + length] == ' ')
            return (row->commands & command->bit) != 0;
    }
    return true;
}

/* Prints what is explained, but for options of other commands. A line that is indented by more than
 * an option continues it. */
static void print_explained(const struct command_line *line, const struct command *command)
{
    bool is_its = true;
    for (const char *at = line->explained; *at != '\0';) {
        const size_t length = strcspn(at, "\n");
        if (strncmp(at, "  -", 3) == 0)
            is_its = takes_option(line, command, at);
        else if (strncmp(at, "   ", 3) != 0)
            is_its = true;
        if (is_its)
            printf("%.*s\n", (int)length, at);
        at += length + (at[length] == '\n');
    }
}

/* All of it, or what belongs to a command. */
static void print_help(const struct command_line *line, const char *name)
{
    const struct command *command = find_command(line, name);
    if (command == NULL) {
        printf("%s\n%s", line->usage, line->explained);
        return;
    }
    print_usage(line, command);
    putchar('\n');
    print_explained(line, command);
}

static int run(const struct command_line *line, int argc, char **argv, struct options *options)
{
    const struct command *command = line->commands;
    const char *name = NULL;
    if (parse(line, argc, argv, options, &name) != GOOD)
        return USAGE;
    if (is_asked(line, options, "help")) {
        print_help(line, name);
        return GOOD;
    }
    if (is_asked(line, options, "version")) {
        printf("%s %s\n", line->program, ms_version);
        return GOOD;
    }
    if (name == NULL) {
        fputs(line->usage, stderr);
        return USAGE;
    }
    struct ms_nearest nearest = {.text = name};
    for (; command->name != NULL && strcmp(command->name, name) != 0; command++)
        ms_nearest_try(&nearest, command->name);
    if (command->name == NULL)
        return refuse_word(line, "command", &nearest, "");
    if (check_options(line, command, options) != GOOD ||
        check_words(line, command, (const struct words *)(const void *)options) != GOOD)
        return USAGE;
    const bool is_quiet = is_asked(line, options, "quiet") && !is_asked(line, options, "json");
    if (is_quiet && freopen("/dev/null", "w", stdout) == NULL)
        return BAD;
    return command->run(options);
}

int command_line_run(const struct command_line *line, int argc, char **argv,
                     struct options *options)
{
    const int status = run(line, argc, argv, options);
    if (fflush(stdout) != 0 || ferror(stdout)) {
        fprintf(stderr, "%s: the output cannot be written\n", line->program);
        return BAD;
    }
    return status;
}
