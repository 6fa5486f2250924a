/* SPDX-License-Identifier: Apache-2.0 */
/* metashard-plan: makes, checks and explains sharding plans. */
#include "tools/plan/commands.h"

#include <stddef.h>

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

static void take_words(struct options *options, const struct words *words)
{
    options->command = words->command;
    options->file_count = (int)words->file_count;
    for (size_t i = 0; i < words->file_count; i++) /* no command takes more than the array holds */
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
