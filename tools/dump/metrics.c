/* SPDX-License-Identifier: Apache-2.0 */
/* metashard-dump metrics: the processes that live, as OpenMetrics text, for what collects it. */
#include <inttypes.h>

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

static void print_sample(const struct metric *metric, const struct ms_snapshot *snapshot)
{
    printf("metashard_%s%s{pid=\"%" PRIu64 "\"", metric->name,
           metric->type[0] == 'c' ? "_total" : "", snapshot->process.pid);
    if (snapshot->process.rank != MS_STATE_NO_RANK)
        printf(",rank=\"%" PRIu32 "\"", (uint32_t)snapshot->process.rank);
    if (snapshot->process.job[0] != '\0')
        print_label("job", snapshot->process.job);
    printf("} %" PRIu64 "\n", ms_snapshot_figure(snapshot, metric->figure));
}

int run_metrics(const struct options *options)
{
    struct view view;
    const bool is_good = view_find(&view, options->job);
    for (size_t i = 0; i < sizeof(metrics) / sizeof(metrics[0]); i++) {
        printf("# TYPE metashard_%s %s\n# HELP metashard_%s %s\n", metrics[i].name, metrics[i].type,
               metrics[i].name, metrics[i].help);
        for (size_t p = 0; p < view.count; p++)
            if (view.processes[p].life == MS_LIFE_ALIVE)
                print_sample(&metrics[i], &view.processes[p]);
    }
    puts("# EOF");
    view_close(&view);
    return is_good ? GOOD : BAD;
}
