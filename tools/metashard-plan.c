/* SPDX-License-Identifier: Apache-2.0 */
/* metashard-plan: makes, checks and explains sharding plans. */
#include "tools/metashard-plan.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char usage[] =
    "usage: metashard-plan make CHECKPOINT --strategy fsdp2|tp|fsdp1|zero3|replicate\n"
    "                      [--mesh dp=4,tp=2] [--rules FILE] [--world N] [-o PLAN]\n"
    "       metashard-plan check PLAN [CHECKPOINT]\n"
    "       metashard-plan explain PLAN [CHECKPOINT] [--rank R] [--json]\n"
    "       metashard-plan fit PLAN-or-CHECKPOINT --memory 80GiB [--strategy S]\n";

static const struct {
    const char *name;
    int (*run)(const struct options *);
    int files_least, files_most;
} commands[] = {
    {"make", run_make, 1, 1},
    {"check", run_check, 1, 2},
    {"explain", run_explain, 1, 2},
    {"fit", run_fit, 1, 1},
};

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

static bool parse(int argc, char **argv, struct options *options)
{
    static const struct option names[] = {{"strategy", required_argument, NULL, 's'},
                                          {"mesh", required_argument, NULL, 'm'},
                                          {"rules", required_argument, NULL, 'r'},
                                          {"world", required_argument, NULL, 'w'},
                                          {"rank", required_argument, NULL, 'k'},
                                          {"memory", required_argument, NULL, 'b'},
                                          {"output", required_argument, NULL, 'o'},
                                          {"json", no_argument, NULL, 'j'},
                                          {NULL, 0, NULL, 0}};
    for (int found; (found = getopt_long(argc, argv, "o:", names, NULL)) >= 0;) {
        switch (found) {
        case 's':
            options->strategy = optarg;
            break;
        case 'm':
            options->mesh = optarg;
            break;
        case 'r':
            options->rules = optarg;
            break;
        case 'w':
            options->world = optarg;
            break;
        case 'k':
            options->rank = optarg;
            break;
        case 'b':
            options->memory = optarg;
            break;
        case 'o':
            options->out = optarg;
            break;
        case 'j':
            options->is_json = true;
            break;
        default:
            return false;
        }
    }
    if (optind < argc)
        options->command = argv[optind++];
    for (; optind < argc; optind++) {
        if (options->file_count == 2)
            return false;
        options->files[options->file_count++] = argv[optind];
    }
    return options->command != NULL;
}

int main(int argc, char **argv)
{
    struct options options = {0};
    int status = USAGE;
    const bool is_parsed = parse(argc, argv, &options);
    for (size_t i = 0; is_parsed && i < sizeof(commands) / sizeof(commands[0]); i++) {
        if (strcmp(commands[i].name, options.command) == 0 &&
            options.file_count >= commands[i].files_least &&
            options.file_count <= commands[i].files_most)
            status = commands[i].run(&options);
    }
    if (status == USAGE)
        fputs(usage, stderr);
    if (fflush(stdout) != 0 || ferror(stdout)) {
        fputs("metashard-plan: the output cannot be written\n", stderr);
        return NOT_VALID;
    }
    return status;
}
