/* SPDX-License-Identifier: Apache-2.0 */
/*
 * metashard-dump show --html: one page that needs no other file, and no network. All of it can be
 * read without JavaScript; the script (page.js) adds sorting, filters and pointers. The page makes
 * the browser refuse every other script. The data of --json is in the page, under the id "data".
 */
#include "tools/dump/html/html.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/state/counters.h"
#include "runtime/state/explain.h"
#include "tools/dump/line.h"

/* For a page of one process, the view of all, and the views of each, which share a total. */
enum { ROWS_OF_ONE = 5000, ROWS_OF_ALL = 1000, ROWS_OF_EACH = 20000, LEAST_ROWS = 200 };

/* From page.css and page.js, made by embed_page.py. */
extern const char dump_page_style[], dump_page_script[], dump_page_script_hash[];

/* --- summary */

static const char *html_total(const struct totals *totals, enum total which)
{
    return (which == TOTAL_TIME ? html_time : html_bytes)(total_names[which].figure,
                                                          totals->of[which]);
}

/* Writes the result in one line. */
static void verdict(FILE *file, const struct totals *totals)
{
    const uint64_t without = totals->of[TOTAL_LIVE_PEAK], with = totals->of[TOTAL_BACKED_PEAK];
    if (without > 0)
        fprintf(file, "<p class=\"verdict\">Peak <b>%s</b> instead of <b>%s</b> (%+.0f %%)</p>\n",
                bytes_text(with), bytes_text(without),
                100.0 * ((double)with - (double)without) / (double)without);
}

static void figure(FILE *file, const struct totals *totals, enum total which)
{
    fprintf(file, "<div><dt>%s</dt><dd>%s<span>%s</span></dd></div>\n", total_names[which].term,
            html_total(totals, which), total_names[which].meaning);
}

/* Four figures are enough at first sight; the others are one click away. */
static void figures(const struct html *html)
{
    static const enum total first[] = {TOTAL_BACKED_PEAK, TOTAL_SAVED, TOTAL_COPIED, TOTAL_TIME};
    static const enum total others[] = {TOTAL_LIVE_PEAK, TOTAL_LIVE,      TOTAL_DEFERRED,
                                        TOTAL_BACKED,    TOTAL_REQUESTED, TOTAL_SKIPPED};
    FILE *file = html->file;
    const struct totals totals = view_totals(&html->view);
    verdict(file, &totals);
    html_peaks(html, &totals);
    fputs("<dl class=\"figures\">\n", file);
    for (size_t i = 0; i < sizeof(first) / sizeof(first[0]); i++)
        figure(file, &totals, first[i]);
    fputs("</dl>\n<details class=\"table\"><summary>More figures</summary>\n<dl "
          "class=\"figures\">\n",
          file);
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++)
        figure(file, &totals, others[i]);
    fputs("</dl></details>\n", file);
}

static void plan(FILE *file, const struct ms_state_plan *plan)
{
    if (plan->generation == 0)
        return;
    fprintf(file, "<p>Plan %s: rank %" PRIu32 " of %" PRIu32 " keeps %s of %s, %s.</p>\n",
            html_text(plan->name), plan->rank, plan->world, html_bytes(NULL, plan->owned_bytes),
            html_bytes(NULL, plan->planned_bytes), plan->enforced != 0 ? "enforced" : "as advice");
}

static void note(FILE *file, uint64_t count, const char *text)
{
    if (count > 0)
        fprintf(file, "<p class=\"note\">%" PRIu64 " %s</p>\n", count, text);
}

static void notes(const struct html *html)
{
    uint64_t fallbacks = 0, outside = 0, torn = 0;
    for (size_t p = 0; p < html->view.count; p++) {
        const struct ms_snapshot *snapshot = &html->view.processes[p];
        fallbacks += ms_snapshot_figure(snapshot, "fallbacks");
        outside += ms_snapshot_figure(snapshot, "remote_reads");
        torn += snapshot->torn_records;
    }
    note(html->file, fallbacks, "times something could not stay deferred: see the causes.");
    note(html->file, outside, "reads of what the plan gives to other ranks: see the causes.");
    note(html->file, torn,
         "records were half written when a process was killed; they are left out.");
}

/* One line a device. What does not hold is as loud as a note. */
static void self_checks(FILE *file, const struct ms_snapshot *snapshot)
{
    for (size_t i = 0; i < snapshot->device_count; i++) {
        const struct ms_state_device *device = &snapshot->devices[i];
        if (device->check == MS_CHECK_NONE)
            continue;
        fprintf(file, "<p class=\"self-check %s\">Self-check of device %zu: %s%s%s%s</p>\n",
                device->unmet[0] != '\0' ? "note" : "dim", i, ms_check_state_name(device->check),
                check_outcome(device), device->unmet[0] != '\0' ? ": " : ".",
                html_text(device->unmet));
    }
}

static void where(FILE *file, const struct ms_state_process *process)
{
    fprintf(file,
            "<p class=\"command\"><code>%s</code></p>\n<p class=\"dim\">in %s on %s%s%s, MetaShard "
            "%s</p>\n",
            html_text(process->command), html_text(process->folder), html_text(process->host),
            process->job[0] != '\0' ? ", job " : "", html_text(process->job),
            html_text(process->version));
}

/* Writes all figures, and the configuration. */
static void particulars(const struct html *html, const struct ms_snapshot *snapshot)
{
    FILE *file = html->file;
    fprintf(file,
            "<details class=\"table\"><summary>All counters</summary><table id=\"%s-counters\" "
            "class=\"pairs\"><tbody>\n",
            html->id);
    for (int i = 0; i < MS_FIGURE_COUNT; i++)
        fprintf(file, "<tr><th scope=\"row\">%s</th><td class=\"n\">%s</td></tr>\n",
                ms_counter_names[i],
                html_number(ms_counter_names[i],
                            ms_snapshot_figure(snapshot, ms_counter_names[i])));
    fprintf(file,
            "</tbody></table></details>\n<details class=\"table\"><summary>Configuration</summary>"
            "<table id=\"%s-options\" class=\"pairs\"><tbody>\n",
            html->id);
    for (size_t i = 0; i < snapshot->option_count; i++)
        fprintf(file, "<tr><th scope=\"row\">%s</th><td>%s</td></tr>\n",
                html_text(snapshot->options[i].name), html_text(snapshot->options[i].value));
    fputs("</tbody></table></details>\n", file);
}

/* --- views */

static void describe_life(FILE *file, const struct ms_snapshot *snapshot)
{
    fprintf(file, "<span class=\"life %s\">%s %s</span>", life_name(snapshot), life_words(snapshot),
            html_time(NULL, snapshot->taken_ns));
}

static void process_view(const struct html *html)
{
    const struct ms_snapshot *snapshot = &html->view.processes[0];
    fprintf(html->file, "<section id=\"%s\" data-pid=\"%" PRIu64 "\">\n", html->id,
            snapshot->process.pid);
    where(html->file, &snapshot->process);
    figures(html);
    plan(html->file, &snapshot->plan);
    notes(html);
    self_checks(html->file, snapshot);
    particulars(html, snapshot);
    html_chart(html);
    html_causes(html);
    html_map(html);
    html_tensors(html);
    html_blocks(html);
    html_events(html);
    fputs("</section>\n", html->file);
}

static uint64_t most_of(const struct view *view)
{
    uint64_t most = 1;
    for (size_t p = 0; p < view->count; p++) {
        const struct totals totals = totals_of(&view->processes[p]);
        most = totals.of[TOTAL_LIVE_PEAK] > most ? totals.of[TOTAL_LIVE_PEAK] : most;
        most = totals.of[TOTAL_BACKED_PEAK] > most ? totals.of[TOTAL_BACKED_PEAK] : most;
    }
    return most;
}

static void process_row(const struct html *html, size_t number, uint64_t most)
{
    FILE *file = html->file;
    const struct ms_snapshot *snapshot = &html->view.processes[number];
    const struct totals totals = totals_of(snapshot);
    fprintf(file, "<tr data-pid=\"%" PRIu64 "\"><td><a href=\"#p%zu\">%s</a></td><td>",
            snapshot->process.pid, number, process_name(snapshot));
    describe_life(file, snapshot);
    fputs("</td><td class=\"n bar\">", file);
    html_bar(file, totals.of[TOTAL_BACKED_PEAK], totals.of[TOTAL_LIVE_PEAK], most);
    for (size_t i = 0; i < PROCESS_TOTALS; i++)
        fprintf(file, "%s%s", i > 0 ? "</td><td class=\"n\">" : "",
                html_total(&totals, process_totals[i]));
    fprintf(file, "</td><td class=\"n\">%s</td></tr>\n", html_total(&totals, TOTAL_TIME));
}

/* Writes the same figures of each process, one below the other. */
static void table_of_processes(const struct html *html)
{
    FILE *file = html->file;
    html_hint(file);
    fprintf(file,
            "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"Processes\"><table "
            "id=\"%s-processes\" class=\"sortable\"><thead><tr><th scope=\"col\">process</th><th "
            "scope=\"col\">state</th>",
            html->id);
    for (size_t i = 0; i < PROCESS_TOTALS; i++)
        fprintf(file, "<th scope=\"col\" class=\"n\">%s</th>", total_names[process_totals[i]].term);
    fprintf(file, "<th scope=\"col\" class=\"n\">%s</th></tr></thead><tbody>\n",
            total_names[TOTAL_TIME].term);
    const uint64_t most = most_of(&html->view);
    for (size_t p = 0; p < html->view.count; p++)
        process_row(html, p, most);
    fputs("</tbody></table></div>\n", file);
}

static size_t rows_of_each(size_t count)
{
    const size_t rows = ROWS_OF_EACH / count;
    return rows > ROWS_OF_ONE ? ROWS_OF_ONE : rows < LEAST_ROWS ? LEAST_ROWS : rows;
}

static void all_views(FILE *file, const struct view *view)
{
    const struct html all = {file, {view->processes, view->count}, "all", ROWS_OF_ALL, "h2"};
    fprintf(file, "<header><h1>%zu processes</h1></header>\n<main>\n<section id=\"all\">\n",
            view->count);
    figures(&all);
    notes(&all);
    table_of_processes(&all);
    html_chart(&all);
    html_causes(&all);
    html_tensors(&all);
    fputs("</section>\n<h2>Each process</h2>\n", file);
    for (size_t p = 0; p < view->count; p++) {
        struct html one = {file, {&view->processes[p], 1}, "", rows_of_each(view->count), "h3"};
        snprintf(one.id, sizeof(one.id), "p%zu", p);
        fprintf(file, "<details class=\"process\"><summary><b>%s</b> ",
                process_name(&view->processes[p]));
        describe_life(file, &view->processes[p]);
        fputs("</summary>\n", file);
        process_view(&one);
        fputs("</details>\n", file);
    }
}

static void one_view(FILE *file, const struct view *view)
{
    const struct html html = {file, {view->processes, 1}, "p0", ROWS_OF_ONE, "h2"};
    fprintf(file, "<header><h1>%s</h1><p>", process_name(view->processes));
    describe_life(file, view->processes);
    fputs("</p></header>\n<main>\n", file);
    process_view(&html);
}

/* --- the page */

static void head(FILE *file, const struct view *view)
{
    fprintf(
        file,
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src "
        "'unsafe-inline'; img-src data:; script-src '%s'; base-uri 'none'; form-action 'none'\">\n"
        "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
        "<meta name=\"color-scheme\" content=\"light dark\">\n"
        "<link rel=\"icon\" href=\"data:,\">\n<title>MetaShard: ",
        dump_page_script_hash);
    if (view->count == 1)
        fputs(process_name(view->processes), file);
    else
        fprintf(file, "%zu processes", view->count);
    fprintf(file, "</title>\n<style>\n%s</style>\n</head>\n<body>\n", dump_page_style);
}

/* No data can end the element: "<" occurs only in texts, where it is written as an escape. */
static bool embed_data(FILE *file, const struct view *view)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *memory = open_memstream(&text, &bytes);
    if (memory == NULL)
        return false;
    write_json(memory, view, SIZE_MAX, SIZE_MAX);
    if (fclose(memory) != 0) {
        free(text);
        return false;
    }
    fputs("<script type=\"application/json\" id=\"data\">", file);
    for (size_t i = 0; i < bytes; i++) {
        if (text[i] == '<')
            fputs("\\u003c", file);
        else
            putc(text[i], file);
    }
    fputs("</script>\n", file);
    free(text);
    return true;
}

static bool write_page(FILE *file, const struct view *view)
{
    head(file, view);
    (view->count == 1 ? one_view : all_views)(file, view);
    fputs("</main>\n", file);
    if (!embed_data(file, view))
        return false;
    fprintf(file, "<script>%s</script>\n</body>\n</html>\n", dump_page_script);
    return true;
}

bool write_html(const char *path, const struct view *view)
{
    return write_output(path, view, write_page);
}
