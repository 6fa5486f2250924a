/* SPDX-License-Identifier: Apache-2.0 */
/* metashard-dump diff: the differences between two processes, or two copies of one page. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/state/counters.h"
#include "runtime/state/explain.h"
#include "tools/dump/line.h"
#include "tools/dump/merge.h"

static bool ends_with(const char *text, const char *end)
{
    const size_t length = strlen(text), end_length = strlen(end);
    return length >= end_length && strcmp(text + length - end_length, end) == 0;
}

/* Formats a figure as its name says: bytes, a time, or a number. */
static const char *value_text(const char *name, uint64_t value, char buffer[32])
{
    if (strstr(name, "bytes") != NULL)
        return bytes_text(value);
    if (ends_with(name, "_ns"))
        return time_text(value);
    snprintf(buffer, 32, "%" PRIu64, value);
    return buffer;
}

static void show_change(const char *name, uint64_t before, uint64_t after)
{
    char texts[3][32];
    const bool grows = after > before;
    line(PLAIN, "  %-26s %13s %13s %s%s", name, value_text(name, before, texts[0]),
         value_text(name, after, texts[1]), grows ? "+" : "-",
         value_text(name, grows ? after - before : before - after, texts[2]));
}

static bool is_same_process(const struct ms_snapshot *a, const struct ms_snapshot *b)
{
    return a->process.pid == b->process.pid && a->process.start_ticks == b->process.start_ticks &&
           a->process.started_ns == b->process.started_ns;
}

static void show_title(const struct view *view)
{
    for (size_t i = 0; i < 2; i++) {
        const struct ms_snapshot *snapshot = &view->processes[i];
        line(BOLD, "%c: process %" PRIu64 ", %s after %s: %s", "AB"[i], snapshot -> process.pid,
             life_name(snapshot), time_text(snapshot->taken_ns), snapshot->process.command);
    }
}

static size_t show_options(const struct ms_snapshot *a, const struct ms_snapshot *b)
{
    size_t changes = 0;
    for (size_t i = 0; i < a->option_count; i++) {
        for (size_t k = 0; k < b->option_count; k++) {
            if (strcmp(a->options[i].name, b->options[k].name) != 0 ||
                strcmp(a->options[i].value, b->options[k].value) == 0)
                continue;
            line(PLAIN, "  %s: %s, %s", a->options[i].name, a->options[i].value,
                 b->options[k].value);
            changes++;
        }
    }
    return changes;
}

static size_t show_figures(const struct ms_snapshot *a, const struct ms_snapshot *b)
{
    size_t changes = 0;
    for (int i = 0; i < MS_FIGURE_COUNT; i++) {
        const uint64_t before = ms_snapshot_figure(a, ms_counter_names[i]);
        const uint64_t after = ms_snapshot_figure(b, ms_counter_names[i]);
        if (before == after)
            continue;
        if (changes == 0)
            line(DIM, "  %-26s %13s %13s %s", "figure", "A", "B", "change");
        show_change(ms_counter_names[i], before, after);
        changes++;
    }
    return changes;
}

/* Blocks of different processes do not correspond; tensors are compared instead. */
static const struct ms_state_block *find_block(const struct ms_snapshot *snapshot,
                                               const struct ms_state_block *wanted)
{
    for (size_t i = 0; i < snapshot->block_count; i++) {
        const struct ms_state_block *block = &snapshot->blocks[i];
        if (block->id == wanted->id && block->address == wanted->address &&
            (block->flags & MS_BLOCK_PART) == (wanted->flags & MS_BLOCK_PART))
            return block;
    }
    return NULL;
}

static void show_block(const char *what, const struct ms_state_block *block)
{
    line(PLAIN, "  %-9s block %" PRIu64 " at 0x%" PRIx64 ", %s, %s%s%s", what, block->id,
         block->address, bytes_text(block->bytes), block_state(block),
         block->name[0] != '\0' ? ": " : "", block->name);
}

static size_t show_blocks(const struct ms_snapshot *a, const struct ms_snapshot *b)
{
    size_t changes = 0;
    for (size_t i = 0; i < a->block_count; i++) {
        const struct ms_state_block *after = find_block(b, &a->blocks[i]);
        if (after != NULL && strcmp(block_state(after), block_state(&a->blocks[i])) == 0)
            continue;
        if (after == NULL)
            show_block("gone", &a->blocks[i]);
        else
            show_block("is now", after);
        changes++;
    }
    for (size_t i = 0; i < b->block_count; i++) {
        if (find_block(a, &b->blocks[i]) != NULL)
            continue;
        show_block("new", &b->blocks[i]);
        changes++;
    }
    return changes;
}

static const struct tensor_row *find_tensor(const struct tensor_row *rows, size_t count,
                                            const char *name)
{
    for (size_t i = 0; i < count; i++) {
        if (strcmp(rows[i].name, name) == 0)
            return &rows[i];
    }
    return NULL;
}

static size_t show_tensors(const struct ms_snapshot *a, const struct ms_snapshot *b)
{
    size_t a_count, b_count, changes = 0;
    struct tensor_row *a_rows = view_tensors(&(struct view){a, 1}, &a_count);
    struct tensor_row *b_rows = view_tensors(&(struct view){b, 1}, &b_count);
    const bool is_good = a_rows != NULL && b_rows != NULL;
    for (size_t i = 0; is_good && i < a_count; i++) {
        const struct tensor_row *after = find_tensor(b_rows, b_count, a_rows[i].name);
        if (after != NULL && after->bytes == a_rows[i].bytes &&
            after->present_bytes == a_rows[i].present_bytes)
            continue;
        line(PLAIN, "  %s: %s, %s in memory; %s, %s in memory", a_rows[i].name,
             bytes_text(a_rows[i].bytes), bytes_text(a_rows[i].present_bytes),
             bytes_text(after != NULL ? after->bytes : 0),
             bytes_text(after != NULL ? after->present_bytes : 0));
        changes++;
    }
    for (size_t i = 0; is_good && i < b_count; i++) {
        if (find_tensor(a_rows, a_count, b_rows[i].name) != NULL)
            continue;
        line(PLAIN, "  %s: none; %s, %s in memory", b_rows[i].name, bytes_text(b_rows[i].bytes),
             bytes_text(b_rows[i].present_bytes));
        changes++;
    }
    free(a_rows);
    free(b_rows);
    return changes;
}

static const struct ms_state_cause *find_cause(const struct ms_snapshot *snapshot,
                                               const struct ms_state_cause *wanted)
{
    for (size_t i = 0; i < snapshot->cause_count; i++) {
        const struct ms_state_cause *cause = &snapshot->causes[i];
        if (cause->kind == wanted->kind && cause->reason == wanted->reason &&
            strcmp(cause->call, wanted->call) == 0 && strcmp(cause->text, wanted->text) == 0)
            return cause;
    }
    return NULL;
}

static void show_cause(const struct ms_state_cause *cause, const struct ms_state_cause *before,
                       const struct ms_state_cause *after)
{
    line(PLAIN, "  %s, %s%s%s: %" PRIu64 " times, %s; %" PRIu64 " times, %s",
         ms_event_kind_name(cause->kind), cause->call, cause->text[0] != '\0' ? " of " : "",
         cause->text, before != NULL ? before->count : 0,
         bytes_text(before != NULL ? before->bytes : 0), after != NULL ? after->count : 0,
         bytes_text(after != NULL ? after->bytes : 0));
}

static size_t show_causes(const struct ms_snapshot *a, const struct ms_snapshot *b)
{
    size_t changes = 0;
    for (size_t i = 0; i < a->cause_count; i++) {
        const struct ms_state_cause *before = &a->causes[i], *after = find_cause(b, before);
        if (after != NULL && after->count == before->count && after->bytes == before->bytes)
            continue;
        show_cause(before, before, after);
        changes++;
    }
    for (size_t i = 0; i < b->cause_count; i++) {
        if (find_cause(a, &b->causes[i]) != NULL)
            continue;
        show_cause(&b->causes[i], NULL, &b->causes[i]);
        changes++;
    }
    return changes;
}

int run_diff(const struct options *options)
{
    struct view view;
    if (!line_setup(options))
        return USAGE;
    if (!view_open_in_order(&view, options))
        return BAD;
    const struct ms_snapshot *a = &view.processes[0], *b = &view.processes[1];
    show_title(&view);
    size_t changes = show_options(a, b) + show_figures(a, b);
    changes += is_same_process(a, b) ? show_blocks(a, b) : show_tensors(a, b);
    changes += show_causes(a, b);
    if (changes == 0)
        line(PLAIN, "  nothing differs");
    view_close(&view);
    return GOOD;
}
