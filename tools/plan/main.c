/* SPDX-License-Identifier: Apache-2.0 */
/* metashard-plan: makes, checks and explains sharding plans. */
#include "tools/plan/commands.h"

static const char usage[] =
    "usage: metashard-plan make CHECKPOINT --strategy fsdp2|tp|fsdp1|zero3|replicate\n"
    "                      [--mesh dp=4,tp=2] [--rules FILE] [--world N] [-o PLAN]\n"
    "       metashard-plan estimate CHECKPOINT --world N [--strategy S] [--json]\n"
    "       metashard-plan check PLAN [CHECKPOINT] [--json [--ranks] | --quiet]\n"
    "       metashard-plan explain PLAN [CHECKPOINT] [--rank R] [--json]\n"
    "       metashard-plan fit PLAN [CHECKPOINT] --memory 80GiB [--json | --quiet]\n"
    "       metashard-plan fit CHECKPOINT --memory 80GiB [--strategy S] [--json | --quiet]\n"
    "       metashard-plan send PLAN --to SOCKET [--timeout SECONDS] [--quiet]\n"
    "       metashard-plan --help | --version\n";

static const char explained[] =
    "A plan says which bytes of every tensor each rank keeps. Only headers of checkpoints are "
    "read.\n"
    "\n"
    "  --strategy S       how tensors are cut; fsdp2 is the default of estimate and fit\n"
    "                     fsdp2: dimension 0 of every tensor; fsdp1: flat, a unit for each layer;\n"
    "                     zero3: flat, each tensor by itself; tp: tensor parallel, by the names "
    "of\n"
    "                     Llama's layers; replicate: not at all\n"
    "  --mesh MESH        mesh dimensions, outermost first, as dp=4,tp=2\n"
    "  --world N          number of ranks\n"
    "  --rules FILE       JSON list of entries of a plan, which decide before the strategy\n"
    "  -o, --output PLAN  file for the plan; standard output by default\n"
    "  --rank R           rank to explain; that of the plan or of the environment by default\n"
    "  --ranks            with --json, the bytes of every rank\n"
    "  --memory SIZE      memory of a device, with a unit, as 80GiB\n"
    "  --to SOCKET        socket that the process made for METASHARD_CONTROL\n"
    "  --timeout SECONDS  how long send waits for an answer; 600 by default\n"
    "  --json             print one JSON document\n"
    "  --quiet            print only faults: the exit status is the result\n"
    "  -h, --help         print this\n"
    "  --version          print the version\n"
    "\n"
    "Exit status: 0 for success, 1 if an input is not valid or fit finds no number of ranks, 2 "
    "for\n"
    "wrong usage (metashard-plan(1)).\n";

enum { MAKE = 1, CHECK = 2, EXPLAIN = 4, FIT = 8, SEND = 16, ESTIMATE = 32 };

static const struct command commands[] = {
    {"make", MAKE, run_make, 1, 1},
    {"estimate", ESTIMATE, run_estimate, 1, 1},
    {"check", CHECK, run_check, 1, 2},
    {"explain", EXPLAIN, run_explain, 1, 2},
    {"fit", FIT, run_fit, 1, 2},
    {"send", SEND, run_send, 1, 1},
    {0},
};

static const struct row rows[] = {
    {TO(strategy), required_argument, MAKE | FIT | ESTIMATE},
    {TO(mesh), required_argument, MAKE},
    {TO(rules), required_argument, MAKE},
    {TO(world), required_argument, MAKE | ESTIMATE},
    {TO(output), required_argument, MAKE, 'o'},
    {TO(rank), required_argument, EXPLAIN},
    {TO(json), no_argument, CHECK | EXPLAIN | ESTIMATE | FIT},
    {TO(quiet), no_argument, CHECK | FIT | SEND},
    {TO(ranks), no_argument, CHECK},
    {TO(memory), required_argument, FIT},
    {TO(to), required_argument, SEND},
    {TO(timeout), required_argument, SEND},
    {TO(help), no_argument, ~0u, 'h'},
    {TO(version), no_argument, ~0u},
    {0},
};

static const struct instead instead[] = {
    {"tp", "--strategy tp --mesh tp=N"},
    {"tensor-parallel-size", "--strategy tp --mesh tp=N"},
    {"dp", "--mesh dp=N"},
    {"fsdp", "--strategy fsdp2 --world N"},
    {"zero", "--strategy zero3 --world N"},
    {0},
};

int main(int argc, char **argv)
{
    static const struct command_line line = {"metashard-plan", usage,    commands, rows,
                                             instead,          explained};
    struct options options = {0};
    return command_line_run(&line, argc, argv, &options);
}
