/* SPDX-License-Identifier: Apache-2.0 */
/* The page's elements, and its tables: tensors, blocks, causes and events. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/state/explain.h"
#include "tools/dump/html/html.h"
#include "tools/dump/line.h"

/* --- elements */

/* No text of a page has more than 1023 bytes. */
const char *html_text(const char *text)
{
    static const struct {
        char letter;
        const char *escaped;
    } all[] = {{'&', "&amp;"}, {'<', "&lt;"}, {'>', "&gt;"}, {'"', "&quot;"}, {'\'', "&#39;"}};
    static char buffers[8][6 * 1024];
    static unsigned turn;
    char *const buffer = buffers[turn++ % 8], *to = buffer;
    for (; *text != '\0'; text++) {
        const char *escaped = NULL;
        for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
            escaped = all[i].letter == *text ? all[i].escaped : escaped;
        if (escaped != NULL)
            to = stpcpy(to, escaped);
        else
            *to++ = *text;
    }
    *to = '\0';
    return buffer;
}

static const char *datum(const char *figure, uint64_t value, const char *text)
{
    static char buffers[16][192];
    static unsigned turn;
    char *const buffer = buffers[turn++ % 16];
    snprintf(buffer, sizeof(buffers[0]), "<data%s%s%s value=\"%" PRIu64 "\">%s</data>",
             figure != NULL ? " data-figure=\"" : "", figure != NULL ? figure : "",
             figure != NULL ? "\"" : "", value, text);
    return buffer;
}

const char *html_bytes(const char *figure, uint64_t bytes)
{
    return datum(figure, bytes, bytes == 0 ? "0" : bytes_text(bytes));
}

const char *html_time(const char *figure, uint64_t ns)
{
    return datum(figure, ns, ns == 0 ? "0" : time_text(ns));
}

const char *html_number(const char *figure, uint64_t number)
{
    char text[32];
    snprintf(text, sizeof(text), "%" PRIu64, number);
    return datum(figure, number, text);
}

void html_heading(const struct html *html, const char *text)
{
    fprintf(html->file, "<%s>%s</%s>\n", html->heading, text, html->heading);
}

void html_hint(FILE *file)
{
    fputs("<p class=\"hint\">← scroll sideways →</p>\n", file);
}

void html_bar(FILE *file, uint64_t bytes, uint64_t behind, uint64_t most)
{
    const double whole = most > 0 ? (double)most : 1;
    fprintf(
        file,
        "<svg viewBox=\"0 0 100 4\" preserveAspectRatio=\"none\" aria-hidden=\"true\"><rect "
        "class=\"behind\" width=\"%.1f\" height=\"4\"/><rect width=\"%.1f\" height=\"4\"/></svg>",
        100.0 * (double)behind / whole, 100.0 * (double)bytes / whole);
}

/* --- parts of tables */

struct column {
    const char *name;
    bool is_number;
};

/* The last column has no name. Begins no table if it has no rows. */
static void table_begin(const struct html *html, const char *what, const char *heading,
                        const struct column *columns, size_t rows)
{
    FILE *file = html->file;
    html_heading(html, heading);
    if (rows == 0) {
        fputs("<p>There are none.</p>\n", file);
        return;
    }
    html_hint(file);
    fprintf(file,
            "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"%s\">"
            "<table id=\"%s-%s\" class=\"sortable\"><thead><tr>",
            heading, html->id, what);
    for (; columns->name != NULL; columns++)
        fprintf(file, "<th scope=\"col\"%s>%s</th>", columns->is_number ? " class=\"n\"" : "",
                columns->name);
    fputs("</tr></thead><tbody>\n", file);
}

static void table_end(const struct html *html, size_t shown, size_t all)
{
    if (all > 0)
        fputs("</tbody></table></div>\n", html->file);
    if (shown < all)
        fprintf(
            html->file,
            "<p class=\"dim\">%zu of %zu are shown; the data in the page, and metashard-dump show "
            "--json, have all.</p>\n",
            shown, all);
}

/* Cells: of a number, of a word, of a text of any length. */
#define NUMBER "<td class=\"n\">%s</td>"
#define WORD "<td>%s</td>"
#define TEXT "<td class=\"t\">%s</td>"

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
    table_begin(html, "tensors", "Tensors by name", columns, count);
    for (size_t i = 0; i < shown; i++)
        fprintf(html->file, "<tr>" TEXT NUMBER NUMBER NUMBER NUMBER NUMBER "</tr>\n",
                html_text(rows[i].name), html_bytes(NULL, rows[i].bytes),
                html_bytes(NULL, rows[i].deferred_bytes), html_bytes(NULL, rows[i].present_bytes),
                html_bytes(NULL, rows[i].file_bytes), html_number(NULL, rows[i].blocks));
    table_end(html, shown, count);
    free(rows);
}

/* --- blocks */

static void source_cell(const struct html *html, const struct ms_state_block *block)
{
    const char *between = "<td class=\"t\">";
    for (int i = 0; i < MS_BYTES_KIND_COUNT; i++) {
        if (block->kind_bytes[i] == 0)
            continue;
        const bool is_all = block->kind_bytes[i] == block->bytes;
        fprintf(html->file, "%s%s%s%s", between, ms_state_kind_names[i], is_all ? "" : " ",
                is_all ? "" : html_bytes(NULL, block->kind_bytes[i]));
        between = ", ";
    }
    if (between[0] == '<')
        fputs(between, html->file);
    if (block->file > 0) {
        const char *path = html->view.processes->files[block->file - 1].path;
        const char *slash = strrchr(path, '/');
        fprintf(html->file, " <span class=\"dim\" title=\"%s\">%s from %" PRIu64 "</span>",
                html_text(path), html_text(slash != NULL ? slash + 1 : path), block->file_offset);
    }
    fputs("</td>", html->file);
}

/* The first event that has a row. */
static size_t first_event(const struct html *html)
{
    const size_t count = html->view.processes->event_count;
    return count > html->most_rows ? count - html->most_rows : 0;
}

/* The id of the block, which leads to its first event; page.js shows its events alone. */
static void id_cell(const struct html *html, uint64_t id)
{
    const struct ms_snapshot *snapshot = html->view.processes;
    size_t at = first_event(html);
    while (at < snapshot->event_count && snapshot->events[at].block != id)
        at++;
    if (at < snapshot->event_count)
        fprintf(html->file,
                "<td class=\"n\"><a href=\"#%s-e%zu\" data-block=\"%" PRIu64
                "\" title=\"its events\">%s</a></td>",
                html->id, at, id, html_number(NULL, id));
    else
        fprintf(html->file, NUMBER, html_number(NULL, id));
}

static void block_row(const struct html *html, size_t number)
{
    const struct ms_state_block *block = &html->view.processes->blocks[number];
    const bool is_part = (block->flags & MS_BLOCK_PART) != 0;
    const bool is_backed = block->backed_bytes > 0 || block->backed_call[0] != '\0';
    const bool has_reason = is_backed && block->backed_reason != MS_REASON_CALL;
    fprintf(html->file, "<tr id=\"%s-b%zu\" tabindex=\"-1\">", html->id, number);
    id_cell(html, block->id);
    fprintf(html->file,
            WORD "<td><code>0x%" PRIx64 "</code></td>" NUMBER NUMBER NUMBER NUMBER
                 "<td><span class=\"state %s\">%s</span></td>" TEXT,
            is_part                                 ? "part"
            : (block->flags & MS_BLOCK_CARVED) != 0 ? "carved"
                                                    : "allocation",
            block->address, html_number(NULL, block->device), html_bytes(NULL, block->bytes),
            is_part ? "" : html_bytes(NULL, block->backed_bytes),
            html_bytes(NULL, block->deferred_bytes), block_state(block), block_state(block),
            html_text(block->name));
    source_cell(html, block);
    fprintf(html->file, "<td class=\"t\">%s%s%s</td></tr>\n", html_text(block->backed_call),
            has_reason && block->backed_call[0] != '\0' ? ": " : "",
            has_reason ? ms_reason_text(block->backed_reason) : "");
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
    table_begin(html, "blocks", "Blocks by size", columns, count);
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
    const bool has_advice = cause->sentence[0] != '\0';
    fputs("<tr><td class=\"n bar\">", html->file);
    html_bar(html->file, cause->bytes, 0, most);
    fprintf(html->file,
            "%s</td>" NUMBER NUMBER WORD WORD TEXT "<td class=\"t\">%s%s%s%s</td></tr>\n",
            html_bytes(NULL, cause->bytes), html_number(NULL, cause->count),
            html_time(NULL, cause->duration_ns), ms_event_kind_name(cause->kind),
            html_text(cause->call), html_text(cause->text),
            html_text(ms_event_reason_text(cause->kind, cause->reason)),
            has_advice ? "<p class=\"advice\">" : "", html_text(cause->sentence),
            has_advice ? "</p>" : "");
}

void html_causes(const struct html *html)
{
    static const struct column columns[] = {{"bytes", true}, {"times", true},
                                            {"time", true},  {"kind", false},
                                            {"call", false}, {"kernel or tensor", false},
                                            {"why", false},  {NULL, false}};
    size_t count;
    struct ms_state_cause *causes = view_causes(&html->view, &count);
    table_begin(html, "causes", "Causes by bytes", columns, count);
    for (size_t i = 0; i < count; i++)
        cause_row(html, &causes[i], causes[0].bytes);
    table_end(html, count, count);
    free(causes);
}

/* --- events */

static void event_row(const struct html *html, size_t number)
{
    const struct ms_state_event *event = &html->view.processes->events[number];
    const bool is_alarming = event->kind == MS_EVENT_FAIL || event->kind == MS_EVENT_FALLBACK ||
                             event->kind == MS_EVENT_REMOTE_READ ||
                             event->kind == MS_EVENT_PRESSURE || event->kind == MS_EVENT_DIFFER;
    fprintf(html->file,
            "<tr id=\"%s-e%zu\" tabindex=\"-1\"%s><td class=\"n\"><data value=\"%" PRIu64
            "\">%.6f</data></td>" WORD NUMBER NUMBER NUMBER WORD TEXT TEXT NUMBER "</tr>\n",
            html->id, number, is_alarming ? " class=\"alarm\"" : "", event->time_ns,
            (double)event->time_ns / 1e9, ms_event_kind_name(event->kind),
            html_bytes(NULL, event->bytes), html_time(NULL, event->duration_ns),
            html_number(NULL, event->block), html_text(event->call), html_text(event->text),
            html_text(ms_event_reason_text(event->kind, event->reason)),
            html_number(NULL, event->thread));
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
    const size_t first = first_event(html);
    table_begin(html, "events", first > 0 ? "The last events" : "Events", columns, count);
    for (size_t i = first; i < count; i++)
        event_row(html, i);
    table_end(html, count - first, count);
    if (snapshot->events_lost > 0)
        fprintf(html->file,
                "<p class=\"dim\">%" PRIu64
                " others do not fit in the state page (METASHARD_STATE_BYTES).</p>\n",
                snapshot->events_lost);
}
