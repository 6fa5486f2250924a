/* SPDX-License-Identifier: Apache-2.0 */
/* The page's tables: tensors, blocks, causes and events. */
#include <inttypes.h>
#include <stdlib.h>

#include "runtime/state/explain.h"
#include "tools/dump/html/html.h"

struct column {
    const char *name;
    bool is_number;
};

/* The last column has no name. Tables of several processes begin with the rank, if `has_rank`. */
static void table_begin(const struct html *html, const char *what, const char *label,
                        const struct column *columns, bool has_process)
{
    FILE *file = html->file;
    fprintf(file,
            "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"%s\">"
            "<table id=\"%s-%s\" class=\"sortable\"><thead><tr>",
            label, html->id, what);
    if (has_process)
        fputs("<th scope=\"col\">rank</th>", file);
    for (; columns->name != NULL; columns++)
        fprintf(file, "<th scope=\"col\"%s>%s</th>", columns->is_number ? " class=\"n\"" : "",
                columns->name);
    fputs("</tr></thead><tbody>\n", file);
}

static void table_end(const struct html *html, size_t shown, size_t all)
{
    fputs("</tbody></table></div>\n", html->file);
    if (shown < all)
        fprintf(
            html->file,
            "<p class=\"dim\">%zu of %zu are shown; the data in the page, and metashard-dump show "
            "--json, have all.</p>\n",
            shown, all);
}

static void cell(const struct html *html, const char *text)
{
    fputs("<td>", html->file);
    html_text(html->file, text);
    fputs("</td>", html->file);
}

/* A cell for a text of any length. */
static void long_cell(const struct html *html, const char *text)
{
    fputs("<td class=\"t\">", html->file);
    html_text(html->file, text);
    fputs("</td>", html->file);
}

static void figure_cell(const struct html *html,
                        void (*put)(FILE *file, const char *figure, uint64_t value), uint64_t value)
{
    fputs("<td class=\"n\">", html->file);
    put(html->file, NULL, value);
    fputs("</td>", html->file);
}

static void bytes_cell(const struct html *html, uint64_t bytes)
{
    figure_cell(html, html_bytes, bytes);
}

static void number_cell(const struct html *html, uint64_t number)
{
    figure_cell(html, html_number, number);
}

static void process_cell(const struct html *html, const struct ms_snapshot *snapshot)
{
    if (html->view.count > 1)
        cell(html, html_process_name(snapshot));
}

/* --- tensors */

void html_tensors(const struct html *html)
{
    static const struct column columns[] = {{"name", false},      {"bytes", true},
                                            {"deferred", true},   {"in memory", true},
                                            {"from files", true}, {"blocks", true},
                                            {NULL, false}};
    size_t count;
    struct tensor_row *rows = view_tensors(&html->view, &count);
    const size_t shown = count < html->most_rows ? count : html->most_rows;
    html_heading(html, "Tensors");
    if (rows == NULL || count == 0) {
        fputs("<p>No tensor is known by name.</p>\n", html->file);
        free(rows);
        return;
    }
    table_begin(html, "tensors", "Tensors", columns, false);
    for (size_t i = 0; i < shown; i++) {
        fputs("<tr>", html->file);
        long_cell(html, rows[i].name);
        bytes_cell(html, rows[i].bytes);
        bytes_cell(html, rows[i].deferred_bytes);
        bytes_cell(html, rows[i].present_bytes);
        bytes_cell(html, rows[i].file_bytes);
        number_cell(html, rows[i].blocks);
        fputs("</tr>\n", html->file);
    }
    table_end(html, shown, count);
    free(rows);
}

/* --- blocks */

struct place {
    const struct ms_snapshot *snapshot;
    const struct ms_state_block *block;
    size_t process, number;
};

/* Orders parts behind their allocation, so that the bytes of one are next to each other. */
static int largest_first(const void *a, const void *b)
{
    const struct place *left = a, *right = b;
    if (left->block->bytes != right->block->bytes)
        return left->block->bytes > right->block->bytes ? -1 : 1;
    if (left->process != right->process)
        return left->process < right->process ? -1 : 1;
    return left->number < right->number ? -1 : left->number > right->number;
}

static struct place *places_of(const struct html *html, size_t *count_out)
{
    const struct view *view = &html->view;
    size_t count = 0;
    for (size_t p = 0; p < view->count; p++)
        count += view->processes[p].block_count;
    struct place *places = calloc(count + 1, sizeof(*places));
    count = 0;
    for (size_t p = 0; p < view->count && places != NULL; p++) {
        const struct ms_snapshot *snapshot = &view->processes[p];
        for (size_t i = 0; i < snapshot->block_count; i++)
            places[count++] = (struct place){snapshot, &snapshot->blocks[i], html->first + p, i};
    }
    if (places != NULL)
        qsort(places, count, sizeof(*places), largest_first);
    *count_out = count;
    return places;
}

static void source_cell(const struct html *html, const struct place *place)
{
    const struct ms_state_block *block = place->block;
    bool is_first = true;
    fputs("<td class=\"t\">", html->file);
    for (int i = 0; i < MS_BYTES_KIND_COUNT; i++) {
        if (block->kind_bytes[i] == 0)
            continue;
        fprintf(html->file, "%s%s", is_first ? "" : ", ", ms_state_kind_names[i]);
        is_first = false;
        if (block->kind_bytes[i] != block->bytes) {
            putc(' ', html->file);
            html_bytes(html->file, NULL, block->kind_bytes[i]);
        }
    }
    if (block->file > 0) {
        fputs(" <span class=\"dim\">", html->file);
        html_text(html->file, place->snapshot->files[block->file - 1].path);
        fprintf(html->file, " from %" PRIu64 "</span>", block->file_offset);
    }
    fputs("</td>", html->file);
}

static void backed_cell(const struct html *html, const struct ms_state_block *block)
{
    fputs("<td class=\"t\">", html->file);
    if (block->backed_bytes > 0 || block->backed_call[0] != '\0') {
        html_text(html->file, block->backed_call);
        if (block->backed_reason != MS_REASON_CALL)
            fprintf(html->file, "%s%s", block->backed_call[0] != '\0' ? ": " : "",
                    ms_reason_text(block->backed_reason));
    }
    fputs("</td>", html->file);
}

static void block_row(const struct html *html, const struct place *place)
{
    const struct ms_state_block *block = place->block;
    const bool is_part = (block->flags & MS_BLOCK_PART) != 0;
    if (html->view.count > 1)
        fputs("<tr>", html->file);
    else
        fprintf(html->file, "<tr id=\"p%zu-b%zu\" tabindex=\"-1\">", place->process, place->number);
    process_cell(html, place->snapshot);
    number_cell(html, block->id);
    cell(html, is_part ? "part" : (block->flags & MS_BLOCK_CARVED) != 0 ? "carved" : "allocation");
    fprintf(html->file, "<td><code>0x%" PRIx64 "</code></td>", block->address);
    number_cell(html, block->device);
    bytes_cell(html, block->bytes);
    if (is_part)
        fputs("<td class=\"n\"></td>", html->file);
    else
        bytes_cell(html, block->backed_bytes);
    bytes_cell(html, block->deferred_bytes);
    fprintf(html->file, "<td><span class=\"state %s\">%s</span></td>", block_state(block),
            block_state(block));
    long_cell(html, block->name);
    source_cell(html, place);
    backed_cell(html, block);
    fputs("</tr>\n", html->file);
}

void html_blocks(const struct html *html)
{
    static const struct column columns[] = {
        {"block", true},   {"kind", false},        {"address", false},    {"device", true},
        {"bytes", true},   {"backed", true},       {"deferred", true},    {"state", false},
        {"tensor", false}, {"what it has", false}, {"backed for", false}, {NULL, false}};
    size_t count;
    struct place *places = places_of(html, &count);
    const size_t shown = count < html->most_rows ? count : html->most_rows;
    html_heading(html, "Blocks by size");
    if (places == NULL || count == 0) {
        fputs("<p>There are none.</p>\n", html->file);
        free(places);
        return;
    }
    table_begin(html, "blocks", "Blocks", columns, html->view.count > 1);
    for (size_t i = 0; i < shown; i++)
        block_row(html, &places[i]);
    table_end(html, shown, count);
    uint64_t left_out = 0;
    for (size_t p = 0; p < html->view.count; p++)
        left_out += ms_snapshot_figure(&html->view.processes[p], "blocks_left_out");
    if (left_out > 0)
        fprintf(html->file,
                "<p class=\"dim\">%" PRIu64
                " smaller blocks do not fit in the state page (METASHARD_STATE_BYTES).</p>\n",
                left_out);
    free(places);
}

/* --- causes */

static void cause_row(const struct html *html, const struct ms_state_cause *cause, uint64_t most)
{
    FILE *file = html->file;
    fputs("<tr><td class=\"n bar\">", file);
    fprintf(file,
            "<svg viewBox=\"0 0 100 4\" preserveAspectRatio=\"none\" aria-hidden=\"true\"><rect "
            "width=\"%.1f\" height=\"4\"/></svg>",
            most > 0 ? 100.0 * (double)cause->bytes / (double)most : 0.0);
    html_bytes(file, NULL, cause->bytes);
    fputs("</td>", file);
    number_cell(html, cause->count);
    figure_cell(html, html_time, cause->duration_ns);
    cell(html, ms_event_kind_name(cause->kind));
    cell(html, cause->call);
    long_cell(html, cause->text);
    fputs("<td class=\"t\">", file);
    html_text(file, ms_event_reason_text(cause->kind, cause->reason));
    if (cause->sentence[0] != '\0') {
        fputs("<p class=\"advice\">", file);
        html_text(file, cause->sentence);
        fputs("</p>", file);
    }
    fputs("</td></tr>\n", file);
}

void html_causes(const struct html *html)
{
    static const struct column columns[] = {{"bytes", true}, {"times", true},
                                            {"time", true},  {"kind", false},
                                            {"call", false}, {"kernel or tensor", false},
                                            {"why", false},  {NULL, false}};
    size_t count;
    struct ms_state_cause *causes = view_causes(&html->view, &count);
    html_heading(html, "Causes by bytes");
    if (causes == NULL || count == 0) {
        fputs("<p>There are no causes.</p>\n", html->file);
        free(causes);
        return;
    }
    table_begin(html, "causes", "Causes", columns, false);
    for (size_t i = 0; i < count; i++)
        cause_row(html, &causes[i], causes[0].bytes);
    table_end(html, count, count);
    free(causes);
}

/* --- events */

struct happening {
    const struct ms_snapshot *snapshot;
    const struct ms_state_event *event;
    uint64_t time_ns;
};

static int by_time(const void *a, const void *b)
{
    const struct happening *left = a, *right = b;
    if (left->time_ns != right->time_ns)
        return left->time_ns < right->time_ns ? -1 : 1;
    return left->event < right->event ? -1 : left->event > right->event;
}

static struct happening *happenings_of(const struct html *html, size_t *count_out)
{
    const struct view *view = &html->view;
    size_t count = 0;
    for (size_t p = 0; p < view->count; p++)
        count += view->processes[p].event_count;
    struct happening *list = calloc(count + 1, sizeof(*list));
    count = 0;
    for (size_t p = 0; p < view->count && list != NULL; p++) {
        const struct ms_snapshot *snapshot = &view->processes[p];
        for (size_t i = 0; i < snapshot->event_count; i++) {
            const struct ms_state_event *event = &snapshot->events[i];
            list[count++] =
                (struct happening){snapshot, event, event->time_ns + view_shift_ns(view, snapshot)};
        }
    }
    if (list != NULL)
        qsort(list, count, sizeof(*list), by_time);
    *count_out = count;
    return list;
}

static void event_row(const struct html *html, const struct happening *happening)
{
    const struct ms_state_event *event = happening->event;
    const bool is_alarming = event->kind == MS_EVENT_FAIL || event->kind == MS_EVENT_FALLBACK ||
                             event->kind == MS_EVENT_REMOTE_READ ||
                             event->kind == MS_EVENT_PRESSURE;
    fputs(is_alarming ? "<tr class=\"alarm\">" : "<tr>", html->file);
    process_cell(html, happening->snapshot);
    fprintf(html->file, "<td class=\"n\"><data value=\"%" PRIu64 "\">%.6f</data></td>",
            happening->time_ns, (double)happening->time_ns / 1e9);
    cell(html, ms_event_kind_name(event->kind));
    bytes_cell(html, event->bytes);
    figure_cell(html, html_time, event->duration_ns);
    number_cell(html, event->block);
    cell(html, event->call);
    long_cell(html, event->text);
    long_cell(html, ms_event_reason_text(event->kind, event->reason));
    number_cell(html, event->thread);
    fputs("</tr>\n", html->file);
}

void html_events(const struct html *html)
{
    static const struct column columns[] = {{"seconds", true},
                                            {"kind", false},
                                            {"bytes", true},
                                            {"time", true},
                                            {"block", true},
                                            {"call", false},
                                            {"kernel or tensor", false},
                                            {"why", false},
                                            {"thread", true},
                                            {NULL, false}};
    size_t count;
    struct happening *list = happenings_of(html, &count);
    const size_t first = count > html->most_rows ? count - html->most_rows : 0;
    uint64_t lost = 0;
    for (size_t p = 0; p < html->view.count; p++)
        lost += html->view.processes[p].events_lost;
    html_heading(html, first > 0 ? "The last events" : "Events");
    if (list == NULL || count == 0) {
        fputs("<p>There are no events.</p>\n", html->file);
        free(list);
        return;
    }
    if (lost > 0)
        fprintf(html->file,
                "<p class=\"dim\">%" PRIu64
                " others do not fit in the state page (METASHARD_STATE_BYTES).</p>\n",
                lost);
    table_begin(html, "events", "Events", columns, html->view.count > 1);
    for (size_t i = first; i < count; i++)
        event_row(html, &list[i]);
    table_end(html, count - first, count);
    free(list);
}
