/* SPDX-License-Identifier: Apache-2.0 */
/*
 * probe [--quick] [--kernels FILE] [--out FILE] [--group GROUP] [--section NAME]... : see probe.h.
 * The kernels come from the embedded PTX, or from FILE: a driver that cannot compile PTX may have
 * them otherwise. GROUP: first, rest or faults; without it, and without sections, all three.
 *
 * Exit status: 0 when the JSON was written, whatever the measurements said; 77 when there is no
 * driver or no device (the JSON then says {"skipped": "..."}); 2 for a wrong command line.
 */
#include "tests/gpu/probe.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { EXIT_SKIPPED = 77 };

/* Sections that are cheap and needed first, that leave the device as it was, that make it fault. */
enum group { FIRST, REST, FAULTS, GROUP_COUNT };
static const char *const group_names[GROUP_COUNT] = {"first", "rest", "faults"};

static const struct {
    enum group group;
    const char *name;
    const struct probe_row *rows;
    int limit_seconds;
} sections[] = {
    {FIRST, "device", section_device, 30},
    {FIRST, "shim", section_shim, 30},
    {FIRST, "accounting", section_accounting, 30},
    {FIRST, "order", section_order, 30},
    {FIRST, "pageable", section_pageable, 30},
    {FIRST, "parameters", section_parameters, 30},
    {REST, "resolver", section_resolver, 30},
    {REST, "reserve", section_reserve, 30},
    {REST, "fresh_memory", section_fresh_memory, 30},
    {REST, "cost", section_cost, 30},
    {REST, "mappings", section_mappings, 30},
    {REST, "pools", section_pools, 30},
    {REST, "busy", section_busy, 30},
    {REST, "alias", section_alias, 30},
    {REST, "attributes", section_attributes, 30},
    {REST, "capture", section_capture, 60},
    {REST, "edges", section_edges, 30},
    {FAULTS, "unmapped", section_unmapped, 90},
    {FAULTS, "access_flags", section_access_flags, 40},
    {FAULTS, "past_end", section_past_end, 60},
};

static bool is_wanted[ARRAY_COUNT(sections)];

/* Those of a group, or of a name; false when there is none. */
static bool want(const char *group, const char *name)
{
    bool found = false;
    for (size_t i = 0; i < ARRAY_COUNT(sections); i++)
        if ((group == NULL || strcmp(group, group_names[sections[i].group]) == 0) &&
            (name == NULL || strcmp(name, sections[i].name) == 0))
            found = is_wanted[i] = true;
    return found;
}

static bool parse(int count, char **words, const char **path_out)
{
    bool some = false;
    for (int i = 1; i < count; i++) {
        const char *const word = words[i];
        if (strcmp(word, "--quick") == 0)
            probe_quick = true;
        else if (++i == count)
            return false;
        else if (strcmp(word, "--out") == 0)
            *path_out = words[i];
        else if (strcmp(word, "--kernels") == 0)
            probe_kernel_file = words[i];
        else if (strcmp(word, "--group") == 0 && want(words[i], NULL))
            some = true;
        else if (strcmp(word, "--section") == 0 && want(NULL, words[i]))
            some = true;
        else
            return false;
    }
    return some || want(NULL, NULL);
}

/*
 * Holds a context for the whole run: without persistence mode the driver shuts the device down when
 * its last client ends, and every child would pay seconds for starting it again. The answer on the
 * pipe is 'y', or 'n' and a reason.
 */
static void keep_device(int answer)
{
    char error[512] = "";
    CUcontext context;
    int devices = 0;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (probe_driver_load(error, sizeof(error))) {
        if (CU(cuInit, 0) != CUDA_SUCCESS)
            snprintf(error, sizeof(error), "cuInit failed");
        else if (CU(cuDeviceGetCount, &devices) != CUDA_SUCCESS || devices == 0)
            snprintf(error, sizeof(error), "no CUDA device");
        else if (CU(cuDevicePrimaryCtxRetain, &context, 0) != CUDA_SUCCESS)
            snprintf(error, sizeof(error), "no context on device 0");
    }
    char text[600];
    const int length = snprintf(text, sizeof(text), "%c%s", error[0] == '\0' ? 'y' : 'n', error);
    if (write(answer, text, (size_t)length) != length || error[0] != '\0')
        _exit(1);
    for (;;)
        pause();
}

static pid_t start_keeper(char *answer, size_t capacity)
{
    int ends[2];
    answer[0] = '\0';
    if (pipe(ends) != 0)
        return -1;
    const pid_t pid = fork();
    if (pid == 0) {
        close(ends[0]);
        keep_device(ends[1]);
    }
    close(ends[1]);
    const ssize_t got = read(ends[0], answer, capacity - 1);
    answer[got > 0 ? got : 0] = '\0';
    close(ends[0]);
    return pid;
}

static void run_sections(int64_t start_ns)
{
    js_number("driver_start_ms", (double)(probe_clock_ns() - start_ns) / 1e6);
    for (size_t i = 0; i < ARRAY_COUNT(sections); i++) {
        const int64_t section_ns = probe_clock_ns();
        if (!is_wanted[i])
            continue;
        probe_child(sections[i].name, sections[i].limit_seconds, probe_section,
                    (size_t)sections[i].rows);
        fprintf(stderr, "%-14s %7.2f s\n", sections[i].name,
                (double)(probe_clock_ns() - section_ns) / 1e9);
    }
    js_number("seconds", (double)(probe_clock_ns() - start_ns) / 1e9);
}

int main(int count, char **words)
{
    const char *path = NULL;
    if (!parse(count, words, &path)) {
        fprintf(stderr, "usage: probe [--quick] [--kernels FILE] [--out FILE] "
                        "[--group first|rest|faults] [--section NAME]...\n");
        return 2;
    }
    const int descriptor =
        path == NULL ? STDOUT_FILENO : open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (descriptor < 0) {
        perror(path);
        return 2;
    }
    char answer[600];
    const int64_t start_ns = probe_clock_ns();
    const pid_t keeper = start_keeper(answer, sizeof(answer));
    js_begin(descriptor);
    js_string("format", "metashard-probe-2");
    js_open_list("sections");
    for (size_t i = 0; i < ARRAY_COUNT(sections); i++)
        if (is_wanted[i])
            js_string(NULL, sections[i].name);
    js_close();
    if (answer[0] == 'y')
        run_sections(start_ns);
    else
        js_string("skipped", answer[0] == 'n' ? answer + 1 : "the driver ended the process");
    js_end();
    if (keeper > 0) {
        kill(keeper, SIGKILL);
        waitpid(keeper, NULL, 0);
    }
    return answer[0] == 'y' ? 0 : EXIT_SKIPPED;
}
