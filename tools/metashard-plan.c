/* SPDX-License-Identifier: Apache-2.0 */
/* metashard-plan: makes, checks and explains sharding plans. */
#include "tools/metashard-plan.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/command_line.h"

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

static const struct command commands[] = {
    {"make", MAKE, run_make, 1, 1},          {"check", CHECK, run_check, 1, 2},
    {"explain", EXPLAIN, run_explain, 1, 2}, {"fit", FIT, run_fit, 1, 2},
    {"send", SEND, run_send, 1, 1},
};

static const struct row rows[] = {
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
};

static const struct letter letters[] = {{'o', "output"}, {'h', "help"}};

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

static void take_words(struct options *options, const struct words *words)
{
    options->command = words->command;
    options->file_count = (int)words->file_count;
    for (size_t i = 0; i < words->file_count;
         i++) /* no command takes more than there is room for */
        options->files[i] = words->files[i];
}

#define COUNT(table) (sizeof(table) / sizeof((table)[0]))

int main(int argc, char **argv)
{
    static const struct command_line line = {.program = "metashard-plan",
                                             .usage = usage,
                                             .commands = commands,
                                             .command_count = COUNT(commands),
                                             .rows = rows,
                                             .row_count = COUNT(rows),
                                             .letters = letters,
                                             .letter_count = COUNT(letters),
                                             .take_words = take_words,
                                             .good = GOOD,
                                             .bad = NOT_VALID,
                                             .wrong_usage = USAGE};
    struct options options = {0};
    return command_line_run(&line, argc, argv, &options);
}
