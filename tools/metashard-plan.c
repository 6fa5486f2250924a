/* SPDX-License-Identifier: Apache-2.0 */
/* metashard-plan: makes, checks and explains sharding plans. */
#include "tools/metashard-plan.h"

#include <getopt.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char usage[] =
    "usage: metashard-plan make CHECKPOINT --strategy fsdp2|tp|fsdp1|zero3|replicate\n"
    "                      [--mesh dp=4,tp=2] [--rules FILE] [--world N] [-o PLAN]\n"
    "       metashard-plan check PLAN [CHECKPOINT] [--json] [--ranks]\n"
    "       metashard-plan explain PLAN [CHECKPOINT] [--rank R] [--json]\n"
    "       metashard-plan fit PLAN [CHECKPOINT] --memory 80GiB\n"
    "       metashard-plan fit CHECKPOINT --memory 80GiB [--strategy S]\n"
    "       metashard-plan send PLAN --to SOCKET\n"
    "       metashard-plan --help\n";

enum { MAKE = 1, CHECK = 2, EXPLAIN = 4, FIT = 8, SEND = 16 };

static const struct command {
    const char *name;
    unsigned bit;
    int (*run)(const struct options *);
    int files_least, files_most;
} commands[] = {
    {"make", MAKE, run_make, 1, 1},          {"check", CHECK, run_check, 1, 2},
    {"explain", EXPLAIN, run_explain, 1, 2}, {"fit", FIT, run_fit, 1, 2},
    {"send", SEND, run_send, 1, 1},
};

/* `value` is where the text goes; a row without an argument gets its own name as text. */
static const struct row {
    const char *name;
    size_t value;
    int argument;
    unsigned commands;
} rows[] = {
#define TO(member) #member, offsetof(struct options, member)
    {TO(strategy), required_argument, MAKE | FIT},
    {TO(mesh), required_argument, MAKE},
    {TO(rules), required_argument, MAKE},
    {TO(world), required_argument, MAKE},
    {TO(output), required_argument, MAKE},
    {TO(rank), required_argument, EXPLAIN},
    {TO(json), no_argument, CHECK | EXPLAIN},
    {TO(ranks), no_argument, CHECK},
    {TO(memory), required_argument, FIT},
    {TO(to), required_argument, SEND},
    {TO(help), no_argument, ~0u},
#undef TO
};

enum { ROWS = sizeof(rows) / sizeof(rows[0]) };

bool read_count(const char *text, uint64_t most, uint64_t *count_out)
{
    char *end;
    const unsigned long long count = strtoull(text, &end, 10);
    if (text[0] < '0' || text[0] > '9' || *end != '\0' || count > most)
        return false;
    *count_out = count;
    return true;
}

bool opened_open(struct opened *opened, const char *plan, const char *checkpoint)
{
    struct ms_fault fault;
    *opened = (struct opened){0};
    if (!ms_plan_read(plan, &opened->plan, &fault) ||
        (checkpoint != NULL && !ms_checkpoint_open(checkpoint, &opened->checkpoint, &fault))) {
        fprintf(stderr, "%s\n", fault.text);
        opened_close(opened);
        return false;
    }
    if (!ms_layout_create(opened->plan, opened->checkpoint, &opened->layout, &fault)) {
        fprintf(stderr, "%s: %s\n", plan, fault.text);
        opened_close(opened);
        return false;
    }
    return true;
}

void opened_close(struct opened *opened)
{
    ms_layout_destroy(opened->layout);
    ms_plan_destroy(opened->plan);
    ms_checkpoint_close(opened->checkpoint);
    *opened = (struct opened){0};
}

/* A control character, or one that separates lines: its code point, and its bytes. 0: it is none. */
static unsigned control(const char *text, size_t *bytes_out)
{
    const unsigned char *bytes = (const unsigned char *)text;
    *bytes_out = bytes[0] < 0x80 ? 1 : bytes[0] == 0xc2 ? 2 : 3;
    if (bytes[0] < 0x20 || bytes[0] == 0x7f)
        return bytes[0];
    if (bytes[0] == 0xc2 && bytes[1] < 0xa0)
        return bytes[1];
    return bytes[0] == 0xe2 && bytes[1] == 0x80 && (bytes[2] & 0xfe) == 0xa8
               ? 0x2000u + (bytes[2] & 0x3fu)
               : 0;
}

void print_escaped(const char *text, const char *special)
{
    size_t bytes;
    while (*text != '\0') {
        const unsigned character = control(text, &bytes);
        if (character != 0) {
            printf("\\u%04x", character);
            text += bytes;
            continue;
        }
        if (strchr(special, *text) != NULL)
            putchar('\\');
        putchar(*text++);
    }
}

static const char **value_of(struct options *options, const struct row *row)
{
    return (const char **)((char *)options + row->value);
}

static const struct row *short_row(int letter)
{
    const char *name = letter == 'o' ? "output" : letter == 'h' ? "help" : "";
    for (size_t i = 0; i < ROWS; i++) {
        if (strcmp(rows[i].name, name) == 0)
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
    for (int found; (found = getopt_long(argc, argv, "o:h", names, &index)) >= 0;) {
        const struct row *row = found == 0 ? &rows[index] : short_row(found);
        if (row == NULL)
            return false;
        *value_of(options, row) = optarg != NULL ? optarg : row->name;
    }
    if (optind < argc)
        options->command = argv[optind++];
    for (; optind < argc; optind++) {
        if (options->file_count == 2)
            return false;
        options->files[options->file_count++] = argv[optind];
    }
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
            fprintf(stderr, "metashard-plan: %s takes no --%s\n", command->name, rows[i].name);
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
        fputs("metashard-plan: the output cannot be written\n", stderr);
        return NOT_VALID;
    }
    return status;
}
