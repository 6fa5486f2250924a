/* SPDX-License-Identifier: Apache-2.0 */
/*
 * metashard-dump show --trace: one JSON object in Chrome's trace event format, which Perfetto and
 * chrome://tracing open. Events are slices of their threads, or instants; memory is counters. All
 * processes are on one clock, which starts with the first of them. Entries are in the order of
 * time.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/state/explain.h"
#include "tools/dump/merge.h"
#include "tools/dump/output_file.h"

/* An event or a sample of a process, and its time. */
struct entry {
    uint64_t time_ns;
    size_t process;
    const struct ms_state_event *event; /* NULL for a sample */
    const struct ms_state_sample *sample;
};

struct trace {
    FILE *file;
    struct group group;
    bool has_ids; /* process ids differ; otherwise their numbers stand in for them */
    bool is_later;
};

static uint64_t process_id(const struct trace *trace, size_t process)
{
    return trace->has_ids ? trace->group.processes[process].process.pid : process + 1;
}

static void put_text(FILE *file, const char *text)
{
    putc('"', file);
    for (; *text != '\0'; text++) {
        if (*text == '"' || *text == '\\')
            putc('\\', file);
        putc(*text, file); /* the view has no control characters */
    }
    putc('"', file);
}

static void next(struct trace *trace)
{
    fputs(trace->is_later ? ",\n" : "\n", trace->file);
    trace->is_later = true;
}

/* Writes microseconds, to the nanosecond. */
static void put_time(const struct trace *trace, const char *key, uint64_t ns)
{
    fprintf(trace->file, ", \"%s\": %" PRIu64 ".%03u", key, ns / 1000, (unsigned)(ns % 1000));
}

/* --- names */

static void begin_name(struct trace *trace, size_t process, uint64_t thread, const char *what)
{
    next(trace);
    fprintf(trace->file,
            "{\"ph\": \"M\", \"ts\": 0, \"pid\": %" PRIu64 ", \"tid\": %" PRIu64
            ", \"name\": \"%s\", \"args\": {",
            process_id(trace, process), thread, what);
}

static void name_process(struct trace *trace, size_t number)
{
    const struct ms_snapshot *snapshot = &trace->group.processes[number];
    const struct ms_state_process *process = &snapshot->process;
    char name[96];
    if (has_rank(snapshot))
        snprintf(name, sizeof(name), "rank %" PRIu32 ", process %" PRIu64 ", %s", process->rank,
                 process->pid, life_name(snapshot));
    else
        snprintf(name, sizeof(name), "process %" PRIu64 ", %s", process->pid, life_name(snapshot));
    begin_name(trace, number, process_id(trace, number), "process_name");
    fputs("\"name\": ", trace->file);
    put_text(trace->file, name);
    fputs("}}", trace->file);
    begin_name(trace, number, process_id(trace, number), "process_labels");
    fputs("\"labels\": ", trace->file);
    put_text(trace->file, process->command);
    fputs("}}", trace->file);
    begin_name(trace, number, process_id(trace, number), "process_sort_index");
    fprintf(trace->file, "\"sort_index\": %zu}}", number);
}

static int by_number(const void *a, const void *b)
{
    const uint32_t left = *(const uint32_t *)a, right = *(const uint32_t *)b;
    return left < right ? -1 : left > right;
}

/* The thread with the process's number is its first one. */
static bool name_threads(struct trace *trace, size_t number)
{
    const struct ms_snapshot *snapshot = &trace->group.processes[number];
    uint32_t *threads = calloc(snapshot->event_count + 1, sizeof(*threads));
    if (threads == NULL)
        return false;
    for (size_t i = 0; i < snapshot->event_count; i++)
        threads[i] = snapshot->events[i].thread;
    qsort(threads, snapshot->event_count, sizeof(*threads), by_number);
    for (size_t i = 0; i < snapshot->event_count; i++) {
        if (i > 0 && threads[i] == threads[i - 1])
            continue;
        begin_name(trace, number, threads[i], "thread_name");
        fprintf(trace->file, "\"name\": \"%s %" PRIu32 "\"}}",
                threads[i] == snapshot->process.pid ? "main thread" : "thread", threads[i]);
    }
    free(threads);
    return true;
}

/* --- what happened */

/* Omits the reason that a call needs the bytes, unless bytes were materialised. */
static void put_event(struct trace *trace, const struct entry *entry)
{
    FILE *file = trace->file;
    const struct ms_state_event *event = entry->event;
    const char *kind = ms_event_kind_name(event->kind);
    fprintf(file, "{\"ph\": \"%s\"", event->duration_ns > 0 ? "X" : "i");
    put_time(trace, "ts", entry->time_ns);
    if (event->duration_ns > 0)
        put_time(trace, "dur", event->duration_ns);
    else
        fputs(", \"s\": \"t\"", file);
    fprintf(file,
            ", \"pid\": %" PRIu64 ", \"tid\": %" PRIu32
            ", \"cat\": \"%s\", \"name\": \"%s\", \"args\": {\"number\": %" PRIu64
            ", \"bytes\": %" PRIu64 ", \"block\": %" PRIu64 ", \"address\": \"0x%" PRIx64 "\"",
            process_id(trace, entry->process), event->thread, kind, kind, event->sequence / 2 - 1,
            event->bytes, event->block, event->address);
    const char *const texts[][2] = {{"cause", ms_event_reason_text(event->kind, event->reason)},
                                    {"call", event->call},
                                    {"text", event->text}};
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        if (texts[i][1][0] == '\0')
            continue;
        fprintf(file, ", \"%s\": ", texts[i][0]);
        put_text(file, texts[i][1]);
    }
    fputs("}}", file);
}

static void put_sample(struct trace *trace, const struct entry *entry)
{
    const struct {
        const char *name;
        uint64_t bytes;
    } all[] = {{"requested", entry->sample->live_bytes},
               {"deferred", entry->sample->deferred_bytes},
               {"backed", entry->sample->backed_bytes},
               {"copied to the device", entry->sample->h2d_bytes}};
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        if (i > 0)
            next(trace);
        fputs("{\"ph\": \"C\"", trace->file);
        put_time(trace, "ts", entry->time_ns);
        fprintf(
            trace->file,
            ", \"pid\": %" PRIu64
            ", \"tid\": 0, \"cat\": \"memory\", \"name\": \"%s\", \"args\": {\"bytes\": %" PRIu64
            "}}",
            process_id(trace, entry->process), all[i].name, all[i].bytes);
    }
}

/* Earlier ones first, then longer ones, so that a slice comes before those inside it. */
static int by_time(const void *a, const void *b)
{
    const struct entry *left = a, *right = b;
    if (left->time_ns != right->time_ns)
        return left->time_ns < right->time_ns ? -1 : 1;
    const uint64_t left_ns = left->event != NULL ? left->event->duration_ns : 0;
    const uint64_t right_ns = right->event != NULL ? right->event->duration_ns : 0;
    if (left_ns != right_ns)
        return left_ns > right_ns ? -1 : 1;
    if (left->process != right->process)
        return left->process < right->process ? -1 : 1;
    if (left->event != NULL && right->event != NULL)
        return left->event < right->event ? -1 : left->event > right->event;
    return (left->event == NULL) - (right->event == NULL);
}

static struct entry *entries_of(const struct group *group, size_t *count_out)
{
    size_t count = 0;
    for (size_t p = 0; p < group->count; p++)
        count += group->processes[p].event_count + group->processes[p].sample_count;
    struct entry *entries = calloc(count + 1, sizeof(*entries));
    count = 0;
    for (size_t p = 0; p < group->count && entries != NULL; p++) {
        const struct ms_snapshot *snapshot = &group->processes[p];
        const uint64_t shift = group_shift_ns(group, snapshot);
        for (size_t i = 0; i < snapshot->event_count; i++) {
            const struct ms_state_event *event = &snapshot->events[i];
            const uint64_t end = event->time_ns + shift;
            /* In a damaged page, an event may be longer than the time until its end. */
            const uint64_t begin = end > event->duration_ns ? end - event->duration_ns : 0;
            entries[count++] = (struct entry){begin, p, event, NULL};
        }
        for (size_t i = 0; i < snapshot->sample_count; i++)
            entries[count++] = (struct entry){snapshot->samples[i].time_ns + shift, p, NULL,
                                              &snapshot->samples[i]};
    }
    if (entries != NULL)
        qsort(entries, count, sizeof(*entries), by_time);
    *count_out = count;
    return entries;
}

/* --- the file */

static bool ids_differ(const struct group *group)
{
    for (size_t i = 0; i < group->count; i++) {
        for (size_t j = 0; j < i; j++) {
            if (group->processes[i].process.pid == group->processes[j].process.pid)
                return false;
        }
    }
    return true;
}

static void put_data(const struct trace *trace)
{
    uint64_t lost = 0, torn = 0;
    for (size_t p = 0; p < trace->group.count; p++) {
        lost += trace->group.processes[p].events_lost;
        torn += trace->group.processes[p].torn_records;
    }
    fprintf(
        trace->file,
        "\n],\n\"otherData\": {\"format\": \"metashard-trace/1\", \"started_unix_ns\": \"%" PRIu64
        "\", \"events_lost\": \"%" PRIu64 "\", \"torn_records\": \"%" PRIu64 "\"}}\n",
        group_start_ns(&trace->group), lost, torn);
}

static bool write_events(FILE *file, const struct view *view)
{
    struct trace trace = {file, {view->processes, view->count}, true, false};
    size_t count;
    struct entry *entries = entries_of(&trace.group, &count);
    if (entries == NULL)
        return false;
    trace.has_ids = ids_differ(&trace.group);
    bool is_good = true;
    fputs("{\"displayTimeUnit\": \"ms\",\n\"traceEvents\": [", file);
    for (size_t p = 0; p < view->count && is_good; p++) {
        name_process(&trace, p);
        is_good = name_threads(&trace, p);
    }
    for (size_t i = 0; i < count; i++) {
        next(&trace);
        (entries[i].event != NULL ? put_event : put_sample)(&trace, &entries[i]);
    }
    put_data(&trace);
    free(entries);
    return is_good;
}

bool write_trace(const char *path, const struct view *view)
{
    return write_output(path, view, write_events);
}
