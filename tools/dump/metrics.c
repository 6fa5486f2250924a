/* SPDX-License-Identifier: Apache-2.0 */
/* metashard-dump metrics: the processes that live, as OpenMetrics text, for what collects it. */
#include <inttypes.h>
#include <string.h>

#include "tools/dump/dump.h"

static const struct metric {
    const char *figure, *name, *type, *help; /* a counter's sample ends in _total */
} metrics[] = {
    {"live_bytes", "live_bytes", "gauge", "Deferred allocations that are not freed, bytes."},
    {"live_bytes_peak", "live_peak_bytes", "gauge",
     "Peak size of deferred allocations (the peak without MetaShard), bytes."},
    {"backed_bytes", "backed_bytes", "gauge", "Device memory of deferred allocations, bytes."},
    {"backed_bytes_peak", "backed_peak_bytes", "gauge", "Peak of that device memory, bytes."},
    {"deferred_bytes", "deferred_bytes", "gauge", "Deferred bytes without device memory."},
    {"snapshot_bytes", "snapshot_bytes", "gauge",
     "Host memory for copies of data that is in no file, bytes."},
    {"h2d_bytes", "copied_bytes", "counter", "Bytes that MetaShard copied to the device."},
    {"file_read_bytes", "file_read_bytes", "counter",
     "Bytes that MetaShard read from checkpoints."},
    {"materialised_bytes", "materialised_bytes", "counter",
     "Bytes that MetaShard loaded into device memory."},
    {"fallbacks", "fallbacks", "counter", "Calls that loaded more bytes than they read."},
};

static void print_label(const char *name, const char *value)
{
    printf(",%s=\"", name);
    for (; *value != '\0'; value++) {
        if (*value == '\n')
            fputs("\\n", stdout);
        else
            printf(*value == '"' || *value == '\\' ? "\\%c" : "%c", *value);
    }
    putchar('"');
}

/* The devices that the process has used, as "0" or "0,3". */
static void print_devices(const struct ms_snapshot *snapshot)
{
    const char *before = ",device=\"";
    for (size_t i = 0; i < snapshot->device_count; i++)
        if (snapshot->devices[i].check != MS_CHECK_NONE || snapshot->devices[i].steps_aside != 0) {
            printf("%s%zu", before, i);
            before = ",";
        }
    if (before[1] == '\0')
        putchar('"');
}

/* `job` would be the label that a collector gives to itself. */
static void print_labels(const struct ms_snapshot *snapshot)
{
    const struct ms_state_process *process = &snapshot->process;
    printf("{pid=\"%" PRIu64 "\"", process->pid);
    if (process->rank != MS_STATE_NO_RANK)
        printf(",rank=\"%" PRIu32 "\"", process->rank);
    print_devices(snapshot);
    print_label("host", process->host);
    if (process->job[0] != '\0')
        print_label("metashard_job", process->job);
}

static void print_sample(const struct metric *metric, const struct ms_snapshot *snapshot)
{
    printf("metashard_%s%s", metric->name, metric->type[0] == 'c' ? "_total" : "");
    print_labels(snapshot);
    printf("} %" PRIu64 "\n", ms_snapshot_figure(snapshot, metric->figure));
}

static void print_process(const struct ms_snapshot *snapshot)
{
    fputs("metashard_process_info", stdout);
    print_labels(snapshot);
    print_label("version", snapshot->process.version);
    print_label("command", snapshot->process.command);
    puts("} 1");
}

static void print_processes(const struct view *view)
{
    puts("# TYPE metashard_process info\n# HELP metashard_process The processes under MetaShard.");
    for (size_t p = 0; p < view->count; p++)
        if (view->processes[p].life == MS_LIFE_ALIVE)
            print_process(&view->processes[p]);
}

/* The unit is the last word of a name that has one. */
static void print_family(const struct metric *metric)
{
    const char *unit = strrchr(metric->name, '_');
    printf("# TYPE metashard_%s %s\n", metric->name, metric->type);
    if (unit != NULL && strcmp(unit, "_bytes") == 0)
        printf("# UNIT metashard_%s bytes\n", metric->name);
    printf("# HELP metashard_%s %s\n", metric->name, metric->help);
}

int run_metrics(const struct options *options)
{
    struct view view;
    const bool is_good = view_find(&view, options->job);
    print_processes(&view);
    for (size_t i = 0; i < sizeof(metrics) / sizeof(metrics[0]); i++) {
        print_family(&metrics[i]);
        for (size_t p = 0; p < view.count; p++)
            if (view.processes[p].life == MS_LIFE_ALIVE)
                print_sample(&metrics[i], &view.processes[p]);
    }
    puts("# EOF");
    view_close(&view);
    return is_good ? GOOD : BAD;
}
