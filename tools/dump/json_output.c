/* SPDX-License-Identifier: Apache-2.0 */
/* metashard-dump show --json, and list --json. */
#include "tools/dump/dump.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/state/counters.h"
#include "runtime/state/explain.h"
#include "tools/dump/merge.h"
#include "tools/json_writer.h"

/* How many rows of the lists are not written. */
struct left_out {
    size_t blocks, tensors, causes, events;
};

static size_t within(size_t count, size_t most, size_t *left_out)
{
    *left_out = count > most ? count - most : 0;
    return count - *left_out;
}

static void put_left_out(struct writer *object, const struct left_out *left_out)
{
    if (left_out->blocks + left_out->tensors + left_out->causes + left_out->events == 0)
        return;
    struct writer list = json_begin(object, "left_out", '{', true);
    put_number(&list, "blocks", left_out->blocks);
    put_number(&list, "tensors", left_out->tensors);
    put_number(&list, "causes", left_out->causes);
    put_number(&list, "events", left_out->events);
    json_end(&list, '}');
}

static void put_rank(struct writer *writer, const char *key, uint32_t value)
{
    if (value == MS_STATE_NO_RANK)
        put_value(writer, key, "null");
    else
        put_number(writer, key, value);
}

static void put_address(struct writer *writer, const char *key, uint64_t address)
{
    put_value(writer, key, "\"0x%" PRIx64 "\"", address);
}

static void put_cause_of(struct writer *block, const struct ms_state_block *record)
{
    if (record->backed_bytes == 0 && record->backed_call[0] == '\0')
        return;
    put_string(block, "backed_call", record->backed_call);
    put_string(block, "backed_reason", ms_reason_text(record->backed_reason));
}

static void put_block(struct writer *list, const struct ms_snapshot *snapshot,
                      const struct ms_state_block *record)
{
    struct writer block = json_begin(list, NULL, '{', true);
    const bool is_part = (record->flags & MS_BLOCK_PART) != 0;
    put_number(&block, "id", record->id);
    put_string(&block, "kind",
               is_part                                  ? "part"
               : (record->flags & MS_BLOCK_CARVED) != 0 ? "carved"
                                                        : "allocation");
    put_address(&block, "address", record->address);
    put_number(&block, "device", record->device);
    put_number(&block, "bytes", record->bytes);
    put_string(&block, "state", block_state(record));
    if (!is_part)
        put_number(&block, "backed_bytes", record->backed_bytes);
    put_number(&block, "deferred_bytes", record->deferred_bytes);
    put_number(&block, "cached_bytes", record->cached_bytes);
    put_number(&block, "remote_bytes", record->remote_bytes);
    struct writer lineage = json_begin(&block, "lineage_bytes", '{', true);
    for (int i = 0; i < MS_BYTES_KIND_COUNT; i++) {
        if (record->kind_bytes[i] > 0)
            put_number(&lineage, ms_state_kind_names[i], record->kind_bytes[i]);
    }
    json_end(&lineage, '}');
    if (record->name[0] != '\0')
        put_string(&block, "name", record->name);
    if (record->file > 0) {
        put_string(&block, "file", snapshot->files[record->file - 1].path);
        put_number(&block, "file_offset", record->file_offset);
    }
    put_cause_of(&block, record);
    put_number(&block, "allocated_ns", record->allocated_ns);
    put_number(&block, "changed_ns", record->changed_ns);
    json_end(&block, '}');
}

static void put_event(struct writer *list, const struct ms_state_event *record)
{
    struct writer event = json_begin(list, NULL, '{', true);
    put_number(&event, "number", record->sequence / 2 - 1);
    put_number(&event, "time_ns", record->time_ns);
    put_number(&event, "duration_ns", record->duration_ns);
    put_string(&event, "kind", ms_event_kind_name(record->kind));
    put_string(&event, "reason", ms_event_reason_text(record->kind, record->reason));
    put_string(&event, "call", record->call);
    put_string(&event, "text", record->text);
    put_number(&event, "block", record->block);
    put_address(&event, "address", record->address);
    put_number(&event, "bytes", record->bytes);
    put_number(&event, "thread", record->thread);
    json_end(&event, '}');
}

static void put_samples(struct writer *object, const struct ms_snapshot *snapshot, size_t most)
{
    size_t count;
    struct moment *moments = moments_of(snapshot, most, &count);
    struct writer list = json_begin(object, "samples", '[', false);
    for (size_t i = 0; i < count && moments != NULL; i++) {
        struct writer sample = json_begin(&list, NULL, '{', true);
        put_number(&sample, "time_ns", moments[i].time_ns);
        put_number(&sample, "live_bytes", moments[i].live_bytes);
        put_number(&sample, "deferred_bytes", moments[i].deferred_bytes);
        put_number(&sample, "backed_bytes", moments[i].backed_bytes);
        put_number(&sample, "h2d_bytes", moments[i].h2d_bytes);
        json_end(&sample, '}');
    }
    json_end(&list, ']');
    free(moments);
}

static void put_tensors(struct writer *object, const struct view *view, size_t most,
                        struct left_out *left_out)
{
    size_t count;
    struct tensor_row *rows = view_tensors(view, &count);
    count = within(count, most, &left_out->tensors);
    struct writer list = json_begin(object, "tensors", '[', false);
    for (size_t i = 0; i < count && rows != NULL; i++) {
        struct writer tensor = json_begin(&list, NULL, '{', true);
        put_string(&tensor, "name", rows[i].name);
        put_number(&tensor, "bytes", rows[i].bytes);
        put_number(&tensor, "deferred_bytes", rows[i].deferred_bytes);
        put_number(&tensor, "present_bytes", rows[i].present_bytes);
        put_number(&tensor, "file_bytes", rows[i].file_bytes);
        put_number(&tensor, "blocks", rows[i].blocks);
        json_end(&tensor, '}');
    }
    json_end(&list, ']');
    free(rows);
}

static void put_cause(struct writer *list, const struct ms_state_cause *record)
{
    struct writer cause = json_begin(list, NULL, '{', true);
    put_string(&cause, "kind", ms_event_kind_name(record->kind));
    put_string(&cause, "reason", ms_event_reason_text(record->kind, record->reason));
    put_string(&cause, "call", record->call);
    put_string(&cause, "text", record->text);
    put_number(&cause, "count", record->count);
    put_number(&cause, "bytes", record->bytes);
    put_number(&cause, "duration_ns", record->duration_ns);
    put_number(&cause, "loaded_count", record->loaded_count);
    put_number(&cause, "loaded_bytes", record->loaded_bytes);
    put_number(&cause, "loaded_duration_ns", record->loaded_duration_ns);
    put_number(&cause, "first_ns", record->first_ns);
    put_number(&cause, "last_ns", record->last_ns);
    if (record->sentence[0] != '\0')
        put_string(&cause, "explanation", record->sentence);
    json_end(&cause, '}');
}

static void put_causes(struct writer *object, const struct view *view, size_t most,
                       struct left_out *left_out)
{
    size_t count;
    struct ms_state_cause *causes = view_causes(view, WHOLE_RUN, &count);
    count = within(count, most, &left_out->causes);
    struct writer list = json_begin(object, "causes", '[', false);
    for (size_t i = 0; i < count; i++)
        put_cause(&list, &causes[i]);
    json_end(&list, ']');
    free(causes);
}

static void put_plan(struct writer *object, const struct ms_state_plan *record)
{
    if (record->generation == 0) {
        put_value(object, "plan", "null");
        return;
    }
    struct writer plan = json_begin(object, "plan", '{', true);
    put_string(&plan, "file", record->name);
    put_string(&plan, "mode", record->enforced != 0 ? "enforce" : "advise");
    put_rank(&plan, "rank", record->rank);
    put_rank(&plan, "world_size", record->world);
    put_number(&plan, "plans", record->generation);
    put_number(&plan, "tensors", record->tensors);
    put_number(&plan, "planned_bytes", record->planned_bytes);
    put_number(&plan, "owned_bytes", record->owned_bytes);
    json_end(&plan, '}');
}

/* A string for each part between "; ". */
static void put_parts(struct writer *object, const char *key, const char *text)
{
    char part[sizeof(((struct ms_state_device *)NULL)->unmet)];
    struct writer list = json_begin(object, key, '[', true);
    while (*text != '\0') {
        const char *end = strstr(text, "; ");
        const size_t length = end != NULL ? (size_t)(end - text) : strlen(text);
        snprintf(part, sizeof(part), "%.*s", (int)length, text);
        put_string(&list, NULL, part);
        text += length + (end != NULL ? 2 : 0);
    }
    json_end(&list, ']');
}

static void put_self_checks(struct writer *object, const struct ms_snapshot *snapshot)
{
    struct writer list = json_begin(object, "self_checks", '[', true);
    for (size_t i = 0; i < snapshot->device_count; i++) {
        const struct ms_state_device *device = &snapshot->devices[i];
        struct writer one = json_begin(&list, NULL, '{', true);
        put_string(&one, "state", ms_check_state_name(device->check));
        put_value(&one, "steps_aside", device->steps_aside != 0 ? "true" : "false");
        put_parts(&one, "unmet", device->unmet);
        json_end(&one, '}');
    }
    json_end(&list, ']');
}

static void put_setup(struct writer *object, const struct ms_snapshot *snapshot)
{
    struct writer options = json_begin(object, "options", '{', false);
    for (size_t i = 0; i < snapshot->option_count; i++)
        put_string(&options, snapshot->options[i].name, snapshot->options[i].value);
    json_end(&options, '}');
    struct writer devices = json_begin(object, "devices", '[', true);
    for (size_t i = 0; i < snapshot->device_count; i++)
        put_string(&devices, NULL, snapshot->devices[i].name);
    json_end(&devices, ']');
    put_self_checks(object, snapshot);
    put_plan(object, &snapshot->plan);
}

/* The largest blocks, and the last events. */
static void put_lists(struct writer *object, const struct ms_snapshot *snapshot, size_t most)
{
    const struct view view = {snapshot, 1};
    struct left_out left_out;
    put_samples(object, snapshot, most);
    struct writer blocks = json_begin(object, "blocks", '[', false);
    const size_t shown = within(snapshot->block_count, most, &left_out.blocks);
    for (size_t i = 0; i < shown; i++)
        put_block(&blocks, snapshot, &snapshot->blocks[i]);
    json_end(&blocks, ']');
    put_tensors(object, &view, most, &left_out);
    put_causes(object, &view, most, &left_out);
    struct writer events = json_begin(object, "events", '[', false);
    within(snapshot->event_count, most, &left_out.events);
    for (size_t i = left_out.events; i < snapshot->event_count; i++)
        put_event(&events, &snapshot->events[i]);
    json_end(&events, ']');
    put_left_out(object, &left_out);
}

/* Writes the figures that this program knows; a page may have others. */
static void put_figures(struct writer *object, const struct ms_snapshot *snapshot)
{
    const struct totals totals = totals_of(snapshot);
    for (int i = 0; i < MS_FIGURE_COUNT; i++)
        put_number(object, ms_counter_names[i], ms_snapshot_figure(snapshot, ms_counter_names[i]));
    put_number(object, "saved_bytes", totals.of[TOTAL_SAVED]);
    put_number(object, "skipped_bytes", totals.of[TOTAL_SKIPPED]);
}

static void put_job(struct writer *object, const struct ms_snapshot *snapshot)
{
    if (snapshot->process.job[0] != '\0')
        put_string(object, "job", snapshot->process.job);
    else
        put_value(object, "job", "null");
}

static void put_facts(struct writer *object, const struct ms_snapshot *snapshot)
{
    const struct ms_state_process *process = &snapshot->process;
    put_number(object, "pid", process->pid);
    put_rank(object, "rank", process->rank);
    put_rank(object, "world_size", process->world);
    put_string(object, "state", life_name(snapshot));
    put_string(object, "version", process->version);
    put_string(object, "page", snapshot->path);
    put_job(object, snapshot);
    put_string(object, "host", process->host);
    put_string(object, "command", process->command);
    put_string(object, "folder", process->folder);
    put_number(object, "started_unix_ns", process->started_ns);
    put_number(object, "time_ns", snapshot->taken_ns);
    put_number(object, "torn_records", snapshot->torn_records);
    put_number(object, "events_lost", snapshot->events_lost);
    put_figures(object, snapshot);
}

static void put_process(struct writer *object, const struct ms_snapshot *snapshot, size_t most)
{
    put_facts(object, snapshot);
    put_setup(object, snapshot);
    put_lists(object, snapshot, most);
}

static void put_totals(struct writer *object, const struct totals *totals)
{
    for (int i = 0; i < TOTAL_COUNT; i++)
        put_number(object, total_names[i].figure, totals->of[i]);
}

/* The process that took the most device memory. */
static void put_worst(struct writer *object, const struct ms_snapshot *worst)
{
    const struct totals totals = totals_of(worst);
    struct writer process = json_begin(object, "worst", '{', true);
    put_number(&process, "pid", worst->process.pid);
    put_rank(&process, "rank", worst->process.rank);
    put_job(&process, worst);
    put_totals(&process, &totals);
    json_end(&process, '}');
}

static void put_largest(struct writer *object, const struct view *view)
{
    const struct totals largest = view_largest(view);
    struct writer figures = json_begin(object, "largest", '{', true);
    put_totals(&figures, &largest);
    json_end(&figures, '}');
}

/* Several processes have no sum of memory: they may have lived one after another. */
static void put_processes(struct writer *object, const struct view *view, size_t most,
                          size_t most_merged)
{
    const struct ms_snapshot *worst = view_worst(view, "backed_bytes_peak");
    struct left_out left_out = {0};
    put_value(object, "pid", "null");
    put_value(object, "rank", "null");
    put_number(object, "runs", view_runs(view));
    put_worst(object, worst);
    put_largest(object, view);
    put_samples(object, worst, most_merged);
    put_tensors(object, view, most_merged, &left_out);
    put_causes(object, view, most_merged, &left_out);
    put_left_out(object, &left_out);
    struct writer list = json_begin(object, "processes", '[', false);
    for (size_t i = 0; i < view->count; i++) {
        struct writer process = json_begin(&list, NULL, '{', false);
        put_process(&process, &view->processes[i], most);
        json_end(&process, '}');
    }
    json_end(&list, ']');
}

void write_json(FILE *file, const struct view *view, size_t most, size_t most_merged)
{
    struct writer object = json_document(file);
    put_string(&object, "format", "metashard-state/3");
    if (view->count == 1)
        put_process(&object, &view->processes[0], most);
    else
        put_processes(&object, view, most, most_merged);
    json_document_end(&object);
}

void write_list_json(FILE *file, const struct view *view)
{
    struct writer object = json_document(file);
    put_string(&object, "format", "metashard-list/1");
    struct writer list = json_begin(&object, "processes", '[', false);
    for (size_t i = 0; i < view->count; i++) {
        struct writer process = json_begin(&list, NULL, '{', true);
        put_facts(&process, &view->processes[i]);
        json_end(&process, '}');
    }
    json_end(&list, ']');
    json_document_end(&object);
}
