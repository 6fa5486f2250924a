/* SPDX-License-Identifier: Apache-2.0 */
/* metashard-dump: what MetaShard did in a process, from its state page. */
#include "tools/dump/dump.h"

static const char usage[] =
    "usage: metashard-dump list [--job JOB] [--json]\n"
    "       metashard-dump metrics [--job JOB]\n"
    "       metashard-dump show [PID|FILE... | --job JOB] [--json | --events | --brief]\n"
    "       metashard-dump show [PID|FILE... | --job JOB] [--html OUT] [--trace OUT]\n"
    "       metashard-dump diff PID|FILE PID|FILE [--json]\n"
    "       metashard-dump --help | --version\n"
    "each takes --color auto|always|never, and --width CHARACTERS (0: lines are not cut)\n";

static const char explained[] =
    "PID|FILE: a process, or its state page; without one, show has the last run.\n"
    "\n"
    "  --job JOB           only processes of this job (METASHARD_JOB, or a scheduler's id)\n"
    "  --brief             only the peaks, in two or three lines\n"
    "  --events            only the events\n"
    "  --json              print one JSON document\n"
    "  --html OUT          write a page for a browser\n"
    "  --trace OUT         write a trace for https://ui.perfetto.dev\n"
    "  --color WHEN        auto, the default: on a terminal, unless NO_COLOR is set\n"
    "  --width CHARACTERS  cut lines; the width of the terminal by default\n"
    "  -h, --help          print this\n"
    "  --version           print the version\n"
    "\n"
    "Exit status: 0 for success, 1 if a page cannot be read or the output cannot be written, 2 "
    "for\n"
    "wrong usage.\n";

enum { LIST = 1, SHOW = 2, DIFF = 4, METRICS = 8 };

static const struct command commands[] = {
    {"list", LIST, run_list, 0, 0},
    {"show", SHOW, run_show, 0, MAX_FILES},
    {"metrics", METRICS, run_metrics, 0, 0},
    {"diff", DIFF, run_diff, 2, 2},
    {0},
};

static const struct row rows[] = {
    {TO(json), no_argument, LIST | SHOW | DIFF},
    {TO(events), no_argument, SHOW},
    {TO(brief), no_argument, SHOW},
    {TO(job), required_argument, LIST | SHOW | METRICS},
    {TO(html), required_argument, SHOW},
    {TO(trace), required_argument, SHOW},
    {TO(color), required_argument, LIST | SHOW | DIFF},
    {TO(width), required_argument, LIST | SHOW | DIFF},
    {TO(help), no_argument, LIST | SHOW | METRICS | DIFF, 'h'},
    {TO(version), no_argument, LIST | SHOW | METRICS | DIFF},
    {0},
};

int main(int argc, char **argv)
{
    static const struct command_line line = {"metashard-dump", usage, commands, rows, NULL,
                                             explained};
    struct options options = {0};
    return command_line_run(&line, argc, argv, &options);
}
