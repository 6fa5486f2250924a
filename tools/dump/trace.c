/* SPDX-License-Identifier: Apache-2.0 */
/*
 * metashard-dump show --trace: one JSON object in Chrome's trace event format, which Perfetto and
 * chrome://tracing open. Events are slices of their threads, or instants, named by tensor and
 * kernel; memory is counters. All
 * processes are on one clock, which starts with the first of them. Entries are in the order of
 * time.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/state/explain.h"
#include "tools/dump/merge.h"
#include "tools/json_writer.h"

/* An event or a sample of a process, and its time. */
struct entry {
    uint64_t time_ns;
    size_t process;
    const struct ms_state_event *event; /* NULL for a sample */
    const struct ms_state_sample *sample;
};

struct trace {
    struct writer list;
    struct view view;
    bool has_ids; /* process ids differ; else their numbers stand for them */
    const struct ms_state_block ***blocks; /* of each process, by id and address */
};

/* Microseconds, to the nanosecond. */
static void put_time(struct writer *writer, const char *key, uint64_t ns)
{
    put_value(writer, key, "%" PRIu64 ".%03u", ns / 1000, (unsigned)(ns % 1000));
}

static uint64_t process_id(const struct trace *trace, size_t process)
{
    return trace->has_ids ? trace->view.processes[process].process.pid : process + 1;
}

/* Begins an entry with the fields that all entries have; most go on with their arguments. */
static struct writer begin_entry(struct trace *trace, const char *phase, uint64_t time_ns,
                                 size_t process, uint64_t thread, const char *name)
{
    struct writer entry = json_begin(&trace->list, NULL, '{', true);
    put_string(&entry, "ph", phase);
    put_time(&entry, "ts", time_ns);
    put_number(&entry, "pid", process_id(trace, process));
    put_number(&entry, "tid", thread);
    put_string(&entry, "name", name);
    return entry;
}

static void end_entry(struct writer *entry, struct writer *arguments)
{
    json_end(arguments, '}');
    json_end(entry, '}');
}

/* --- names */

static void put_name(struct trace *trace, size_t process, uint64_t thread, const char *what,
                     const char *key, const char *name)
{
    struct writer entry = begin_entry(trace, "M", 0, process, thread, what);
    struct writer arguments = json_begin(&entry, "args", '{', true);
    put_string(&arguments, key, name);
    end_entry(&entry, &arguments);
}

static void name_process(struct trace *trace, size_t number)
{
    const struct ms_snapshot *snapshot = &trace->view.processes[number];
    const struct ms_state_process *process = &snapshot->process;
    const uint64_t id = process_id(trace, number);
    char name[96];
    if (has_rank(snapshot))
        snprintf(name, sizeof(name), "rank %" PRIu32 ", process %" PRIu64 ", %s", process->rank,
                 process->pid, life_name(snapshot));
    else
        snprintf(name, sizeof(name), "process %" PRIu64 ", %s", process->pid, life_name(snapshot));
    put_name(trace, number, id, "process_name", "name", name);
    put_name(trace, number, id, "process_labels", "labels", process->command);
    put_name(trace, number, process->pid, "thread_name", "name", "main thread");
    struct writer entry = begin_entry(trace, "M", 0, number, id, "process_sort_index");
    struct writer arguments = json_begin(&entry, "args", '{', true);
    put_number(&arguments, "sort_index", number);
    end_entry(&entry, &arguments);
}

/* --- what happened */

static int by_place(const void *a, const void *b)
{
    const struct ms_state_block *left = *(const struct ms_state_block *const *)a;
    const struct ms_state_block *right = *(const struct ms_state_block *const *)b;
    if (left->id != right->id)
        return left->id < right->id ? -1 : 1;
    if (left->address != right->address)
        return left->address < right->address ? -1 : 1;
    return (int)(left->flags & MS_BLOCK_PART) - (int)(right->flags & MS_BLOCK_PART);
}

static const struct ms_state_block **sorted_blocks(const struct ms_snapshot *snapshot)
{
    const struct ms_state_block **blocks = calloc(snapshot->block_count + 1, sizeof(*blocks));
    for (size_t i = 0; i < snapshot->block_count && blocks != NULL; i++)
        blocks[i] = &snapshot->blocks[i];
    if (blocks != NULL)
        qsort(blocks, snapshot->block_count, sizeof(*blocks), by_place);
    return blocks;
}

/* The block or the part of one that the event's bytes begin in, or NULL. */
static const struct ms_state_block *block_of(const struct trace *trace, const struct entry *entry)
{
    const struct ms_state_event *event = entry->event;
    const struct ms_state_block wanted = {.id = event->block,
                                          .address = event->address,
                                          .flags = MS_BLOCK_PART};
    const struct ms_state_block *key = &wanted, **blocks = trace->blocks[entry->process];
    size_t low = 0, high = trace->view.processes[entry->process].block_count;
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        if (by_place(&blocks[middle], &key) <= 0)
            low = middle + 1;
        else
            high = middle;
    }
    if (low == 0)
        return NULL;
    const struct ms_state_block *block = blocks[low - 1];
    const bool is_in = block->id == event->block && event->address - block->address < block->bytes;
    return is_in ? block : NULL;
}

/* "layers.0.weight, fill32 (replay)": the tensor, and the kernel or what else is known. */
static void name_event(const struct ms_state_event *event, const char *tensor, char *name,
                       size_t bytes)
{
    const char *kind = ms_event_kind_name(event->kind);
    const char *text = strcmp(event->text, tensor) != 0 ? event->text : "";
    if (tensor[0] == '\0' && text[0] == '\0')
        snprintf(name, bytes, "%s", kind);
    else
        snprintf(name, bytes, "%s%s%s (%s)", tensor,
                 tensor[0] != '\0' && text[0] != '\0' ? ", " : "", text, kind);
}

/* Omits the reason that a call needs the bytes, unless bytes were materialised. */
static void put_event(struct trace *trace, const struct entry *entry)
{
    const struct ms_state_event *event = entry->event;
    const char *kind = ms_event_kind_name(event->kind);
    const struct ms_state_block *block = block_of(trace, entry);
    const char *tensor = block != NULL ? block->name : "";
    char name[sizeof(event->text) + sizeof(block->name) + 32];
    name_event(event, tensor, name, sizeof(name));
    struct writer object = begin_entry(trace, event->duration_ns > 0 ? "X" : "i", entry->time_ns,
                                       entry->process, event->thread, name);
    if (event->duration_ns > 0)
        put_time(&object, "dur", event->duration_ns);
    else
        put_string(&object, "s", "t");
    put_string(&object, "cat", kind);
    struct writer arguments = json_begin(&object, "args", '{', true);
    put_number(&arguments, "number", event->sequence / 2 - 1);
    put_number(&arguments, "bytes", event->bytes);
    put_number(&arguments, "block", event->block);
    put_value(&arguments, "address", "\"0x%" PRIx64 "\"", event->address);
    const char *const texts[][2] = {{"cause", ms_event_reason_text(event->kind, event->reason)},
                                    {"call", event->call},
                                    {"text", event->text},
                                    {"tensor", tensor}};
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        if (texts[i][1][0] != '\0')
            put_string(&arguments, texts[i][0], texts[i][1]);
    }
    end_entry(&object, &arguments);
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
        struct writer object =
            begin_entry(trace, "C", entry->time_ns, entry->process, 0, all[i].name);
        put_string(&object, "cat", "memory");
        struct writer arguments = json_begin(&object, "args", '{', true);
        put_number(&arguments, "bytes", all[i].bytes);
        end_entry(&object, &arguments);
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

static struct entry *entries_of(const struct view *view, size_t *count_out)
{
    size_t count = 0;
    for (size_t p = 0; p < view->count; p++)
        count += view->processes[p].event_count + view->processes[p].sample_count;
    struct entry *entries = calloc(count + 1, sizeof(*entries));
    count = 0;
    for (size_t p = 0; p < view->count && entries != NULL; p++) {
        const struct ms_snapshot *snapshot = &view->processes[p];
        const uint64_t shift = view_shift_ns(view, snapshot);
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

static bool ids_differ(const struct view *view)
{
    for (size_t i = 0; i < view->count; i++) {
        for (size_t j = 0; j < i; j++) {
            if (view->processes[i].process.pid == view->processes[j].process.pid)
                return false;
        }
    }
    return true;
}

/* The numbers are texts there. */
static void put_data(struct writer *object, const struct view *view)
{
    uint64_t lost = 0, torn = 0;
    for (size_t p = 0; p < view->count; p++) {
        lost += view->processes[p].events_lost;
        torn += view->processes[p].torn_records;
    }
    struct writer data = json_begin(object, "otherData", '{', true);
    put_string(&data, "format", "metashard-trace/1");
    put_value(&data, "started_unix_ns", "\"%" PRIu64 "\"", view_start_ns(view));
    put_value(&data, "events_lost", "\"%" PRIu64 "\"", lost);
    put_value(&data, "torn_records", "\"%" PRIu64 "\"", torn);
    json_end(&data, '}');
}

static void write_entries(FILE *file, const struct view *view,
                          const struct ms_state_block ***blocks, const struct entry *entries,
                          size_t count)
{
    struct writer object = json_document(file);
    put_string(&object, "displayTimeUnit", "ms");
    struct trace trace = {json_begin(&object, "traceEvents", '[', false), *view, ids_differ(view),
                          blocks};
    for (size_t p = 0; p < view->count; p++)
        name_process(&trace, p);
    for (size_t i = 0; i < count; i++)
        (entries[i].event != NULL ? put_event : put_sample)(&trace, &entries[i]);
    json_end(&trace.list, ']');
    put_data(&object, view);
    json_document_end(&object);
}

static bool write_events(FILE *file, const struct view *view)
{
    size_t count, done = 0;
    struct entry *entries = entries_of(view, &count);
    const struct ms_state_block ***blocks = calloc(view->count, sizeof(*blocks));
    while (blocks != NULL && done < view->count &&
           (blocks[done] = sorted_blocks(&view->processes[done])) != NULL)
        done++;
    const bool is_good = entries != NULL && done == view->count;
    if (is_good)
        write_entries(file, view, blocks, entries, count);
    while (done > 0)
        free(blocks[--done]);
    free(blocks);
    free(entries);
    return is_good;
}

bool write_trace(const char *path, const struct view *view)
{
    return write_output(path, view, write_events);
}
