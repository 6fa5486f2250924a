/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The page's bars of the peaks, and its chart of memory over time: steps, as SVG, and the same data
 * as a table. The lines are in an SVG of their own within the chart: page.js zooms by its viewBox.
 */
#include <inttypes.h>
#include <stdlib.h>

#include "tools/dump/html/html.h"
#include "tools/dump/line.h"

enum { MOST_MOMENTS = 2000 };
enum { WIDTH = 960, HEIGHT = 300, LEFT = 78, RIGHT = 26, TOP = 12, BOTTOM = 34 };
/* Lines at the edges are not cut in half. */
enum { MARGIN = 2, PLOT_HEIGHT = HEIGHT - TOP - BOTTOM + 2 * MARGIN };

struct scale {
    uint64_t begin_ns, end_ns, most_bytes;
    uint64_t step_ns, step_bytes; /* between lines of the grid */
};

static double x_of(const struct scale *scale, uint64_t time_ns)
{
    return LEFT + (double)(time_ns - scale->begin_ns) * (WIDTH - LEFT - RIGHT) /
                      (double)(scale->end_ns - scale->begin_ns);
}

static double y_of(const struct scale *scale, uint64_t bytes)
{
    return HEIGHT - BOTTOM - (double)bytes * (HEIGHT - TOP - BOTTOM) / (double)scale->most_bytes;
}

/* A step of 1, 2 or 5 times a power of ten that gives at most nine lines. */
static uint64_t round_time(uint64_t span)
{
    for (uint64_t step = 1;; step *= 10) {
        const uint64_t factors[] = {1, 2, 5};
        for (size_t i = 0; i < 3; i++) {
            if (span / (step * factors[i]) < 9 || step > UINT64_MAX / 50)
                return step * factors[i];
        }
    }
}

static struct scale scale_of(const struct moment *moments, size_t count)
{
    struct scale scale = {0, moments[count - 1].time_ns, 1, 1, 1};
    for (size_t i = 0; i < count; i++) {
        const struct moment *moment = &moments[i];
        const uint64_t values[] = {moment->live_bytes, moment->deferred_bytes,
                                   moment->backed_bytes};
        for (int v = 0; v < 3; v++)
            scale.most_bytes = values[v] > scale.most_bytes ? values[v] : scale.most_bytes;
    }
    if (scale.end_ns == 0)
        scale.end_ns = 1;
    scale.step_ns = round_time(scale.end_ns);
    while (scale.most_bytes / scale.step_bytes >= 6 && scale.step_bytes < UINT64_MAX / 2)
        scale.step_bytes *= 2;
    if (scale.most_bytes < UINT64_MAX - scale.step_bytes)
        scale.most_bytes =
            (scale.most_bytes + scale.step_bytes - 1) / scale.step_bytes * scale.step_bytes;
    return scale;
}

static void draw_grid(FILE *file, const struct scale *scale)
{
    for (uint64_t bytes = 0; bytes <= scale->most_bytes; bytes += scale->step_bytes) {
        const double y = y_of(scale, bytes);
        fprintf(file, "<path class=\"%s\" d=\"M%d %.1fH%d\"/>", bytes == 0 ? "axis" : "grid", LEFT,
                y, WIDTH - RIGHT);
        fprintf(file, "<text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%s</text>\n", LEFT - 8, y + 4,
                bytes > 0 ? bytes_text(bytes) : "0");
        if (bytes > UINT64_MAX - scale->step_bytes)
            break;
    }
}

/* Writes "200 ms", without zeros behind the point. */
static void put_time(FILE *file, uint64_t ns)
{
    if (ns == 0)
        fputs("0", file);
    else if (ns >= 1000000000)
        fprintf(file, "%.6g s", (double)ns / 1e9);
    else if (ns >= 1000000)
        fprintf(file, "%.6g ms", (double)ns / 1e6);
    else
        fprintf(file, "%.6g us", (double)ns / 1e3);
}

static void draw_times(FILE *file, const struct scale *scale)
{
    fputs("<g class=\"times\">\n", file);
    for (uint64_t ns = 0; ns <= scale->end_ns; ns += scale->step_ns) {
        const double x = x_of(scale, ns);
        fprintf(file,
                "<path class=\"axis\" d=\"M%.1f %dv5\"/><text x=\"%.1f\" y=\"%d\" "
                "text-anchor=\"middle\">",
                x, HEIGHT - BOTTOM, x, HEIGHT - BOTTOM + 19);
        put_time(file, ns);
        fputs("</text>\n", file);
        if (ns > UINT64_MAX - scale->step_ns)
            break;
    }
    fputs("</g>\n", file);
}

static uint64_t value_of(const struct moment *moment, size_t offset)
{
    return *(const uint64_t *)((const char *)moment + offset);
}

/* Draws a step where the value changes, and the end. */
static void draw_steps(FILE *file, const struct scale *scale, const struct moment *moments,
                       size_t count, size_t offset)
{
    uint64_t last = value_of(&moments[0], offset);
    fprintf(file, "M%.2f %.2f", x_of(scale, moments[0].time_ns), y_of(scale, last));
    for (size_t i = 1; i < count; i++) {
        const uint64_t value = value_of(&moments[i], offset);
        if (value == last && i + 1 < count)
            continue;
        fprintf(file, "H%.2f", x_of(scale, moments[i].time_ns));
        if (value != last)
            fprintf(file, "V%.2f", y_of(scale, value));
        last = value;
    }
}

static const struct series {
    const char *name;
    const char *meaning;
    size_t offset;
} all_series[] = {
    {"requested", "asked for and not freed", offsetof(struct moment, live_bytes)},
    {"deferred", "of it, not in device memory", offsetof(struct moment, deferred_bytes)},
    {"backed", "device memory behind it", offsetof(struct moment, backed_bytes)},
};

enum { SERIES = sizeof(all_series) / sizeof(all_series[0]), BACKED = 2 };

static void draw_chart(const struct html *html, const struct moment *moments, size_t count)
{
    FILE *file = html->file;
    const struct scale scale = scale_of(moments, count);
    fprintf(file,
            "<svg class=\"chart\" id=\"%s-chart\" viewBox=\"0 0 %d %d\" role=\"img\" "
            "aria-labelledby=\"%s-chart-title\" data-begin=\"0\" data-end=\"%" PRIu64
            "\" data-most=\"%" PRIu64
            "\" data-left=\"%d\" data-right=\"%d\" data-top=\"%d\" data-bottom=\"%d\">\n",
            html->id, WIDTH, HEIGHT, html->id, scale.end_ns, scale.most_bytes, LEFT, WIDTH - RIGHT,
            TOP, HEIGHT - BOTTOM);
    fprintf(file,
            "<title id=\"%s-chart-title\">Requested, deferred and backed bytes over %s</title>\n",
            html->id, time_text(scale.end_ns));
    draw_grid(file, &scale);
    draw_times(file, &scale);
    fprintf(
        file,
        "<svg class=\"plot\" x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" viewBox=\"%d %d %d %d\" "
        "preserveAspectRatio=\"none\">\n",
        LEFT, TOP - MARGIN, WIDTH - LEFT - RIGHT, PLOT_HEIGHT, LEFT, TOP - MARGIN,
        WIDTH - LEFT - RIGHT, PLOT_HEIGHT);
    fputs("<path class=\"area backed\" d=\"", file);
    draw_steps(file, &scale, moments, count, all_series[BACKED].offset);
    fprintf(file, "V%.2fH%.2fZ\"/>\n", y_of(&scale, 0), x_of(&scale, moments[0].time_ns));
    /* The first series is on top, dashed, so that an equal one shows through. */
    for (int i = SERIES - 1; i >= 0; i--) {
        fprintf(file, "<path class=\"line %s\" data-series=\"%s\" d=\"", all_series[i].name,
                all_series[i].name);
        draw_steps(file, &scale, moments, count, all_series[i].offset);
        fputs("\"/>\n", file);
    }
    fputs("</svg>\n</svg>\n", file);
}

static void draw_legend(FILE *file)
{
    fputs("<ul class=\"legend\">", file);
    for (int i = 0; i < SERIES; i++)
        fprintf(file,
                "<li><svg class=\"key\" viewBox=\"0 0 24 8\" aria-hidden=\"true\"><path "
                "class=\"line %s\" d=\"M0 4H24\"/></svg><b>%s</b> %s</li>",
                all_series[i].name, all_series[i].name, all_series[i].meaning);
    fputs("</ul>\n", file);
}

static void write_table(const struct html *html, const struct moment *moments, size_t count)
{
    FILE *file = html->file;
    fprintf(
        file,
        "<details class=\"table\"><summary>The %zu points as a table</summary>\n"
        "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"Memory over time\">"
        "<table id=\"%s-samples\"><thead><tr><th scope=\"col\" class=\"n\">time</th>"
        "<th scope=\"col\" class=\"n\">requested</th><th scope=\"col\" class=\"n\">deferred</th>"
        "<th scope=\"col\" class=\"n\">backed</th></tr></thead><tbody>\n",
        count, html->id);
    for (size_t i = 0; i < count; i++)
        fprintf(file,
                "<tr><td class=\"n\">%s</td><td class=\"n\">%s</td><td class=\"n\">%s</td>"
                "<td class=\"n\">%s</td></tr>\n",
                html_time(NULL, moments[i].time_ns), html_bytes(NULL, moments[i].live_bytes),
                html_bytes(NULL, moments[i].deferred_bytes),
                html_bytes(NULL, moments[i].backed_bytes));
    fputs("</tbody></table></div></details>\n", file);
}

void html_chart(const struct html *html)
{
    size_t count;
    struct moment *moments = view_moments(&html->view, MOST_MOMENTS, &count);
    html_heading(html, "Memory over time");
    if (moments == NULL || count == 0) {
        fputs("<p>Nothing was allocated.</p>\n", html->file);
        free(moments);
        return;
    }
    fputs("<figure>\n", html->file);
    draw_legend(html->file);
    html_hint(html->file);
    fputs("<div class=\"wide\">\n", html->file);
    draw_chart(html, moments, count);
    fputs("</div>\n", html->file);
    if (html->view.count > 1)
        fputs("<figcaption>All processes added up, by their hosts’ clocks; each counts with its "
              "last figures after its end.</figcaption>\n",
              html->file);
    fputs("</figure>\n", html->file);
    write_table(html, moments, count);
    free(moments);
}

/* --- the peaks */

/* A bar that is longer than the scale ends in dashes. */
static void peak_row(FILE *file, const char *name, const char *kind, uint64_t bytes, uint64_t most)
{
    const bool is_cut = bytes > most;
    const double width = is_cut ? 91.0 : 100.0 * (double)bytes / (double)most;
    fprintf(file,
            "<tr><th scope=\"row\">%s</th><td><svg viewBox=\"0 0 100 4\" "
            "preserveAspectRatio=\"none\" aria-hidden=\"true\"><rect class=\"%s\" width=\"%.2f\" "
            "height=\"4\"/>",
            name, kind, width);
    for (int x = 92; x < 100 && is_cut; x += 3)
        fprintf(file, "<rect class=\"%s\" x=\"%d\" width=\"2\" height=\"4\"/>", kind, x);
    fprintf(file, "</svg></td><td class=\"n\">%s%s</td></tr>\n", html_bytes(NULL, bytes),
            is_cut ? ", not to scale" : "");
}

/* Of several processes there is no bar of devices: they may share one. */
void html_peaks(const struct html *html, const struct totals *totals)
{
    const uint64_t without = totals->of[TOTAL_LIVE_PEAK], with = totals->of[TOTAL_BACKED_PEAK];
    const uint64_t device =
        html->view.count == 1 ? ms_snapshot_figure(html->view.processes, "device_bytes") : 0;
    uint64_t most = without > with ? without : with;
    if (most == 0)
        return;
    if (device > most && device / 4 <= most)
        most = device;
    fprintf(html->file, "<table class=\"peaks\" id=\"%s-peaks\"><tbody>\n", html->id);
    peak_row(html->file, "without MetaShard", "without", without, most);
    peak_row(html->file, "with MetaShard", "with", with, most);
    if (device > 0)
        peak_row(html->file, "device memory", "device", device, most);
    fputs("</tbody></table>\n", html->file);
}
