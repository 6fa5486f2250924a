/* SPDX-License-Identifier: Apache-2.0 */
/* The page's elements, and its tables: tensors, blocks, causes and events. */
#include <inttypes.h>
#include <stdlib.h>

#include "runtime/state/explain.h"
#include "tools/dump/html/html.h"
#include "tools/dump/line.h"

/* --- elements */

void html_text(FILE *file, const char *text)
{
    static const struct {
        char letter;
        const char *escaped;
    } all[] = {{'&', "&amp;"}, {'<', "&lt;"}, {'>', "&gt;"}, {'"', "&quot;"}, {'\'', "&#39;"}};
    for (; *text != '\0'; text++) {
        const char *escaped = NULL;
        for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
            escaped = all[i].letter == *text ? all[i].escaped : escaped;
        if (escaped != NULL)
            fputs(escaped, file);
        else
            putc(*text, file);
    }
}

static void datum(FILE *file, const char *figure, uint64_t value, const char *text)
{
    fputs("<data", file);
    if (figure != NULL)
        fprintf(file, " data-figure=\"%s\"", figure);
    fprintf(file, " value=\"%" PRIu64 "\">%s</data>", value, text);
}

void html_bytes(FILE *file, const char *figure, uint64_t bytes)
{
    datum(file, figure, bytes, bytes == 0 ? "0" : bytes_text(bytes));
}

void html_time(FILE *file, const char *figure, uint64_t ns)
{
    datum(file, figure, ns, ns == 0 ? "0" : time_text(ns));
}

void html_number(FILE *file, const char *figure, uint64_t number)
{
    char text[32];
    snprintf(text, sizeof(text), "%" PRIu64, number);
    datum(file, figure, number, text);
}

void html_heading(const struct html *html, const char *text)
{
    fprintf(html->file, "<%s>%s</%s>\n", html->heading, text, html->heading);
}

/* --- parts of tables */

struct column {
    const char *name;
    bool is_number;
};

/* The last column has no name. */
static void table_begin(const struct html *html, const char *what, const char *label,
                        const struct column *columns)
{
    FILE *file = html->file;
    fprintf(file,
            "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"%s\">"
            "<table id=\"%s-%s\" class=\"sortable\"><thead><tr>",
            label, html->id, what);
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
    table_begin(html, "tensors", "Tensors", columns);
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

static void source_cell(const struct html *html, const struct ms_state_block *block)
{
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
        html_text(html->file, html->view.processes->files[block->file - 1].path);
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

static void block_row(const struct html *html, size_t number)
{
    const struct ms_state_block *block = &html->view.processes->blocks[number];
    const bool is_part = (block->flags & MS_BLOCK_PART) != 0;
    fprintf(html->file, "<tr id=\"%s-b%zu\" tabindex=\"-1\">", html->id, number);
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
    source_cell(html, block);
    backed_cell(html, block);
    fputs("</tr>\n", html->file);
}

void html_blocks(const struct html *html)
{
    static const struct column columns[] = {
        {"block", true},   {"kind", false},        {"address", false},    {"device", true},
        {"bytes", true},   {"backed", true},       {"deferred", true},    {"state", false},
        {"tensor", false}, {"what it has", false}, {"backed for", false}, {NULL, false}};
    const struct ms_snapshot *snapshot = html->view.processes;
    const size_t count = snapshot->block_count;
    const size_t shown = count < html->most_rows ? count : html->most_rows;
    const uint64_t left_out = ms_snapshot_figure(snapshot, "blocks_left_out");
    html_heading(html, "Blocks by size");
    if (count == 0) {
        fputs("<p>There are none.</p>\n", html->file);
        return;
    }
    table_begin(html, "blocks", "Blocks", columns);
    for (size_t i = 0; i < shown; i++)
        block_row(html, i);
    table_end(html, shown, count);
    if (left_out > 0)
        fprintf(html->file,
                "<p class=\"dim\">%" PRIu64
                " smaller blocks do not fit in the state page (METASHARD_STATE_BYTES).</p>\n",
                left_out);
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
    table_begin(html, "causes", "Causes", columns);
    for (size_t i = 0; i < count; i++)
        cause_row(html, &causes[i], causes[0].bytes);
    table_end(html, count, count);
    free(causes);
}

/* --- events */

static void event_row(const struct html *html, const struct ms_state_event *event)
{
    const bool is_alarming = event->kind == MS_EVENT_FAIL || event->kind == MS_EVENT_FALLBACK ||
                             event->kind == MS_EVENT_REMOTE_READ ||
                             event->kind == MS_EVENT_PRESSURE;
    fputs(is_alarming ? "<tr class=\"alarm\">" : "<tr>", html->file);
    fprintf(html->file, "<td class=\"n\"><data value=\"%" PRIu64 "\">%.6f</data></td>",
            event->time_ns, (double)event->time_ns / 1e9);
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
    const struct ms_snapshot *snapshot = html->view.processes;
    const size_t count = snapshot->event_count;
    const size_t first = count > html->most_rows ? count - html->most_rows : 0;
    html_heading(html, first > 0 ? "The last events" : "Events");
    if (count == 0) {
        fputs("<p>There are no events.</p>\n", html->file);
        return;
    }
    if (snapshot->events_lost > 0)
        fprintf(html->file,
                "<p class=\"dim\">%" PRIu64
                " others do not fit in the state page (METASHARD_STATE_BYTES).</p>\n",
                snapshot->events_lost);
    table_begin(html, "events", "Events", columns);
    for (size_t i = first; i < count; i++)
        event_row(html, &snapshot->events[i]);
    table_end(html, count - first, count);
}
