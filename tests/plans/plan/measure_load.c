/* SPDX-License-Identifier: Apache-2.0 */
/*
 * measure-load plan|checkpoint FILE: what reading it leaves in memory, and the most that it takes
 * meanwhile, in bytes: a line each, of a word and a number. Nothing here measures time.
 *
 *   tensors  entries of the plan, or tensors of the checkpoint
 *   names    bytes of their names, with their zeros
 *   after    anonymous memory of the process after reading, beyond that before
 *   bound    the same with the layout of the plan and the placement of a rank
 *   peak     the most resident memory while it was read, beyond that before
 *   heap     bytes that are allocated from the program's malloc, beyond those before
 *
 * For a file that is refused: "refused 1", the peak and the heap.
 */
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/plan/placement.h"

static _Noreturn void stop(const char *why)
{
    fprintf(stderr, "measure-load: %s\n", why);
    exit(1);
}

/* In bytes. A line of the file is "KEY: NUMBER kB". */
static long read_kib(const char *path, const char *key)
{
    char line[256];
    long kib = -1;
    FILE *file = fopen(path, "re");
    if (file == NULL)
        stop(path);
    while (kib < 0 && fgets(line, sizeof(line), file) != NULL) {
        if (strncmp(line, key, strlen(key)) == 0)
            kib = strtol(line + strlen(key), NULL, 10);
    }
    fclose(file);
    return kib * 1024;
}

static long anonymous(void)
{
    return read_kib("/proc/self/smaps_rollup", "Anonymous:");
}

static long heap(void)
{
    const struct mallinfo2 info = mallinfo2();
    return (long)(info.uordblks + info.hblkhd);
}

/* The next peak begins at what is resident now, which is returned. */
static long begin_peak(void)
{
    FILE *file = fopen("/proc/self/clear_refs", "we");
    if (file == NULL || fputs("5", file) < 0 || fclose(file) != 0)
        stop("/proc/self/clear_refs");
    return read_kib("/proc/self/status", "VmRSS:");
}

static long peak(void)
{
    return read_kib("/proc/self/status", "VmHWM:");
}

static void report_refusal(long resident)
{
    printf("refused 1\npeak %ld\n", peak() - resident);
}

static void measure_plan(const char *path, long before)
{
    struct ms_plan *plan;
    struct ms_layout *layout;
    struct ms_fault fault;
    size_t names = 0;
    const long resident = begin_peak();
    if (!ms_plan_read(path, &plan, &fault)) {
        report_refusal(resident);
        return;
    }
    printf("peak %ld\nafter %ld\n", peak() - resident, anonymous() - before);
    if (!ms_layout_create(plan, NULL, &layout, &fault))
        stop(fault.text);
    struct ms_placement *placement = ms_placement_create(layout, plan->mesh.world / 2);
    if (placement == NULL)
        stop("out of memory");
    printf("bound %ld\n", anonymous() - before);
    for (size_t i = 0; i < plan->count; i++) {
        const char *name = ms_entry_at(plan, i).name;
        names += name != NULL ? strlen(name) + 1 : 0;
    }
    printf("names %zu\ntensors %u\n", names, plan->count);
    ms_placement_destroy(placement);
    ms_layout_destroy(layout);
    ms_plan_destroy(plan);
}

static void measure_checkpoint(const char *path, long before)
{
    struct ms_checkpoint *checkpoint;
    struct ms_fault fault;
    size_t names = 0;
    const long resident = begin_peak();
    if (!ms_checkpoint_open(path, &checkpoint, &fault)) {
        report_refusal(resident);
        return;
    }
    printf("peak %ld\nafter %ld\n", peak() - resident, anonymous() - before);
    const size_t count = ms_checkpoint_count(checkpoint);
    for (size_t i = 0; i < count; i++)
        names += strlen(ms_checkpoint_tensor(checkpoint, i).name) + 1;
    printf("names %zu\ntensors %zu\n", names, count);
    ms_checkpoint_close(checkpoint);
}

int main(int argc, char **argv)
{
    static char buffer[1 << 16];
    if (argc != 3) {
        fputs("usage: measure-load plan|checkpoint FILE\n", stderr);
        return 2;
    }
    setvbuf(stdout, buffer, _IOFBF, sizeof(buffer));
    begin_peak(); /* once before, so that libc has what it wants for files */
    anonymous();
    const long before = anonymous(), heap_before = heap();
    (strcmp(argv[1], "plan") == 0 ? measure_plan : measure_checkpoint)(argv[2], before);
    printf("heap %ld\n", heap() - heap_before);
    return 0;
}
