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

/* Rows of a list, as keys and values to compare. */
struct item {
    char key[512], value[64];
};
struct items {
    struct item *list; /* NULL if out of memory; then nothing is compared */
    size_t count;
};

static struct items make_items(size_t most)
{
    return (struct items){calloc(most + 1, sizeof(struct item)), 0};
}

static int by_key(const void *a, const void *b)
{
    return strcmp(((const struct item *)a)->key, ((const struct item *)b)->key);
}

/* Frees the items. */
static size_t show_items(struct items a, struct items b, const char *none)
{
    size_t changes = 0;
    const bool is_good = a.list != NULL && b.list != NULL;
    if (is_good) {
        qsort(a.list, a.count, sizeof(*a.list), by_key);
        qsort(b.list, b.count, sizeof(*b.list), by_key);
    }
    for (size_t i = 0, k = 0; is_good && (i < a.count || k < b.count);) {
        const int order = i == a.count ? 1 : k == b.count ? -1 : by_key(&a.list[i], &b.list[k]);
        const char *before = order <= 0 ? a.list[i].value : none;
        const char *after = order >= 0 ? b.list[k].value : none;
        if (strcmp(before, after) != 0) {
            line(PLAIN, "  %s: %s; %s", order <= 0 ? a.list[i].key : b.list[k].key, before, after);
            changes++;
        }
        i += order <= 0;
        k += order >= 0;
    }
    free(a.list);
    free(b.list);
    return changes;
}

/* Blocks of different processes do not correspond; tensors are compared instead. */
static struct items block_items(const struct ms_snapshot *snapshot)
{
    struct items items = make_items(snapshot->block_count);
    for (size_t i = 0; i < snapshot->block_count && items.list != NULL; i++) {
        const struct ms_state_block *block = &snapshot->blocks[i];
        struct item *item = &items.list[items.count++];
        snprintf(item->key, sizeof(item->key), "%s %" PRIu64 " at 0x%" PRIx64 ", %s%s%s",
                 (block->flags & MS_BLOCK_PART) != 0 ? "part of block" : "block", block->id,
                 block->address, bytes_text(block->bytes), block->name[0] != '\0' ? ", " : "",
                 block->name);
        snprintf(item->value, sizeof(item->value), "%s", block_state(block));
    }
    return items;
}

static struct items tensor_items(const struct ms_snapshot *snapshot)
{
    size_t count;
    struct tensor_row *rows = view_tensors(&(struct view){snapshot, 1}, &count);
    struct items items = make_items(count);
    for (size_t i = 0; i < count && items.list != NULL && rows != NULL; i++) {
        struct item *item = &items.list[items.count++];
        snprintf(item->key, sizeof(item->key), "%s", rows[i].name);
        snprintf(item->value, sizeof(item->value), "%s, %s in memory", bytes_text(rows[i].bytes),
                 bytes_text(rows[i].present_bytes));
    }
    free(rows);
    return items;
}

static struct items cause_items(const struct ms_snapshot *snapshot)
{
    struct items items = make_items(snapshot->cause_count);
    for (size_t i = 0; i < snapshot->cause_count && items.list != NULL; i++) {
        const struct ms_state_cause *cause = &snapshot->causes[i];
        const char *reason = ms_event_reason_text(cause->kind, cause->reason);
        struct item *item = &items.list[items.count++];
        snprintf(item->key, sizeof(item->key), "%s%s%s, %s%s%s", ms_event_kind_name(cause->kind),
                 reason[0] != '\0' ? " for " : "", reason, cause->call,
                 cause->text[0] != '\0' ? " of " : "", cause->text);
        snprintf(item->value, sizeof(item->value), "%" PRIu64 " times, %s", cause->count,
                 bytes_text(cause->bytes));
    }
    return items;
}

int run_diff(const struct options *options)
{
    struct view view;
    if (!line_setup(options))
        return USAGE;
    if (!view_open(&view, options, false))
        return BAD;
    const struct ms_snapshot *a = &view.processes[0], *b = &view.processes[1];
    show_title(&view);
    size_t changes = show_options(a, b) + show_figures(a, b);
    changes += is_same_process(a, b) ? show_items(block_items(a), block_items(b), "none")
                                     : show_items(tensor_items(a), tensor_items(b), "none");
    changes += show_items(cause_items(a), cause_items(b), "0 times, 0 B");
    if (changes == 0)
        line(PLAIN, "  nothing differs");
    view_close(&view);
    return GOOD;
}
