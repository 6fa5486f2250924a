/* SPDX-License-Identifier: Apache-2.0 */
/* metashard-dump diff: the differences between two processes, or two copies of one page. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/state/counters.h"
#include "runtime/state/explain.h"
#include "tools/dump/line.h"
#include "tools/dump/merge.h"
#include "tools/json_writer.h"

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

/* In all functions `json` is the document, or NULL for text. */
static struct writer list_begin(struct writer *json, const char *key)
{
    return json != NULL ? json_begin(json, key, '[', false) : (struct writer){0};
}

static void list_end(const struct writer *json, const struct writer *list)
{
    if (json != NULL)
        json_end(list, ']');
}

static void put_change(struct writer *list, const char *name, uint64_t before, uint64_t after)
{
    struct writer row = json_begin(list, NULL, '{', true);
    put_string(&row, "name", name);
    put_number(&row, "a", before);
    put_number(&row, "b", after);
    json_end(&row, '}');
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

static void put_title(struct writer *list, const struct ms_snapshot *snapshot)
{
    struct writer row = json_begin(list, NULL, '{', true);
    put_number(&row, "pid", snapshot->process.pid);
    put_string(&row, "state", life_name(snapshot));
    put_number(&row, "taken_ns", snapshot->taken_ns);
    put_string(&row, "command", snapshot->process.command);
    json_end(&row, '}');
}

static void show_title(struct writer *json, const struct view *view)
{
    struct writer list = list_begin(json, "processes");
    for (size_t i = 0; i < 2; i++) {
        const struct ms_snapshot *snapshot = &view->processes[i];
        if (json != NULL)
            put_title(&list, snapshot);
        else
            line(BOLD, "%c: process %" PRIu64 ", %s after %s: %s", "AB"[i], snapshot -> process.pid,
                 life_name(snapshot), time_text(snapshot->taken_ns), snapshot->process.command);
    }
    list_end(json, &list);
}

static void show_option(struct writer *json, struct writer *list, const struct ms_state_option *a,
                        const struct ms_state_option *b)
{
    if (json == NULL) {
        line(PLAIN, "  %s: %s, %s", a->name, a->value, b->value);
        return;
    }
    struct writer row = json_begin(list, NULL, '{', true);
    put_string(&row, "name", a->name);
    put_string(&row, "a", a->value);
    put_string(&row, "b", b->value);
    json_end(&row, '}');
}

static size_t show_options(struct writer *json, const struct ms_snapshot *a,
                           const struct ms_snapshot *b)
{
    struct writer list = list_begin(json, "options");
    size_t changes = 0;
    for (size_t i = 0; i < a->option_count; i++) {
        for (size_t k = 0; k < b->option_count; k++) {
            if (strcmp(a->options[i].name, b->options[k].name) != 0 ||
                strcmp(a->options[i].value, b->options[k].value) == 0)
                continue;
            show_option(json, &list, &a->options[i], &b->options[k]);
            changes++;
        }
    }
    list_end(json, &list);
    return changes;
}

static size_t show_figures(struct writer *json, const struct ms_snapshot *a,
                           const struct ms_snapshot *b)
{
    struct writer list = list_begin(json, "figures");
    size_t changes = 0;
    for (int i = 0; i < MS_FIGURE_COUNT; i++) {
        const uint64_t before = ms_snapshot_figure(a, ms_counter_names[i]);
        const uint64_t after = ms_snapshot_figure(b, ms_counter_names[i]);
        if (before == after)
            continue;
        if (json == NULL && changes == 0)
            line(DIM, "  %-26s %13s %13s %s", "figure", "A", "B", "change");
        if (json == NULL)
            show_change(ms_counter_names[i], before, after);
        else
            put_change(&list, ms_counter_names[i], before, after);
        changes++;
    }
    list_end(json, &list);
    return changes;
}

/* Rows of a list, as keys and values to compare; and the figures of a value. */
struct item {
    char key[512], value[64];
    uint64_t figures[2];
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

/* A list of a process. */
struct kind {
    const char *name, *none; /* `none`: the text of a row that a process does not have */
    const char *figures[2];  /* their names; NULL: the value is a text alone */
    struct items (*items_of)(const struct ms_snapshot *snapshot);
};

static void put_side(struct writer *row, const char *key, const struct kind *kind,
                     const struct item *item)
{
    if (item == NULL) {
        put_value(row, key, "null");
    } else if (kind->figures[0] == NULL) {
        put_string(row, key, item->value);
    } else {
        struct writer side = json_begin(row, key, '{', true);
        for (size_t i = 0; i < 2; i++)
            put_number(&side, kind->figures[i], item->figures[i]);
        json_end(&side, '}');
    }
}

/* One of the two may be NULL. */
static void show_item(struct writer *list, const struct kind *kind, const struct item *a,
                      const struct item *b)
{
    const char *key = a != NULL ? a->key : b->key;
    if (list == NULL) {
        line(PLAIN, "  %s: %s; %s", key, a != NULL ? a->value : kind->none,
             b != NULL ? b->value : kind->none);
        return;
    }
    struct writer row = json_begin(list, NULL, '{', true);
    put_string(&row, "name", key);
    put_side(&row, "a", kind, a);
    put_side(&row, "b", kind, b);
    json_end(&row, '}');
}

static size_t show_items(struct writer *json, const struct kind *kind,
                         const struct ms_snapshot *snapshot_a, const struct ms_snapshot *snapshot_b)
{
    const struct items a = kind->items_of(snapshot_a), b = kind->items_of(snapshot_b);
    struct writer list = list_begin(json, kind->name);
    size_t changes = 0;
    const bool is_good = a.list != NULL && b.list != NULL;
    if (is_good) {
        qsort(a.list, a.count, sizeof(*a.list), by_key);
        qsort(b.list, b.count, sizeof(*b.list), by_key);
    }
    for (size_t i = 0, k = 0; is_good && (i < a.count || k < b.count);) {
        const int order = i == a.count ? 1 : k == b.count ? -1 : by_key(&a.list[i], &b.list[k]);
        const struct item *before = order <= 0 ? &a.list[i] : NULL;
        const struct item *after = order >= 0 ? &b.list[k] : NULL;
        if (strcmp(before != NULL ? before->value : kind->none,
                   after != NULL ? after->value : kind->none) != 0) {
            show_item(json != NULL ? &list : NULL, kind, before, after);
            changes++;
        }
        i += order <= 0;
        k += order >= 0;
    }
    list_end(json, &list);
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
        item->figures[0] = rows[i].bytes;
        item->figures[1] = rows[i].present_bytes;
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
        item->figures[0] = cause->count;
        item->figures[1] = cause->bytes;
    }
    return items;
}

static const struct kind blocks = {"blocks", "none", {NULL}, block_items};
static const struct kind tensors = {"tensors", "none", {"bytes", "memory_bytes"}, tensor_items};
static const struct kind causes = {"causes", "0 times, 0 B", {"count", "bytes"}, cause_items};

static size_t show_differences(struct writer *json, const struct view *view)
{
    const struct ms_snapshot *a = &view->processes[0], *b = &view->processes[1];
    show_title(json, view);
    const size_t changes = show_options(json, a, b) + show_figures(json, a, b);
    return changes + show_items(json, is_same_process(a, b) ? &blocks : &tensors, a, b) +
           show_items(json, &causes, a, b);
}

int run_diff(const struct options *options)
{
    struct view view;
    if (!line_setup(options))
        return USAGE;
    if (!view_open(&view, options, false))
        return BAD;
    if (options->json != NULL) {
        struct writer document = json_document(stdout);
        put_string(&document, "format", "metashard-diff/1");
        show_differences(&document, &view);
        json_document_end(&document);
    } else if (show_differences(NULL, &view) == 0) {
        line(PLAIN, "  nothing differs");
    }
    view_close(&view);
    return GOOD;
}
