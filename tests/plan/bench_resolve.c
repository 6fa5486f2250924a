/* SPDX-License-Identifier: Apache-2.0 */
/*
 * [TENSORS [RANKS]]: how long a plan takes, by default of 100,000 tensors and 16,384 ranks. Wanted are one
 * rank within 50 ms and the bytes of all ranks within 10 s. Prints figures; nothing fails here.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "runtime/plan/census.h"
#include "runtime/plan/placement.h"

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
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
                                         "4096, 14336", "4096",        "4096"};
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
        fprintf(out, placements, i / 9);
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
    for (size_t i = 0; i < ms_layout_count(layout); i++) {
        ms_cursor_init(&cursor, placement, i);
        while (ms_cursor_next(&cursor, &range))
            count++;
    }
    return count;
}

static void measure(const char *name, const char *text)
{
    struct ms_plan *plan;
    struct ms_layout *layout;
    struct ms_census census;
    struct ms_fault fault;
    const double begin = now();
    if (!ms_plan_parse(text, strlen(text), "plan", &plan, &fault))
        stop(fault.text);
    const double parsed = now();
    if (!ms_layout_create(plan, NULL, &layout, &fault))
        stop(fault.text);
    const double bound = now();
    const uint32_t rank = ms_plan_mesh(plan)->world / 2;
    struct ms_placement *placement = ms_placement_create(layout, rank);
    if (placement == NULL)
        stop("memory is out");
    const double placed = now();
    const uint64_t ranges = walk(layout, placement);
    const double walked = now();
    if (!ms_census_init(&census, layout))
        stop("memory is out");
    const double counted = now();
    printf("%-26s parse %7.1f ms, list %6.1f ms, one rank %6.1f ms, its %" PRIu64
           " ranges %7.1f ms, all %" PRIu32 " ranks %8.1f ms\n",
           name, 1e3 * (parsed - begin), 1e3 * (bound - parsed), 1e3 * (placed - bound), ranges,
           1e3 * (walked - placed), census.world, 1e3 * (counted - walked));
    ms_census_cleanup(&census);
    ms_placement_destroy(placement);
    ms_layout_destroy(layout);
    ms_plan_destroy(plan);
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
        {"zero3", "{\"dp\": {\"flat\": \"zero3\"}}"},
        {"zero3 over tp", "{\"tp\": {\"shard\": 0}, \"dp\": {\"flat\": \"zero3\"}}"},
        {"fsdp1", "{\"dp\": {\"flat\": \"fsdp1\", \"unit\": \"%u\"}}"},
        {"fsdp1, all in one unit", "{\"dp\": {\"flat\": \"fsdp1\", \"unit\": \"u\"}}"},
        {"fsdp1 over tp",
         "{\"tp\": {\"shard\": 0}, \"dp\": {\"flat\": \"fsdp1\", \"unit\": \"%u\"}}"},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        char *text = declared_plan(tensors, ranks, rows[i].placements);
        measure(rows[i].name, text);
        free(text);
    }
    return 0;
}
