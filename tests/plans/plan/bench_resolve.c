/* SPDX-License-Identifier: Apache-2.0 */
/*
 * [TENSORS [RANKS [ROW...]]]: how long a plan takes, by default of 100,000 tensors and 16,384
 * ranks, in all rows or these. The goals are one rank with all its ranges within 50 ms, and the
 * bytes of all ranks within 10 s; a ratio above 1 misses one. Each figure is the median of several
 * runs, of which there are fewer where one takes long. Nothing fails here.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "runtime/plan/placement.h"
#include "runtime/plan/placement.h"

#define GOAL_ONE 0.050 /* seconds */
#define GOAL_ALL 10.0
#define ENOUGH 2.0 /* that went into one figure: no run follows */

/* Processor time: the same as any other where the machine has nothing else to do. */
static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static _Noreturn void stop(const char *why)
{
    fprintf(stderr, "bench-plan: %s\n", why);
    exit(1);
}

/* Llama-shaped layers of 9 tensors, each with an entry of its own. */
static char *declared_plan(unsigned tensors, unsigned ranks, const char *placements)
{
    static const char *const shapes[] = {"4096, 4096",  "1024, 4096",  "1024, 4096",
                                         "4096, 4096",  "14336, 4096", "14336, 4096",
                                         "4096, 14336", "4096, 1",     "4096, 1"};
    char *text = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&text, &bytes);
    if (out == NULL)
        stop("memory is out");
    fprintf(out,
            "{\"format\": \"metashard-plan/1\", \"mesh\": {\"dp\": %u, \"tp\": 8}, \"tensors\": [",
            ranks / 8);
    for (unsigned i = 0; i < tensors; i++) {
        fprintf(out,
                "%s{\"name\": \"model.layers.%u.tensor%u.weight\", \"dtype\": \"BF16\", "
                "\"shape\": [%s], \"placements\": ",
                i > 0 ? ",\n" : "", i / 9, i % 9, shapes[i % 9]);
        fprintf(out, placements, i / 9, i);
        fputc('}', out);
    }
    fputs("]}", out);
    fclose(out);
    return text;
}

/* All ranges of one rank. */
static uint64_t walk(const struct ms_layout *layout, const struct ms_placement *placement)
{
    static struct ms_cursor cursor;
    struct ms_range range;
    uint64_t count = 0;
    for (size_t i = 0; i < layout->count; i++) {
        ms_placement_begin(&cursor, placement, i);
        while (ms_placement_next(&cursor, &range))
            count++;
    }
    return count;
}

enum { RUNS_MAX = 31 };

static int by_size(const void *a, const void *b)
{
    const double left = *(const double *)a, right = *(const double *)b;
    return left < right ? -1 : left > right;
}

static double sum(const double *seconds, unsigned count)
{
    double all = 0;
    for (unsigned i = 0; i < count; i++)
        all += seconds[i];
    return all;
}

static double median(double *seconds, unsigned count)
{
    qsort(seconds, count, sizeof(*seconds), by_size);
    return seconds[count / 2];
}

/* The bytes of a rank by its placement, and by the census of all: the same, or figures mean
 * nothing. */
static uint64_t one_rank(const struct ms_layout *layout, uint32_t rank, double *median_out,
                         uint64_t *ranges_out)
{
    uint64_t bytes = 0;
    double seconds[RUNS_MAX];
    unsigned runs = 0;
    for (; runs < RUNS_MAX && sum(seconds, runs) < ENOUGH; runs++) {
        const double begin = now();
        struct ms_placement *placement = ms_placement_create(layout, rank);
        if (placement == NULL)
            stop("memory is out");
        *ranges_out = walk(layout, placement);
        seconds[runs] = now() - begin;
        bytes = ms_placement_total(placement);
        ms_placement_destroy(placement);
    }
    *median_out = median(seconds, runs);
    return bytes;
}

static uint64_t all_ranks(const struct ms_layout *layout, uint32_t rank, double *median_out)
{
    enum { CENSUSES = 3 };
    uint64_t bytes = 0;
    double seconds[CENSUSES];
    unsigned runs = 0;
    for (; runs < CENSUSES && sum(seconds, runs) < ENOUGH; runs++) {
        struct ms_census census;
        const double begin = now();
        if (!ms_census_init(&census, layout))
            stop("memory is out");
        seconds[runs] = now() - begin;
        bytes = census.bytes[rank];
        ms_census_cleanup(&census);
    }
    *median_out = median(seconds, runs);
    return bytes;
}

static void measure(const char *name, const char *text)
{
    enum { PARSES = 3 };
    double parse[PARSES], list[PARSES], one, all;
    unsigned runs = 0;
    struct ms_plan *plan = NULL;
    struct ms_layout *layout = NULL;
    struct ms_fault fault;
    for (; runs < PARSES && sum(parse, runs) < ENOUGH; runs++) {
        ms_layout_destroy(layout);
        ms_plan_destroy(plan);
        const double begin = now();
        if (!ms_plan_parse(text, strlen(text), "plan", &plan, &fault))
            stop(fault.text);
        const double parsed = now();
        if (!ms_layout_create(plan, NULL, &layout, &fault))
            stop(fault.text);
        parse[runs] = parsed - begin;
        list[runs] = now() - parsed;
    }
    const uint32_t rank = plan->mesh.world / 2;
    uint64_t ranges;
    if (one_rank(layout, rank, &one, &ranges) != all_ranks(layout, rank, &all))
        stop("one rank has other bytes alone than among all");
    printf("%-28s %8.1f %7.1f %8.2f %6.2f %9.4f %7.4f %9" PRIu64 "\n", name,
           1e3 * median(parse, runs), 1e3 * median(list, runs), 1e3 * one, one / GOAL_ONE, all,
           all / GOAL_ALL, ranges);
    fflush(stdout);
    ms_layout_destroy(layout);
    ms_plan_destroy(plan);
}

static bool is_wanted(const char *row, char **rows)
{
    if (*rows == NULL)
        return true;
    while (*rows != NULL && strcmp(*rows, row) != 0)
        rows++;
    return *rows != NULL;
}

int main(int argc, char **argv)
{
    const unsigned tensors = argc > 1 ? (unsigned)strtoul(argv[1], NULL, 10) : 100000;
    const unsigned ranks = argc > 2 ? (unsigned)strtoul(argv[2], NULL, 10) : 16384;
    static const struct {
        const char *name, *placements;
    } rows[] = {
        {"fsdp2", "{\"dp\": {\"shard\": 0}}"},
        {"fsdp2 over tp", "{\"tp\": {\"shard\": 0}, \"dp\": {\"shard\": 0}}"},
        {"fsdp2 over tp by columns", "{\"tp\": {\"shard\": 1}, \"dp\": {\"shard\": 0}}"},
        {"zero3", "{\"dp\": {\"flat\": \"zero3\"}}"},
        {"zero3 over tp", "{\"tp\": {\"shard\": 0}, \"dp\": {\"flat\": \"zero3\"}}"},
        {"fsdp1", "{\"dp\": {\"flat\": \"fsdp1\", \"unit\": \"%u\"}}"},
        {"fsdp1, all in one unit", "{\"dp\": {\"flat\": \"fsdp1\", \"unit\": \"u\"}}"},
        {"fsdp1 over tp",
         "{\"tp\": {\"shard\": 0}, \"dp\": {\"flat\": \"fsdp1\", \"unit\": \"%u\"}}"},
        {"fsdp1 over tp, a unit each",
         "{\"tp\": {\"shard\": 0}, \"dp\": {\"flat\": \"fsdp1\", \"unit\": \"%2$u\"}}"},
        {"fsdp1 along tp, over dp",
         "{\"dp\": {\"shard\": 0}, \"tp\": {\"flat\": \"fsdp1\", \"unit\": \"%u\"}}"},
        {"interleave under fsdp2",
         "{\"tp\": {\"shard\": 0, \"interleave\": [6, 1, 1]}, \"dp\": {\"shard\": 0}}"},
    };
    printf("%u tensors, %u ranks; goals: one rank %.0f ms, all ranks %.0f s\n", tensors, ranks,
           1e3 * GOAL_ONE, GOAL_ALL);
    printf("%-28s %8s %7s %8s %6s %9s %7s %9s\n", "", "parse ms", "list ms", "one ms", "/ goal",
           "all s", "/ goal", "its ranges");
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        if (argc > 3 && !is_wanted(rows[i].name, argv + 3))
            continue;
        char *text = declared_plan(tensors, ranks, rows[i].placements);
        measure(rows[i].name, text);
        free(text);
    }
    return 0;
}
